"""A training script for isthmus: the same file for every plan, on a laptop, in the wind tunnel and in two data centres.

    isthmus run plan.yaml --here shenzhen=2,shanghai=2 -- examples/train.py
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import isthmus

WIDTH, LENGTH, STEPS = 64, 32, int(sys.argv[1]) if len(sys.argv) > 1 else 100


class Mix(nn.Module):
    """A residual block: each byte sees those before it, then itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(WIDTH), nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width)."""
        seen = nn.functional.linear(self.norm(x).transpose(1, 2), self.tokens.weight.tril(), self.tokens.bias)
        return x + self.channels(nn.functional.gelu(seen.transpose(1, 2)))


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next byte, nats."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


text = torch.tensor(list(Path(torch.__file__).read_bytes()))  # any text will do: torch's own source
windows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
dataset = TensorDataset(windows[:, :-1], windows[:, 1:])

with isthmus.join() as cluster:
    blocks = nn.Sequential(nn.Embedding(256, WIDTH), Mix(), Mix(), nn.Linear(WIDTH, 256))
    model = cluster.parallelize(blocks.to(cluster.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with cluster.sync(model, optimizer):
        for batch in cluster.batches(dataset, batch_size=4, steps=STEPS):
            loss = cluster.step(model, batch, loss_fn)
            optimizer.step()
            optimizer.zero_grad()
    print(f"{cluster.region} rank {cluster.rank}: loss {float(loss):.3f}")
