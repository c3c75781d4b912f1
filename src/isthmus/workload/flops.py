"""Floating-point operations of one token, forward and in training.

A multiply-add is two operations; additions of biases, norms, softmax and activations are left out (below 1%).
"""

from typing import Literal

from isthmus.workload.model import ModelShape

__all__ = ["AttentionCount", "Recompute", "attended_columns", "flop_per_token", "forward_flop_per_token"]

Recompute = Literal["none", "selective", "full"]
AttentionCount = Literal["full", "causal", "none"]


def flop_per_token(
    shape: ModelShape, sequence_length: int, recompute: Recompute = "none", attention: AttentionCount = "full"
) -> float:
    """Training operations of one token: forward once, backward twice, and what is computed again.

        F = 3 (2 N + A) + R,   A = 4 l q s

    N = matrix parameters a token meets, A = scores and their product with the values (q = heads head_dim, s =
    `sequence_length`, l = layers), R = 0, or A (`selective`: the attention product again), or the forward
    pass of all blocks (`full`; the output projection is not repeated). For GPT, `full` recomputation is the
    96 s l h^2 (1 + s/6h + V/16lh) of arXiv 2104.04473.

    `attention` says how A counts: `full` counts all s columns for every token, as PaLM (arXiv 2204.02311,
    appendix B) and Megatron do, and so belongs with every published MFU; it is the default because our MFU
    figures are theirs. `causal` counts the (s + 1) / 2 that a causal kernel computes. `none` leaves 6 N.
    Windowed layers see no more than their window. MTP blocks count (set `mtp_layers` to 0 for the model
    alone).
    """
    blocks, head = _forward_parts(shape, sequence_length, attention)
    scores = _attention_flop(shape, sequence_length, attention)
    again = {"none": 0.0, "selective": scores, "full": blocks}[recompute]
    return 3 * (blocks + head) + again


def forward_flop_per_token(
    shape: ModelShape, sequence_length: int, attention: AttentionCount = "full"
) -> float:
    """Operations of one token's forward pass, 2 N + A; symbols as in `flop_per_token`."""
    return sum(_forward_parts(shape, sequence_length, attention))


def _forward_parts(shape: ModelShape, sequence_length: int, attention: AttentionCount) -> tuple[float, float]:
    """Operations in the blocks and in the output projections (one more for each MTP depth)."""
    last = _expert_matrices(shape) if shape.experts else _feed_forward_matrices(shape, shape.ffn)
    matrices = (
        (shape.layers + shape.mtp_layers) * _attention_matrices(shape)
        + (shape.layers - shape.expert_layers) * _feed_forward_matrices(shape, shape.ffn)
        + shape.expert_layers * _expert_matrices(shape)
        + shape.mtp_layers * (last + 2 * shape.hidden**2)
    )
    head = 2.0 * shape.hidden * shape.vocabulary * (1 + shape.mtp_layers)
    return 2.0 * matrices + _attention_flop(shape, sequence_length, attention), head


def _attention_flop(shape: ModelShape, sequence_length: int, attention: AttentionCount) -> float:
    """Forward operations of scores and weighted values over all blocks, per token."""
    if attention == "none":
        return 0.0
    columns = _columns(sequence_length, sequence_length, attention)
    windowed = _columns(sequence_length, shape.window, attention) if shape.windowed_layers else 0.0
    whole = shape.layers + shape.mtp_layers - shape.windowed_layers
    width = shape.heads * (shape.key_dim + shape.head_dim)
    return 2.0 * width * (whole * columns + shape.windowed_layers * windowed)


def attended_columns(shape: ModelShape, sequence_length: int, attention: AttentionCount) -> float:
    """Columns of scores that a token's row has in the mean block, as `attention` counts them."""
    if attention == "none":
        return 0.0
    whole = _columns(sequence_length, sequence_length, attention)
    windowed = _columns(sequence_length, shape.window, attention) if shape.windowed_layers else 0.0
    return ((shape.layers - shape.windowed_layers) * whole + shape.windowed_layers * windowed) / shape.layers


def _columns(sequence_length: int, window: int, attention: AttentionCount) -> float:
    """Mean number of tokens that one token attends to, itself included."""
    seen = min(window, sequence_length)
    if attention == "full":
        return float(seen)
    # The first `seen` tokens see 1, 2, ..., seen; all later ones see `seen`.
    return (seen * (seen + 1) / 2 + (sequence_length - seen) * seen) / sequence_length


def _attention_matrices(shape: ModelShape) -> int:
    if shape.attention == "mla":
        queries = (
            shape.q_rank * (shape.hidden + shape.query_width)
            if shape.q_rank
            else shape.hidden * shape.query_width
        )
        latent = shape.hidden * (shape.kv_rank + shape.rope_dim)
        expanded = shape.kv_rank * shape.heads * (shape.nope_dim + shape.head_dim)
        return queries + latent + expanded + shape.heads * shape.head_dim * shape.hidden
    return 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)


def _feed_forward_matrices(shape: ModelShape, width: int) -> int:
    return (3 if shape.gated else 2) * shape.hidden * width


def _expert_matrices(shape: ModelShape) -> int:
    visited = shape.experts_active + shape.shared_experts
    routing = shape.hidden * (shape.experts + shape.shared_gate)
    return routing + visited * _feed_forward_matrices(shape, shape.expert_ffn)
