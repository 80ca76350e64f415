"""What a run says of its own start."""

from __future__ import annotations

from nccl_bench.flows.header import start_notes
from nccl_bench.launch.values import Joined


def joined(*import_s: float) -> Joined:
    return Joined(facts=tuple({"rank": rank, "host": f"h{rank}", "hello": {"import_s": value}} for rank, value in enumerate(import_s)), meet_s=1.0)


def test_a_quick_import_of_torch_is_no_news() -> None:
    assert start_notes(joined(2.0, 4.9)) == ()


def test_a_slow_import_names_the_slowest_rank_beside_the_median() -> None:
    (line,) = start_notes(joined(3.0, 95.4, 4.0))
    assert line.startswith("importing torch took 95 s on rank 1 (h1), 4 s on the median rank: ")
    (alone,) = start_notes(joined(30.0))
    assert alone.startswith("importing torch took 30 s on rank 0 (h0): ")
