"""The reference training script: a small byte-level GPT on Python's own source, written as users write theirs.

python -m isthmus.runtime.demo.train --steps 50                     # alone, on this machine
isthmus try fabric.yaml                                             # the same, over emulated regions
"""

import argparse
import math
import sys

import torch
import torch.distributed as dist

import isthmus
from isthmus.errors import InputError
from isthmus.runtime.cluster import Cluster
from isthmus.runtime.demo.data import TextWindows, read_corpus
from isthmus.runtime.demo.model import PRESETS, ByteGPT, next_byte_loss

__all__ = ["main", "train"]

EVALUATION_BATCH = 32


def train(options: argparse.Namespace) -> None:
    """Train as `options` (from `parse_options`) say; progress on stderr, measurements where ISTHMUS_METRICS points."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    shape = PRESETS[options.preset]
    corpus = read_corpus()
    dataset, held_out = TextWindows(corpus.train, shape.positions), TextWindows(corpus.held_out, shape.positions)
    with isthmus.join() as cluster:
        model = cluster.parallelize(ByteGPT(shape))
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, options.steps))
        with cluster.sync(model, optimizer, also=[schedule], checkpoints=options.checkpoints):
            for batch in cluster.batches(dataset, options.batch, steps=options.steps, seed=options.seed):
                counted = cluster.mode != "off"
                loss = cluster.step(model, batch, next_byte_loss)
                cluster.clip_gradients(model, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if counted and options.checkpoint_every and cluster.trained_steps % options.checkpoint_every == 0:
                    cluster.checkpoint()
                if counted and options.eval_every and cluster.trained_steps % options.eval_every == 0:
                    report(cluster, float(loss), held_out_loss(cluster, model, held_out, options.eval_windows))


def learning_rate(step: int, steps: int) -> float:
    """Factor on the learning rate: up over the first 2% (at least 20 steps), then a cosine down to a tenth at `steps`."""
    warmup = max(20, steps // 50)
    if step < warmup:
        return (step + 1) / warmup
    through = 1.0 if step >= steps else (step - warmup) / (steps - warmup)
    return 0.55 + 0.45 * math.cos(math.pi * through)


def held_out_loss(cluster: Cluster, model: torch.nn.Module, data: TextWindows, windows: int) -> float:
    """Mean loss, nats per byte, over the first `windows` held-out windows, shared among this region's ranks."""
    module = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    rank, ranks = cluster.environment.rank, cluster.environment.world_size
    indices = range(rank, min(windows, len(data)), ranks)
    total = torch.zeros(2, dtype=torch.float64)
    with cluster.evaluation():
        for start in range(0, len(indices), EVALUATION_BATCH):
            pairs = [data[index] for index in indices[start : start + EVALUATION_BATCH]]
            inputs, targets = (torch.stack(part) for part in zip(*pairs, strict=True))
            total += torch.tensor([float(next_byte_loss(module(inputs), targets)) * len(pairs), len(pairs)])
        if ranks > 1:
            dist.all_reduce(total)
    return float(total[0] / total[1])


def report(cluster: Cluster, loss: float, held_out: float) -> None:
    """Write the evaluation to the metrics, and one line to stderr from the first rank."""
    cluster.record_evaluation(held_out)
    if cluster.rank == 0:
        print(
            f"step {cluster.trained_steps}: training {loss:.4f}, held-out {held_out:.4f}",
            file=sys.stderr,
            flush=True,
        )


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m isthmus.runtime.demo.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--steps", type=int, default=100, help="training steps, and the span of the learning rate's cosine")
    parser.add_argument("--batch", type=int, default=8, help="sequences a rank and step")
    parser.add_argument("--eval-every", type=int, default=0, help="steps between evaluations; 0 never")
    parser.add_argument("--eval-windows", type=int, default=128, help="held-out windows of an evaluation")
    parser.add_argument("--checkpoints", help="folder to go on from and to write to")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0 never")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args(arguments)


def main() -> None:
    """Run from the command line; errors a user can act on end with exit 2."""
    try:
        train(parse_options())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
