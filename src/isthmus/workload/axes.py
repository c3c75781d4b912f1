"""Degrees of the parallel axes, and what each of them must divide."""

from dataclasses import dataclass
from typing import Literal

from isthmus.errors import InfeasibleError
from isthmus.workload.flops import Recompute
from isthmus.workload.model import ModelShape, Workload

__all__ = ["Axes", "check_axes", "expert_blocks", "micro_batches", "stage_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """How one model is spread over dp x tp x pp x cp GPUs.

    Attributes:
        dp: Data-parallel replicas.
        tp: Tensor parallelism, with sequence parallelism wherever it is more than 1.
        pp: Pipeline stages, one-forward-one-backward.
        cp: Context parallelism; each rank holds 1/cp of every sequence.
        ep: Expert parallelism, carved out of dp x cp.
        zero: ZeRO stage over dp x cp: 1 shards optimizer and master weights, 2 gradients too, 3 weights too.
        micro_batch: Sequences of one forward pass of one replica.
        recompute: What the backward pass computes again.
        virtual_stages: Chunks of blocks that a stage holds under the interleaved schedule; 1 is plain 1F1B.
        tp_overlap: tp's collectives are cut by rank and run beside the matrix products.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: Literal[0, 1, 2, 3] = 0
    micro_batch: int = 1
    recompute: Recompute = "none"
    virtual_stages: int = 1
    tp_overlap: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the layout; ep takes none of its own."""
        return self.dp * self.tp * self.pp * self.cp


def check_axes(workload: Workload, axes: Axes) -> None:
    """Accept `axes` for `workload`, or name what forbids them.

    Raises:
        InfeasibleError: A degree does not divide what it splits; `bind` names both.
    """
    shape = workload.shape
    degrees = {
        "dp": axes.dp,
        "tp": axes.tp,
        "pp": axes.pp,
        "cp": axes.cp,
        "ep": axes.ep,
        "micro_batch": axes.micro_batch,
    }
    for name, degree in degrees.items():
        if degree < 1:
            raise InfeasibleError(f"{name} is {degree}", f"{name} >= 1")
    if axes.pp > shape.layers:
        raise InfeasibleError(f"{axes.pp} stages for {shape.layers} layers", "pp <= layers")
    if axes.ep > 1 and not shape.experts:
        raise InfeasibleError(f"ep {axes.ep} for a model without experts", "ep = 1")
    if axes.virtual_stages > 1:
        _check_interleaving(workload, axes)
    splits = (
        (shape.heads, axes.tp, "heads", "tp"),
        (workload.sequence_length, axes.cp * axes.tp, "tokens of a sequence", "cp x tp"),
        (workload.sequences_per_step, axes.dp * axes.micro_batch, "sequences of a step", "dp x micro_batch"),
        (axes.dp * axes.cp, axes.ep, "ranks of dp x cp", "ep"),
        (shape.experts, axes.ep, "experts", "ep"),
    )
    for whole, parts, what, degree in splits:
        if whole % parts:
            raise InfeasibleError(
                f"{whole} {what} cannot be split {parts} ways", f"{degree} divides the {what}"
            )


def _check_interleaving(workload: Workload, axes: Axes) -> None:
    """As Megatron asks: equal chunks, more than one stage, and micro-batches in whole rounds of the stages."""
    layers, chunks = workload.shape.layers, axes.pp * axes.virtual_stages
    if axes.pp == 1:
        raise InfeasibleError(f"{axes.virtual_stages} virtual stages without a pipeline", "pp > 1")
    if layers % chunks:
        raise InfeasibleError(f"{layers} layers cannot be split {chunks} ways", "pp x virtual_stages divides the layers")
    rounds = micro_batches(workload, axes)
    if rounds % axes.pp:
        raise InfeasibleError(f"{rounds} micro-batches for {axes.pp} stages", "pp divides the micro-batches")


def micro_batches(workload: Workload, axes: Axes) -> int:
    """Forward passes of one replica in one optimizer step."""
    return workload.sequences_per_step // (axes.dp * axes.micro_batch)


def stage_blocks(shape: ModelShape, pp: int) -> int:
    """Blocks of the fullest stage."""
    return -(-shape.layers // pp)


def expert_blocks(shape: ModelShape, pp: int, last: bool) -> int:
    """Expert blocks of the first or the last stage; a model's dense blocks come first."""
    blocks = stage_blocks(shape, pp)
    if not shape.experts:
        return 0
    return min(blocks, shape.expert_layers) if last else max(0, blocks - shape.dense_layers)
