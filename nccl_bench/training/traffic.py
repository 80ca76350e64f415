"""What crosses the memory bus beside the layers: the loss over the vocabulary, and FSDP2's copies of weights and gradients. Bytes."""

from __future__ import annotations

from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model
from nccl_bench.training.step_fsdp import reshards
from nccl_bench.training.weights import block_params, root_params

LOSS_MEGATRON = 38, 14
"""Forward and backward bytes a logit of Megatron's unfused loss (core/tensor_parallel/cross_entropy.py at d98e8a64). Read and written, bf16 in 2
and fp32 in 4 bytes: cast 6 (line 25), maximum 4 (27), difference 8 (42), exponential 8 (62), sum 4 (63), quotient 8 (77); product 8 (114), cast 6."""
LOSS_TORCH = 14, 22
"""The same of torch.nn.functional.cross_entropy on logits.float(), as torchtitan calls it (components/loss.py:57 at b5bcd76c), not compiled: cast 6,
log_softmax 8; zeros for the gradient of nll_loss 4, log_softmax's backward 12, cast 6."""
_VOCAB_PARALLEL = "megatron cross_entropy.py:25-114"
LOSS_SOURCE = {"fsdp2": "torchtitan components/loss.py:57", "megatron": _VOCAB_PARALLEL, "deepspeed": _VOCAB_PARALLEL}


def loss_nbytes(model: Model, at: Layout) -> tuple[float, float]:
    """Bytes of the loss's forward and backward of one micro-batch on a rank of the last stage."""
    forward, backward = LOSS_TORCH if at.framework == "fsdp2" else LOSS_MEGATRON
    logits = at.seq / at.cp * at.mbs * model.vocab / at.tp
    return forward * logits, backward * logits


def copies_nbytes(model: Model, at: Layout, stage: Stage) -> tuple[float, float]:
    """Bytes that FSDP2 copies in the stream of the arithmetic in the forward and the backward of one micro-batch.

    Gathered weights are copied out to where each belongs, gradients into the buffer that is reduced (torch 2.13 _fsdp_param_group.py:463,
    _fsdp_collectives.py:603): each byte read once and written once. Casting the shard and its gradient runs in streams of their own, beside the
    arithmetic, and is not counted. 0 for plain DDP and other frameworks; on one rank FSDP2 copies all the same.
    """
    sharded = at.fsdp_shard * at.cp > 1 or at.world == 1
    if at.framework != "fsdp2" or not sharded:
        return 0.0, 0.0
    blocks = float(sum(sum(block_params(model, at, layer)) for layer in stage.layers))
    root = float(root_params(model, at, stage))
    once = at.no_sync or at.pp > 1
    narrow = 1 if at.fp8 else at.param_nbytes
    gathered = 2.0 * (blocks * narrow + root * at.param_nbytes)
    again = 2.0 * blocks * narrow if reshards(at) else 0.0
    reduced = (blocks + root) * (at.param_nbytes + at.grad_nbytes) / (at.microbatches if once else 1)
    return gathered, again + reduced
