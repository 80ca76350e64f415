"""What must be said beside a price: where it is uncertain beyond its range, and GPUs that would stand idle."""

from __future__ import annotations

from nccl_bench.training.cost import Priced
from nccl_bench.training.layout import mesh_of
from nccl_bench.training.plan import Answer, Fabric


def notes_of(answer: Answer, fabric: Fabric) -> list[str]:
    """The sentences of one plan; none where nothing is to be said."""
    return _tensor_across(answer, fabric)


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
