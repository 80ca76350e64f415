"""`python -m nccl_bench` and the command `nccl-bench`: a Ctrl-C is answered in words from the first import on."""

import signal
import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        from nccl_bench.cli.main import run

        return run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would interrupt these words
        sys.stderr.write("nccl-bench: exit 130: interrupted\n")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
