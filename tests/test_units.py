"""units.py: numbers with their words."""

from __future__ import annotations

import pytest

from nccl_bench.units import counted


@pytest.mark.parametrize("n, said", [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1016, "1016 rows")])
def test_one_is_one(n: int, said: str) -> None:
    assert counted(n, "row") == said


def test_a_plural_of_its_own() -> None:
    assert (counted(1, "pair is", "pairs are"), counted(2, "pair is", "pairs are")) == ("1 pair is", "2 pairs are")
