"""The weight matrices of a model, by shape: what low-rank codecs work on."""

from isthmus.workload.model import ModelShape

__all__ = ["weight_matrices"]


def weight_matrices(shape: ModelShape) -> list[tuple[int, int, int]]:
    """(rows, columns, how many) of every kind of matrix, as torch's Linear and Embedding lay them out.

    Multi-token-prediction blocks, biases, norms and routers' biases are left out: they are not 1% of any preset.
    """
    hidden, dense = shape.hidden, shape.layers - shape.expert_layers
    found = [(shape.vocabulary, hidden, 1 if shape.tied else 2)]
    found += [(rows, columns, shape.layers) for rows, columns in _attention(shape)]
    found += _feed_forward(hidden, shape.ffn, shape.gated, dense)
    if shape.experts:
        found.append((shape.experts, hidden, shape.expert_layers))
        each = shape.experts + shape.shared_experts
        found += _feed_forward(hidden, shape.expert_ffn, shape.gated, shape.expert_layers * each)
    return [each for each in found if each[2] > 0]


def _feed_forward(hidden: int, ffn: int, gated: bool, count: int) -> list[tuple[int, int, int]]:
    return [(ffn, hidden, count * (2 if gated else 1)), (hidden, ffn, count)]


def _attention(shape: ModelShape) -> list[tuple[int, int]]:
    hidden, wide = shape.hidden, shape.heads * shape.head_dim
    if shape.attention != "mla":
        narrow = shape.kv_heads * shape.head_dim
        return [(wide, hidden), (narrow, hidden), (narrow, hidden), (hidden, wide)]
    query = shape.heads * (shape.nope_dim + shape.rope_dim)
    queries = [(shape.q_rank, hidden), (query, shape.q_rank)] if shape.q_rank else [(query, hidden)]
    return [
        *queries,
        (shape.kv_rank + shape.rope_dim, hidden),
        (shape.heads * (shape.nope_dim + shape.head_dim), shape.kv_rank),
        (hidden, wide),
    ]
