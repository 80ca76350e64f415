"""What runs and curves are called in a report, and which of them stands first. No pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.report.curves import Curve, View
from nccl_bench.report.terminal import NOT_NCCL, SHARED_GPU

MAX_LABEL = 28
"""Characters of a run's name beside a line."""
_SEPARATORS = "-_. "


def headline(views: Sequence[View]) -> str | None:
    """The collective that a report opens with: all_reduce, else the first of the table that most runs measured; None where none has a rate."""
    counted = Counter(name for view in views for name in {curve.collective for curve in view.main() if curve.peak is not None})
    if not counted:
        return None
    most = max(counted.values())
    order = {name: at for at, name in enumerate(COLLECTIVES)}
    return min((name for name, n in counted.items() if n == most or name == "all_reduce"), key=lambda name: order.get(name, len(order)))


def judged(view: View, collective: str | None) -> Curve | None:
    """The curve of a collective that a run is judged by: of all ranks (the most, where a log holds several counts)."""
    found = [curve for curve in view.main() if curve.collective == collective]
    return max(found, key=lambda curve: (curve.axis is None, curve.n_ranks or 0), default=None)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Names short enough to stand beside a line: what all begin with is left out where names are long, the middle of what is still too long."""
    cut = 0
    if len(labels) > 1 and max(map(len, labels)) > 16:
        alike = next((at for at, letters in enumerate(zip(*labels, strict=False)) if len(set(letters)) > 1), min(map(len, labels)))
        starts = [at + 1 for at, letter in enumerate(labels[0][:alike]) if letter in _SEPARATORS]
        # "gpu-000" says more than "000".
        cut = max((start for start in starts if all(label[start : start + 1].isalpha() for label in labels)), default=max(starts, default=0))
    return {label: _middle_out(label[cut:] or label) for label in labels}


def _middle_out(text: str) -> str:
    if len(text) <= MAX_LABEL:
        return text
    return f"{text[: MAX_LABEL // 2 - 1]}…{text[-(MAX_LABEL // 2) :]}"


def banner_of(views: Iterable[View]) -> str | None:
    """What every page, picture and table says where a run says nothing about NCCL's speed; None where all are measurements."""
    views = list(views)
    gloo, shared = sum(view.header.not_nccl for view in views), sum(view.header.shared_gpu for view in views)
    if not gloo and not shared:
        return None
    if max(gloo, shared) == len(views):
        return NOT_NCCL if gloo else SHARED_GPU
    parts = [f"{gloo} NOT NCCL (gloo on CPUs)" if gloo else "", f"{shared} shared GPU, not a measurement" if shared else ""]
    return f"of {len(views)} runs {' and '.join(part for part in parts if part)}: rehearsals, whose numbers say nothing about NCCL or its fabric"


def ranks_words(views: Sequence[View], curves: Sequence[Curve]) -> str:
    """ "16 ranks, 2 nodes", "2 to 64 ranks"."""
    counts = sorted({curve.n_ranks for curve in curves if curve.n_ranks})
    nodes = sorted({view.header.n_nodes for view in views if view.header.n_nodes})
    if not counts:
        return "number of ranks not known"
    words = f"{counts[0]} rank{'' if counts[0] == 1 else 's'}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} ranks"
    if len(nodes) == 1 and len(counts) == 1 and all(curve.axis is None for curve in curves):
        words += f", {nodes[0]} node{'' if nodes[0] == 1 else 's'}"
    return words


def clock_words(view: View, curve: Curve) -> str:
    """ "graph clock", "timed by nccl-tests 2.19.6"."""
    if curve.clock is not None:
        return f"{curve.clock} clock"
    return f"timed by {view.header.tool}" if view.run.imported else "clock not recorded"


def placement_words(curve: Curve) -> str:
    """ "in place", "out of place"; "" where not known."""
    return {"in": "in place", "out": "out of place"}.get(curve.placement or "", "")


def caption(views: Sequence[View], curves: Sequence[tuple[View, Curve]], *, collective: bool = True) -> str:
    """The line under a title: what is true of all its curves, clock and variant always; a rehearsal says so first."""
    only = [curve for _, curve in curves]
    banner = banner_of(views)

    def one(words: Iterable[str], many: str = "") -> str:
        found = list(dict.fromkeys(word for word in words if word))
        return found[0] if len(found) == 1 else many or " / ".join(found[:4])

    parts = [
        "" if banner is None else banner.partition(":")[0],
        one(curve.collective for curve in only) if collective else "",
        ranks_words(views, only),
        one(f"{curve.op} {curve.dtype}" for curve in only if curve.op) or one(curve.dtype or "" for curve in only),
        one(placement_words(curve) for curve in only),
        one(clock_words(view, curve) for view, curve in curves),
        one(curve.regime or "" for curve in only),
        "variant: " + (one(curve.variant or "as is" for curve in only)),
        one(curve.special or "" for curve in only),
        one(f"registered: {curve.registered}" for curve in only if curve.registered not in (None, "none")),
        one("max over ranks" if curve.over_ranks == "max" else f"{curve.over_ranks} over ranks" for curve in only if curve.over_ranks),
    ]
    return " · ".join(part for part in parts if part)


def what_differs(curves: Sequence[Curve]) -> list[str]:
    """A label for each curve: the parts of how it was measured in which they differ; "" where they do not."""
    always = [
        [curve.collective for curve in curves],
        [f"{curve.n_ranks} ranks" if curve.n_ranks else "" for curve in curves],
        [f"axis {curve.axis}" if curve.axis else "" for curve in curves],
        [str(curve.dtype or "") for curve in curves],
        [placement_words(curve) for curve in curves],
        [f"{curve.clock} clock" if curve.clock else "" for curve in curves],
        [curve.regime or "" for curve in curves],
        [curve.variant or "as is" for curve in curves],
        [curve.special or ("all groups" if any(other.special for other in curves) else "") for curve in curves],
        [f"registered {curve.registered}" if curve.registered not in (None, "none") else "" for curve in curves],
    ]
    where_they_apply = [
        [str(curve.op or "") for curve in curves],
        [f"root {curve.root}" if curve.root is not None else "" for curve in curves],
        [{"ring": "to the next rank", "node": "to the next node"}.get(curve.shift or "", "") for curve in curves],
    ]
    telling = [column for column in always if len(set(column)) > 1]
    telling += [column for column in where_they_apply if len({*column} - {""}) > 1]
    return [", ".join(column[at] for column in telling if column[at]) for at in range(len(curves))]
