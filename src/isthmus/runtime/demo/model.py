"""The reference model: a small byte-level GPT, the shape of the workload presets `tiny` and `small`.

Pre-norm blocks with biased LayerNorm and Linear layers, learned positions, GELU, an output head of its own without bias.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["PRESETS", "ByteGPT", "Shape", "next_byte_loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a `ByteGPT`; `positions` is also the sequence length it is trained on."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    positions: int
    vocabulary: int = 256


PRESETS = {
    "tiny": Shape(layers=4, hidden=128, heads=4, ffn=512, positions=128),
    "small": Shape(layers=6, hidden=256, heads=8, ffn=1024, positions=128),
    # For tests; and for `make quality`: 2,000 steps on one CPU core in about a minute.
    "mini": Shape(layers=2, hidden=96, heads=4, ffn=384, positions=64),
    "micro": Shape(layers=1, hidden=64, heads=4, ffn=256, positions=64),
}


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_in = nn.LayerNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.norm_mid = nn.LayerNorm(shape.hidden)
        self.up = nn.Linear(shape.hidden, shape.ffn)
        self.down = nn.Linear(shape.ffn, shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm_in(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.norm_mid(x))))


class _Entry(nn.Module):
    """Text to vectors: the first block of a pipeline. Holds the model's own modules."""

    def __init__(self, embed: nn.Embedding, position: nn.Embedding) -> None:
        super().__init__()
        self.embed, self.position = embed, position

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.embed(text) + self.position.weight[: text.shape[1]]


class ByteGPT(nn.Module):
    """Next-byte logits, shape (batch, length, vocabulary), for bytes of shape (batch, length), int64."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocabulary, shape.hidden)
        self.position = nn.Embedding(shape.positions, shape.hidden)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # GPT-2's choices; residual branches start small so that depth does not raise the variance.
                deep = (
                    (2 * shape.layers) ** -0.5 if module in [b.out for b in self.blocks] + [b.down for b in self.blocks] else 1.0
                )
                nn.init.normal_(module.weight, std=0.02 * deep)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = self.embed(text) + self.position.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def pipeline_blocks(self) -> list[nn.Module]:
        """The model as modules applied one after the other, for a pipeline over regions."""
        return [_Entry(self.embed, self.position), *self.blocks, nn.Sequential(self.norm, self.head)]


def next_byte_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats per byte; logits (batch, length, vocabulary), targets (batch, length)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
