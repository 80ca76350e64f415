"""`python -m nccl_bench`: the same as the command `nccl-bench`."""

import sys

from nccl_bench.cli.main import run

sys.exit(run())
