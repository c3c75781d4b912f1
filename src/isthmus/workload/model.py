"""A workload as every other room sees it: the model's shape and one step's batch, no files left to read."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Attention", "ModelShape", "Precision", "Workload"]

Attention = Literal["mha-gqa", "mla"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer.

    Attributes:
        name: Preset name, or the `model_type` of the config it came from.
        layers: Transformer blocks, dense and expert ones together.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads (equal to `heads` without grouping).
        head_dim: Width of one head (of the value head under MLA).
        ffn: Inner width of a dense feed-forward block.
        gated: Feed-forward has three matrices (SwiGLU) instead of two.
        vocabulary: Rows of the embedding.
        tied: Output projection shares the embedding.
        positions: Rows of a learned position table; 0 where positions are computed.
        biases: Every linear layer of a block carries a bias (GPT-2/3); router and output projection never do.
        qkv_biases: Only the query, key and value projections carry biases (Qwen2).
        qk_norm: Queries and keys are normalised per head, by two vectors of `head_dim` (Qwen3).
        block_norms: Normalisations of one block; 4 where they also follow the sub-blocks (Gemma 2).
        norm_tensors: Vectors of `hidden` per normalisation: 2 for LayerNorm, 1 for RMSNorm.
        experts: Routed experts of an expert layer; 0 for a dense model.
        experts_active: Routed experts that one token visits.
        expert_ffn: Inner width of one routed or shared expert.
        shared_experts: Experts that every token visits.
        shared_gate: A vector of `hidden` gates the shared experts (Qwen2-MoE).
        router_bias: One load-balancing bias per routed expert, kept in the checkpoint (DeepSeek-V3).
        dense_layers: Layers without experts in an expert model; they are taken to be the first ones.
        attention: Attention family; `mla` uses the four ranks below.
        q_rank: Low rank of the query projection (MLA); 0 where queries are projected directly.
        kv_rank: Low rank of the compressed keys and values (MLA).
        rope_dim: Per-head width that carries positions (MLA).
        nope_dim: Per-head query/key width without positions (MLA).
        window: Tokens that a windowed layer looks back on; 0 where every layer sees all.
        windowed_layers: Layers with that window.
        dropout: Dropout masks are kept for the backward pass (GPT-2/3).
        mtp_layers: Multi-token-prediction blocks; trained, but counted apart from the model (DeepSeek-V3).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocabulary: int
    tied: bool
    positions: int = 0
    biases: bool = False
    qkv_biases: bool = False
    qk_norm: bool = False
    block_norms: int = 2
    norm_tensors: int = 1
    experts: int = 0
    experts_active: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    attention: Attention = "mha-gqa"
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    window: int = 0
    windowed_layers: int = 0
    dropout: bool = False
    mtp_layers: int = 0

    @property
    def expert_layers(self) -> int:
        """Blocks whose feed-forward is a set of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def query_width(self) -> int:
        """Width of all queries of one token: heads times the width of one query (and of one key)."""
        return self.heads * self.key_dim

    @property
    def key_dim(self) -> int:
        """Width of one query or key head."""
        return self.nope_dim + self.rope_dim if self.attention == "mla" else self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and what one optimizer step feeds it.

    Attributes:
        name: As the user calls it.
        shape: The model.
        sequence_length: Tokens in one sequence.
        sequences_per_step: Global batch, in sequences.
        precision: Number format of the matrix products.
        gradient_bytes: Bytes per gradient element on the wire (2 for bf16, 4 for fp32).
        mfu: Model FLOP utilisation the user states, or None to use the sourced default for the GPU.
        source: Where the shape and the batch come from.
        assumed: Figures the input did not state and isthmus chose, in words, to be shown with every result.
    """

    name: str
    shape: ModelShape
    sequence_length: int
    sequences_per_step: int
    precision: Precision
    gradient_bytes: int
    mfu: float | None
    source: str
    assumed: tuple[str, ...] = ()

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all GPUs."""
        return self.sequence_length * self.sequences_per_step
