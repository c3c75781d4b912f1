"""Parameter counts in closed form, exact to the last bias, for the families that `ModelShape` describes."""

from isthmus.workload.model import ModelShape

__all__ = [
    "active_parameter_count",
    "attention_parameters",
    "embedding_parameters",
    "feed_forward_parameters",
    "mtp_parameter_count",
    "parameter_count",
    "routed_expert_parameters",
]


def parameter_count(shape: ModelShape) -> int:
    """Parameters of the model, without its multi-token-prediction blocks.

        N = embeddings + sum over blocks (attention + feed-forward or experts + norms) + final norm

    Embeddings are the token table, the learned positions and, untied, the output projection. DeepSeek counts
    its 671B the same way: the MTP block (`mtp_parameter_count`) stands apart.
    """
    experts = shape.expert_layers * (_expert_layer(shape) + shape.experts * routed_expert_parameters(shape))
    return _outside_experts(shape) + experts


def active_parameter_count(shape: ModelShape) -> int:
    """Parameters that one token meets: `parameter_count` with `experts_active` routed experts a layer.

    Both embedding matrices count whole, as in Mixtral's 12.9B (arXiv 2401.04088). A token reads one row of
    the first only, so DeepSeek leaves the token table out of its 36.6B and counts the output head
    (README_WEIGHTS.md).
    """
    experts = shape.expert_layers * (
        _expert_layer(shape) + shape.experts_active * routed_expert_parameters(shape)
    )
    return _outside_experts(shape) + experts


def mtp_parameter_count(shape: ModelShape) -> int:
    """Parameters that multi-token prediction adds; it shares both embeddings with the model.

    Each depth is one block of the model's last kind, a 2h x h projection and three norms (of the two inputs
    and of the output). Source: arXiv 2412.19437, section 2.2, and the tensors of the public checkpoint.
    """
    block = attention_parameters(shape) + block_norm_parameters(shape)
    if shape.experts:
        block += _expert_layer(shape) + shape.experts * routed_expert_parameters(shape)
    else:
        block += feed_forward_parameters(shape, shape.ffn)
    return shape.mtp_layers * (block + 2 * shape.hidden**2 + 3 * shape.norm_tensors * shape.hidden)


def attention_parameters(shape: ModelShape) -> int:
    """Parameters of one attention, its inner norms included.

    Grouped queries: h q + 2 h k + q h, with q = heads head_dim and k = kv_heads head_dim. MLA (arXiv
    2405.04434, section 2.1): queries through q_rank, keys and values through kv_rank, each low rank with its
    own RMSNorm.
    """
    if shape.attention == "mla":
        return _mla_parameters(shape)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrices = 2 * shape.hidden * query + 2 * shape.hidden * key
    biases = (query + 2 * key) * (shape.biases or shape.qkv_biases) + shape.hidden * shape.biases
    return matrices + biases + 2 * shape.head_dim * shape.qk_norm


def feed_forward_parameters(shape: ModelShape, width: int) -> int:
    """Parameters of one feed-forward of inner `width`: 3 matrices when gated, else 2, and their biases."""
    inner = 2 if shape.gated else 1
    return (inner + 1) * shape.hidden * width + (inner * width + shape.hidden) * shape.biases


def routed_expert_parameters(shape: ModelShape) -> int:
    """Parameters of one routed expert."""
    return feed_forward_parameters(shape, shape.expert_ffn)


def embedding_parameters(shape: ModelShape) -> int:
    """Token table, learned positions and, when untied, the output projection (which has no bias)."""
    return shape.hidden * (shape.vocabulary * (1 if shape.tied else 2) + shape.positions)


def block_norm_parameters(shape: ModelShape) -> int:
    """Parameters of the normalisations of one block over the residual stream."""
    return shape.block_norms * shape.norm_tensors * shape.hidden


def dense_block_parameters(shape: ModelShape) -> int:
    """Parameters of one block without experts."""
    return (
        attention_parameters(shape) + block_norm_parameters(shape) + feed_forward_parameters(shape, shape.ffn)
    )


def expert_block_shared_parameters(shape: ModelShape) -> int:
    """Parameters of one expert block outside its routed experts: what expert parallelism does not divide."""
    return attention_parameters(shape) + block_norm_parameters(shape) + _expert_layer(shape)


def _outside_experts(shape: ModelShape) -> int:
    dense = (shape.layers - shape.expert_layers) * feed_forward_parameters(shape, shape.ffn)
    every = shape.layers * (attention_parameters(shape) + block_norm_parameters(shape))
    return embedding_parameters(shape) + every + dense + shape.norm_tensors * shape.hidden


def _expert_layer(shape: ModelShape) -> int:
    """Router and shared experts of one expert layer."""
    router = shape.hidden * shape.experts + shape.experts * shape.router_bias
    gate = shape.hidden * shape.shared_gate
    return router + gate + shape.shared_experts * feed_forward_parameters(shape, shape.expert_ffn)


def _mla_parameters(shape: ModelShape) -> int:
    compressed = shape.q_rank * (shape.hidden + 1 + shape.query_width)
    queries = compressed if shape.q_rank else shape.hidden * shape.query_width
    latent = shape.hidden * (shape.kv_rank + shape.rope_dim) + shape.kv_rank
    expanded = shape.kv_rank * shape.heads * (shape.nope_dim + shape.head_dim)
    return queries + latent + expanded + shape.heads * shape.head_dim * shape.hidden
