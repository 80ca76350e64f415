"""Filling and checking buffers: every element, every kind of damage, bounded blocks."""

import pytest

torch = pytest.importorskip("torch")

from nccl_bench.dtypes import DTYPES  # noqa: E402
from nccl_bench.measure.data import Region, Tiles, poison  # noqa: E402
from nccl_bench.measure.pattern import MODULUS, PERIOD, pattern_for, phase, residue  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiles():
    return Tiles(CPU, 2)


def region(buffer, ranks=(0,), slot=0, start=0):
    return Region(
        rows=buffer.view(len(ranks), -1),
        residues=tuple(residue(rank, slot) for rank in ranks),
        start=start,
        labels=tuple(f"part of rank {rank}" for rank in ranks),
    )


@pytest.mark.parametrize("count", [1, 2, 61, 4093, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD, 3 * PERIOD + 17])
@pytest.mark.parametrize("start", [0, 5, PERIOD + 3])
def test_filled_data_is_the_formula_at_every_element(tiles, count, start):
    values = pattern_for("float32", None, 2).values
    buffer = torch.empty(count)

    tiles.fill(region(buffer, ranks=(1,), slot=2, start=start), values)

    places = {0, count - 1, count // 2, min(count - 1, PERIOD - 1), min(count - 1, PERIOD)}
    assert all(buffer[i] == values[(phase(start + i) + residue(1, 2)) % MODULUS] for i in places)
    assert int(tiles.check(region(buffer, ranks=(1,), slot=2, start=start), values, 0.0)) == 0


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("place", [0, 700, 3 * PERIOD // 2, 3 * PERIOD - 1])
def test_one_wrong_element_is_counted_and_found(tiles, dtype, place):
    values = pattern_for(dtype, None, 2).values
    buffer = torch.empty(3 * PERIOD, dtype=getattr(torch, dtype))
    whole = region(buffer, ranks=(0, 1, 2))
    tiles.fill(whole, values)
    was = float(buffer[place])
    buffer[place] = 0 if was else 1

    wrong = tiles.first_wrong(whole, values, 0.0)

    row, column = divmod(place, PERIOD)
    assert int(tiles.check(whole, values, 0.0)) == 1
    assert (wrong.where, wrong.index, wrong.expected, wrong.got) == (f"part of rank {row}", column, was, float(buffer[place]))


@pytest.mark.parametrize("dtype", sorted(name for name in DTYPES if DTYPES[name].is_float))
def test_nan_and_unwritten_output_are_never_right(tiles, dtype):
    raw = torch.empty(64 * DTYPES[dtype].itemsize, dtype=torch.uint8)
    poison(raw)
    unwritten = region(raw.view(getattr(torch, dtype)))

    assert int(tiles.check(unwritten, pattern_for(dtype, None, 2).values, 0.0)) == 64
    assert int(tiles.check(unwritten, pattern_for(dtype, None, 2).values, 1e9)) == 64


def test_data_of_another_rank_slot_or_place_is_wrong(tiles):
    values = pattern_for("float32", None, 4).values
    buffer = torch.empty(1000)
    tiles.fill(region(buffer, ranks=(1,), slot=1), values)

    for other in (region(buffer, ranks=(2,), slot=1), region(buffer, ranks=(1,), slot=0), region(buffer, ranks=(1,), slot=1, start=500)):
        assert int(tiles.check(other, values, 0.0)) > 500


def test_a_tolerance_allows_what_it_says_and_no_more(tiles):
    values = pattern_for("float32", "sum", 2).values
    buffer = torch.empty(100)
    tiles.fill(region(buffer), values)
    buffer[10] += 0.5

    assert int(tiles.check(region(buffer), values, 0.6)) == 0
    assert int(tiles.check(region(buffer), values, 0.4)) == 1
