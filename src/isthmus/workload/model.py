"""A workload as every other room sees it: the model's shape and one step's batch, with no files left to read."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Attention", "ModelShape", "Workload"]

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
        biases: Linear layers carry biases (GPT-2/3).
        norm_tensors: Vectors of `hidden` per normalisation: 2 for LayerNorm, 1 for RMSNorm.
        experts: Routed experts of an expert layer; 0 for a dense model.
        experts_active: Routed experts that one token visits.
        expert_ffn: Inner width of one routed or shared expert.
        shared_experts: Experts that every token visits.
        dense_layers: Leading layers without experts in an expert model.
        attention: Attention family; `mla` uses the four ranks below.
        q_rank: Low rank of the query projection (MLA).
        kv_rank: Low rank of the compressed keys and values (MLA).
        rope_dim: Per-head width that carries positions (MLA).
        nope_dim: Per-head query/key width without positions (MLA).
        extra_parameters: Parameters outside the blocks above (a multi-token-prediction head), and counted apart.
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
    norm_tensors: int = 1
    experts: int = 0
    experts_active: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    attention: Attention = "mha-gqa"
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    extra_parameters: int = 0


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
        source: Where the shape comes from.
    """

    name: str
    shape: ModelShape
    sequence_length: int
    sequences_per_step: int
    precision: Precision
    gradient_bytes: int
    mfu: float | None
    source: str

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all GPUs."""
        return self.sequence_length * self.sequences_per_step
