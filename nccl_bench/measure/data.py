"""Filling buffers with the pattern and counting what arrived wrong, on the device, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nccl_bench.measure.pattern import BREAK, MODULUS, PERIOD

POISON = 0xFF
"""Outputs are filled with this byte before the check: NaN in every float type, -1 or 255 in integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Rows of a buffer whose elements follow the pattern, each row at its own residue."""

    rows: torch.Tensor
    """[rows, count], strided over the arena."""
    residues: tuple[int, ...]
    """[rows] what is added to the phase of each row."""
    start: int = 0
    """Index of the first element of every row in the pattern."""
    labels: tuple[str, ...] = ()
    """[rows] what a row is, for messages: "slot 3 from rank 1"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What arrived wrong on this rank."""

    count: int
    where: str = ""
    """The row of the first wrong element."""
    index: int = -1
    expected: float = 0.0
    got: float = 0.0


class Tiles:
    """The phase laid out on a device, and tables of values looked up through it."""

    def __init__(self, device: torch.device, periods: int) -> None:
        """periods: how many repeats one tile holds; memory is 8 B x PERIOD x periods."""
        index = torch.arange(PERIOD, device=device)
        self.phase = ((index + index // BREAK) % MODULUS).repeat(periods)
        self.length = PERIOD * periods
        self.device = device

    def fill(self, region: Region, values: Sequence[float]) -> None:
        """Write the pattern into every element of the region."""
        for block, expected in self._blocks(region, values, _work_dtype(region.rows.dtype)):
            block.copy_(expected)

    def check(self, region: Region, values: Sequence[float], tolerance: float) -> torch.Tensor:
        """How many elements are not as expected (NaN is never right): a 0-dim int64 tensor on the device."""
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for block, expected in self._blocks(region, values, _work_dtype(region.rows.dtype)):
            wrong += _differs(block, expected, tolerance).sum()
        return wrong

    def first_wrong(self, region: Region, values: Sequence[float], tolerance: float) -> Wrong | None:
        """The first wrong element of the region in row order, with its label; None where all are right."""
        row, column = 0, 0
        for block, expected in self._blocks(region, values, _work_dtype(region.rows.dtype)):
            bad = _differs(block, expected, tolerance)
            if bad.any():
                at = int(bad.flatten().nonzero()[0])
                r, c = divmod(at, block.shape[1])
                label = region.labels[row + r] if region.labels else f"row {row + r}"
                values_at = (float(expected.expand_as(block)[r, c]), float(block[r, c].to(torch.float64)))
                return Wrong(count=int(bad.sum()), where=label, index=column + c, expected=values_at[0], got=values_at[1])
            column += block.shape[1]
            if column >= region.rows.shape[1]:
                row, column = row + block.shape[0], 0
        return None

    def _blocks(self, region: Region, values: Sequence[float], dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(block, expected) pairs that cover the region in row order; expected broadcasts over the block."""
        n_rows, count = region.rows.shape
        table = torch.tensor(values, dtype=torch.float64).to(dtype).to(self.device)
        start = region.start % PERIOD
        if count + start <= self.length:
            step = max(1, self.length // count)
            phase = self.phase[start : start + count]
            residues = torch.tensor(region.residues, device=self.device)
            for row in range(0, n_rows, step):
                yield region.rows[row : row + step], table[(phase + residues[row : row + step, None]) % MODULUS]
            return
        width = self.length - PERIOD
        for row in range(n_rows):
            tile = table[(self.phase[start : start + width] + region.residues[row]) % MODULUS]
            for column in range(0, count, width):
                block = region.rows[row : row + 1, column : column + width]
                yield block, tile[None, : block.shape[1]]


def tiles_for(device: torch.device) -> Tiles:
    """Tiles of a size that suits the device: a few MB on a CPU, a few 10 MB on a GPU."""
    return Tiles(device, 17 if device.type == "cuda" else 5)


def poison(buffer: torch.Tensor) -> None:
    """Fill a flat byte buffer with what no collective sends."""
    buffer.fill_(POISON)


def _work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compare in: the 8-bit floats have no comparison, and all they hold is exact in float32."""
    return torch.float32 if dtype.itemsize == 1 and dtype.is_floating_point else dtype


def _differs(block: torch.Tensor, expected: torch.Tensor, tolerance: float) -> torch.Tensor:
    got = block.to(expected.dtype)
    if tolerance == 0:
        return got.ne(expected)
    return ~((got.to(torch.float64) - expected.to(torch.float64)).abs() <= tolerance)
