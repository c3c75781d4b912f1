"""Bytes: what a parameter costs in training, what the backward pass keeps, and what one GPU must hold."""

from dataclasses import dataclass
from typing import Literal

from isthmus.workload.axes import Axes, check_axes, expert_blocks, micro_batches, stage_blocks
from isthmus.workload.flops import Recompute
from isthmus.workload.model import ModelShape, Precision, Workload
from isthmus.workload.parameters import (
    dense_block_parameters,
    embedding_parameters,
    expert_block_shared_parameters,
    mtp_parameter_count,
    parameter_count,
    routed_expert_parameters,
)

__all__ = [
    "AttentionKernel",
    "GpuMemory",
    "StateBytes",
    "activation_bytes",
    "gpu_memory",
    "memory_bytes_per_gpu",
    "parameters_per_gpu",
    "state_bytes",
    "weight_bytes_per_parameter",
]

AttentionKernel = Literal["fused", "unfused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of everything that outlives a step. `master` is the fp32 copy that mixed precision needs."""

    weights: float
    gradients: float
    master: float
    optimizer: float

    @property
    def total(self) -> float:
        """All four together."""
        return self.weights + self.gradients + self.master + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Bytes on the fullest GPU, and which pipeline stage (`first` or `last`) that one belongs to."""

    state: StateBytes
    activations: float
    stage: Literal["first", "last"]

    @property
    def total(self) -> float:
        """State and activations."""
        return self.state.total + self.activations


def weight_bytes_per_parameter(precision: Precision) -> int:
    """Bytes of a stored weight: 4 in fp32, else 2.

    Under fp8 the matrix products read fp8 casts of bf16 weights; those casts live only while they are used.
    """
    return 4 if precision == "fp32" else 2


def state_bytes(shape: ModelShape, precision: Precision = "bf16", gradient_bytes: int = 2) -> StateBytes:
    """State of the whole model under Adam, in bytes.

    Mixed precision: 2 (weight) + `gradient_bytes` + 4 (fp32 master) + 8 (two fp32 moments) a parameter: 16
    with bf16 gradients, 18 with fp32 ones. fp32: 4 + `gradient_bytes` + 0 + 8. Multi-token-prediction blocks
    count, since they are trained.

    Source: Rajbhandari et al., arXiv 1910.02054, section 3.1.
    """
    return _state(parameter_count(shape) + mtp_parameter_count(shape), precision, gradient_bytes)


def activation_bytes(  # noqa: PLR0913 - the arguments are the symbols of the published formula
    shape: ModelShape,
    sequence_length: int,
    micro_batch: int = 1,
    tp: int = 1,
    *,
    recompute: Recompute = "none",
    kernel: AttentionKernel = "fused",
    element_bytes: int = 2,
) -> float:
    """Bytes one GPU keeps for the backward pass of one micro-batch through all blocks.

    Embedding and output projection are left out.

    For GPT (two-matrix feed-forward of 4h, dropout, h = heads head_dim) in 16 bits this is, per block,

        s b h (34 + 5 a s / h) / t    none, unfused: softmax, its dropout mask and result are kept
        s b (34 h + 4 a) / t          none, fused: one fp32 log-sum-exp per head instead
        34 s b h / t                  selective
        2 s b h / t                   full: the input of every block, and one whole block at work

    s = `sequence_length`, b = `micro_batch`, a = heads, t = `tp` (sequence parallelism included). Other
    families follow the same accounting: grouped keys and values are as wide as they are, a gated feed-forward
    keeps gate, up and product (3 x ffn instead of 2), no dropout keeps no masks, and an expert block keeps
    what its visited experts would with tokens spread evenly. Leaves out workspace, fragmentation and the
    casts of fp8.

    Source: Korthikanti et al., arXiv 2205.05198, equations 2, 4 and 6.
    """
    tokens = sequence_length * micro_batch / tp
    return sum(_kept_and_working(shape, sequence_length, recompute, kernel, element_bytes)) * tokens


def _kept_and_working(
    shape: ModelShape, sequence_length: int, recompute: Recompute, kernel: AttentionKernel, element_bytes: int
) -> tuple[float, float]:
    """Bytes per token, before division by tp: kept by all blocks, and held by the one being recomputed."""
    scores = 0.0
    if recompute == "none":
        scores = _score_bytes(shape, sequence_length, kernel, element_bytes)
    dense = _block_bytes_per_token(shape, element_bytes, expert=False) + scores
    expert = _block_bytes_per_token(shape, element_bytes, expert=True) + scores
    dense_blocks = shape.layers - shape.expert_layers
    if recompute == "full":
        working = max(dense if dense_blocks else 0.0, expert if shape.expert_layers else 0.0)
        return shape.layers * element_bytes * shape.hidden, working
    return dense_blocks * dense + shape.expert_layers * expert, 0.0


def parameters_per_gpu(shape: ModelShape, axes: Axes, last: bool) -> tuple[float, float]:
    """(parameters outside routed experts, in routed experts) on a GPU of the first or the last stage.

    ZeRO is not applied. Norms and biases are divided by tp like the matrices (they are replicated: below
    0.1%).
    """
    blocks, experts = stage_blocks(shape, axes.pp), expert_blocks(shape, axes.pp, last)
    shared = (blocks - experts) * dense_block_parameters(shape) + experts * expert_block_shared_parameters(
        shape
    )
    routed = experts * shape.experts * routed_expert_parameters(shape)
    if last and shape.mtp_layers:
        extra = shape.mtp_layers * shape.experts * routed_expert_parameters(shape)
        routed += extra
        shared += mtp_parameter_count(shape) - extra
    table = shape.hidden * shape.vocabulary
    if axes.pp == 1:
        shared += embedding_parameters(shape) + shape.norm_tensors * shape.hidden
    elif last:  # a tied table is held again by the last stage, as is the one that MTP embeds with
        shared += (
            table * (2 if shape.mtp_layers and not shape.tied else 1) + shape.norm_tensors * shape.hidden
        )
    else:
        shared += table + shape.positions * shape.hidden
    return shared / axes.tp, routed / (axes.tp * axes.ep)


def gpu_memory(workload: Workload, axes: Axes) -> GpuMemory:
    """Memory of the fullest GPU: the larger of a first-stage and a last-stage one.

    The first of p stages holds the activations of min(p, micro-batches) micro-batches at once (1F1B), the
    last of one, and with it the fp32 logits: 4 s b h (1 + V/h) / t bytes (arXiv 2205.05198, section 4.3).
    Leaves out communication buffers, the allocator, and the CUDA context (1-2 GB).

    Raises:
        InfeasibleError: The axes do not fit the workload.
    """
    check_axes(workload, axes)
    first, last = _stage_memory(workload, axes, last=False), _stage_memory(workload, axes, last=True)
    return first if first.total > last.total else last


def memory_bytes_per_gpu(workload: Workload, axes: Axes) -> float:
    """Total of `gpu_memory`."""
    return gpu_memory(workload, axes).total


def _stage_memory(workload: Workload, axes: Axes, last: bool) -> GpuMemory:
    shape = workload.shape
    shared, routed = parameters_per_gpu(shape, axes, last)
    whole = _state(shared + routed, workload.precision, workload.gradient_bytes)
    share = shared / (axes.dp * axes.cp) + routed / (axes.dp * axes.cp // axes.ep)
    part = _state(share, workload.precision, workload.gradient_bytes)
    state = StateBytes(
        weights=part.weights if axes.zero >= 3 else whole.weights,
        gradients=part.gradients if axes.zero >= 2 else whole.gradients,
        master=part.master if axes.zero >= 1 else whole.master,
        optimizer=part.optimizer if axes.zero >= 1 else whole.optimizer,
    )
    element = weight_bytes_per_parameter(workload.precision)
    flight = 1 if last else min(axes.pp, micro_batches(workload, axes))
    kept, working = _kept_and_working(shape, workload.sequence_length, axes.recompute, "fused", element)
    per_token = flight * kept * stage_blocks(shape, axes.pp) / shape.layers + working
    if last or axes.pp == 1:
        per_token += 2 * element * shape.hidden + 4 * shape.vocabulary
    activations = workload.sequence_length / axes.cp * axes.micro_batch * per_token / axes.tp
    return GpuMemory(state=state, activations=activations, stage="last" if last else "first")


def _state(parameters: float, precision: Precision, gradient_bytes: int) -> StateBytes:
    return StateBytes(
        weights=weight_bytes_per_parameter(precision) * parameters,
        gradients=gradient_bytes * parameters,
        master=(0 if precision == "fp32" else 4) * parameters,
        optimizer=8 * parameters,
    )


def _score_bytes(shape: ModelShape, sequence_length: int, kernel: AttentionKernel, element: int) -> float:
    """Bytes per token of one block for attention: softmax output and, with dropout, its mask and result.

    A fused kernel keeps one fp32 log-sum-exp per head instead.
    """
    if kernel == "fused":
        return 4 * shape.heads
    return shape.heads * sequence_length * (element + (1 + element) * shape.dropout)


def _block_bytes_per_token(shape: ModelShape, element: int, expert: bool) -> float:
    """Bytes per token of one block without scores, before division by tp."""
    h = shape.hidden
    values = shape.heads * shape.head_dim
    if shape.attention == "mla":
        latents = 2 * (shape.q_rank + shape.kv_rank) + shape.rope_dim
        projected = latents + 2 * shape.query_width + values
    else:
        projected = values + 2 * shape.kv_heads * shape.head_dim
    attention = element * (h + projected + values) + h * shape.dropout
    inner = 3 if shape.gated else 2
    if expert:
        visited = shape.experts_active * (
            2 * h + inner * shape.expert_ffn
        )  # dispatched input, product, weighted output
        feed_forward = (
            element * (h + visited + shape.shared_experts * inner * shape.expert_ffn) + 4 * shape.experts
        )
    else:
        feed_forward = element * (h + inner * shape.ffn)
    return attention + feed_forward + h * shape.dropout + element * shape.block_norms * h
