"""Bytes that the backward pass needs: what every block keeps of its forward pass."""

from typing import Literal

from isthmus.workload.flops import Recompute
from isthmus.workload.model import ModelShape

__all__ = ["AttentionKernel", "activation_bytes", "kept_and_working"]

AttentionKernel = Literal["fused", "unfused"]


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
    kept, _, working, _ = kept_and_working(shape, sequence_length, recompute, kernel, element_bytes)
    return (kept + working) * tokens


def kept_and_working(
    shape: ModelShape, sequence_length: int, recompute: Recompute, kernel: AttentionKernel, element_bytes: int
) -> tuple[float, float, float, float]:
    """Bytes per token before division by tp: (kept by all blocks, of it outside tp's halves, held by the one being
    recomputed, of it outside). What is outside is divided by tp under sequence parallelism only.
    """
    scores = 0.0
    if recompute == "none" or (recompute == "full" and kernel == "unfused"):
        scores = _score_bytes(shape, sequence_length, kernel, element_bytes)
    dense = _block_bytes_per_token(shape, element_bytes, expert=False) + scores
    expert = _block_bytes_per_token(shape, element_bytes, expert=True) + scores
    dense_blocks = shape.layers - shape.expert_layers
    outside = outside_bytes_per_token(shape, element_bytes)
    if recompute == "full":
        working = max(dense if dense_blocks else 0.0, expert if shape.expert_layers else 0.0)
        inputs = float(shape.layers * element_bytes * shape.hidden)
        return inputs, inputs, working, outside
    return dense_blocks * dense + shape.expert_layers * expert, shape.layers * outside, 0.0, 0.0


def outside_bytes_per_token(shape: ModelShape, element: int) -> float:
    """Bytes of a block that tp does not divide by itself: inputs of both halves and of the norms, residual masks."""
    return shape.hidden * (element * (2 + shape.block_norms) + 2 * shape.dropout)


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
        visited = shape.experts_active * (2 * h + inner * shape.expert_ffn)  # dispatched input, product, weighted output
        feed_forward = element * (h + visited + shape.shared_experts * inner * shape.expert_ffn) + 4 * shape.experts
    else:
        feed_forward = element * (h + inner * shape.ffn)
    return attention + feed_forward + h * shape.dropout + element * shape.block_norms * h
