"""Writes logs in nccl-tests' layout, for tests of what reads them: the formats of its sources, and the disguises that launchers give them."""

from dataclasses import dataclass

from nccl_bench.collectives import COLLECTIVES, bus_factor

HEADER = (
    "# nThread 1 nGpus 1 minBytes {first} maxBytes {last} step: {step}({kind}) "
    "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0"
)
BLANK = "#                                                              out-of-place                       in-place          "
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong "
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         "


def number(value, width):
    """util.cu getFloatStr: two decimals, then fewer, then an exponent, in so many characters."""
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}" if width >= 7 else f"{value:.0e}"


@dataclass(frozen=True)
class Measured:
    """One row before it is printed."""

    nbytes: int
    out_us: float
    in_us: float
    wrong: int = 0
    dtype: str = "float"
    itemsize: int = 4


def row(collective, measured, n_ranks, redop=None, root=-1):
    """One line of the table."""
    known = COLLECTIVES[collective]
    count = measured.nbytes // measured.itemsize // (n_ranks if known.split else 1)
    halves = ""
    for placement, time in (("out", measured.out_us), ("in", measured.in_us)):
        algbw = measured.nbytes / time * 1e-3
        unchecked = placement == "in" and collective in ("sendrecv", "all_to_all")
        wrong = "   N/A" if unchecked else f"{measured.wrong:>6g}"
        halves += f"  {number(time, 7):>7}  {number(algbw, 6):>6}  {number(algbw * bus_factor(collective, n_ranks), 6):>6}  {wrong}"
    redop = redop or ("sum" if known.reducing or collective == "sendrecv" else "none")
    return f"{measured.nbytes:>12}  {count:>12}  {measured.dtype:>8}  {redop:>6}  {root:>6}{halves}"


def log(collective, rows, n_ranks, *, first=8, last=None, step=2, kind="factor", named=True, summary=True, hosts=("node1",)):
    """The lines of a whole log."""
    per_host = max(1, n_ranks // len(hosts))
    lines = ["# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809"]
    lines += [f"# Collective test starting: {COLLECTIVES[collective].nccl_tests}_perf"] if named else []
    lines += [HEADER.format(first=first, last=last or max((r.nbytes for r in rows), default=8), step=step, kind=kind), "#", "# Using devices"]
    for rank in range(n_ranks):
        host = hosts[min(rank // per_host, len(hosts) - 1)]
        place = f"device {rank % per_host:>2} [0000:{rank % per_host + 16:02x}:00] NVIDIA H100"
        lines.append(f"#  Rank {rank:>2} Group  0 Pid {1000 + rank:>6} on {host:>10} {place}")
    lines += ["#", BLANK, COLUMNS, UNITS]
    lines += [row(collective, measured, n_ranks) for measured in rows]
    if summary:
        factor = bus_factor(collective, n_ranks)
        values = [measured.nbytes / time * 1e-3 * factor for measured in rows for time in (measured.out_us, measured.in_us)]
        average = sum(values) / len(values) if values else 0
        wrong = sum(measured.wrong > 0 for measured in rows)
        lines += [f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}", f"# {'Avg bus bandwidth':<20} : {average:g} ", "#"]
        lines += [f"# Collective test concluded: {COLLECTIVES[collective].nccl_tests}_perf", "#"] if named else []
    return lines
