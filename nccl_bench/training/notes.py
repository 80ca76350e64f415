"""What must be said beside a price: where it is uncertain beyond its range, and GPUs that would stand idle."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_bench.training.cost import Priced
from nccl_bench.training.layout import mesh_of
from nccl_bench.training.plan import Answer, Fabric
from nccl_bench.training.price_expected import FLOORED

HINT = "not measured: only a hint"
TITLE = {"measured": "measured", "expected": f"{HINT}: what healthy systems of this kind reach", "nothing": "nothing is priced"}


def notes_of(answer: Answer, fabric: Fabric) -> list[str]:
    """The sentences of one plan; none where nothing is to be said."""
    return [*prices_unbacked([answer]), *_tensor_across(answer, fabric)]


def prices_unbacked(answers: Sequence[Answer]) -> list[str]:
    """The calls that were priced though too few healthy systems of this kind are known that tell of them, and how."""
    floors: dict[str, float] = {}
    for row in (row for answer in answers for row in answer.cost.calls):
        if row.price is not None and row.price.by.startswith(FLOORED):
            call, floor = f"{row.call.collective} over {row.call.axis}", float(row.price.by.removeprefix(FLOORED).partition(",")[0])
            floors[call] = min(floor, floors.get(call, floor))
    if not floors:
        return []
    calls = ", ".join(f"{call} ({floor:g})" for call, floor in floors.items())
    return [f"fewer than two such systems are known for {calls}: priced between attainable and that share of it"]


def tensor_nodes(answer: Answer, fabric: Fabric) -> int:
    """Nodes that a tensor-parallel group spans."""
    return 1 if answer.layout.tp == 1 else fabric.places.of(mesh_of(answer.layout), "tp").span.nodes


def _tensor_across(answer: Answer, fabric: Fabric) -> list[str]:
    """A layer waits for these calls, and how NCCL runs them over two nodes is known least (docs/training.md)."""
    nodes = tensor_nodes(answer, fabric)
    guessed = [row for row in answer.cost.calls if row.call.axis == "tp" and row.price is not None and not _is_measured(row)]
    if nodes == 1 or not guessed:
        return []
    low, high = (sum((row.price.low_us, row.price.high_us)[end] * row.call.count for row in guessed if row.price) * 1e-6 for end in (0, 1))
    price = f"its price is uncertain: {low:.3g} to {high:.3g} s of calls a step"
    return [f"tensor parallelism over {nodes} nodes was not measured, and {price}. plan --emit FILE, then sweep --want FILE measures it"]


def _is_measured(row: Priced) -> bool:
    return row.price is not None and row.price.by == "measured" and row.price.extrapolated is None
