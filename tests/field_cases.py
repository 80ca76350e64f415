"""The field cases: logs and texts of other people, kept outside the repository. Tests that read them skip where they are absent."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("NCCL_BENCH_FIELD_CASES") or ROOT.parent / "shared")
FILES = SHARED / "cases" / "files"
REFERENCE = SHARED / "reference"

needs_cases = pytest.mark.skipif(not FILES.is_dir(), reason=f"no field cases in {FILES}: set NCCL_BENCH_FIELD_CASES")
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no reference measurements in {REFERENCE}: set NCCL_BENCH_FIELD_CASES")
