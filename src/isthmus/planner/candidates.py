"""Which strategies are weighed, with what risk for the loss, and which layouts each may take."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Literal

from isthmus.errors import InfeasibleError
from isthmus.plan import Candidate, Strategy
from isthmus.planner.setting import Setting
from isthmus.workload import Axes, Recompute, Workload, check_axes

__all__ = ["RISKS", "joins", "layouts", "over_all", "readiness", "risk", "runs", "strategies", "whole_batch"]

LOCAL_STEPS = (20, 100, 500)
DEGREES = (1, 2, 4, 8)
ZERO_STAGES: dict[str, tuple[Literal[0, 1, 2, 3], ...]] = {"sharded-zero3": (3,), "sharded-zero1": (1,)}
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")

RISKS = (
    "none: the same sums as on one site",
    "very low: gradients rounded to 16 bits between regions",
    "low: 8-bit gradients with error feedback",
    "medium: 4-bit gradients with error feedback; compare the loss on a short run",
    "raised: regions drift for 20 steps",
    "high: regions drift for 100 steps, or for 20 and are corrected late; needs a tuned outer optimizer",
    "very high: regions drift for 500 steps (DiLoCo, arXiv 2311.08105, began from a trained model), or for 100 and are "
    "corrected late",
    "extreme: regions drift for 500 steps and are corrected late",
)
"""What a strategy may do to the loss, rising; the place in this list is what candidates are compared by."""


def strategies(setting: Setting) -> list[Strategy]:
    """Every strategy worth weighing on this fabric; on one region, only plain data parallelism.

    16-bit gradients need no bf16 codec, and are the plain wire format of `hierarchical`.
    """
    if setting.wan is None:
        return [Strategy(name="one-region", kind="hierarchical")]
    streams = setting.wan.streams
    rate = min(link.rate_bytes_per_s for link in setting.fabric.wan)
    plain = Strategy(name="hierarchical", kind="hierarchical", streams=streams, wan_rate_bytes_per_s=rate)
    found = [Strategy(name="flat", kind="flat", streams=streams), plain]
    codecs: tuple[Literal["bf16", "int8", "int4"], ...] = ("bf16", "int8", "int4")
    for codec in codecs:
        if codec != "bf16" or setting.workload.gradient_bytes > 2:
            found.append(plain.model_copy(update={"name": f"hierarchical-{codec}", "codec": codec}))
    for steps, delayed in product(LOCAL_STEPS, (False, True)):
        name = f"local-{steps}" + ("-delayed" if delayed else "")
        # The delay itself is set where the sync's length is known, in predict; 1 marks it as delayed.
        found.append(
            Strategy(
                name=name,
                kind="local-steps",
                codec="int8",
                inner_steps=steps,
                delay_steps=int(delayed),
                streams=streams,
                wan_rate_bytes_per_s=rate,
            )
        )
    found += [Strategy(name=name, kind="sharded", streams=streams) for name in ZERO_STAGES]
    found.append(Strategy(name="pipeline", kind="pipeline", streams=streams))
    return found


def risk(strategy: Strategy) -> int:
    """Index into `RISKS`."""
    if strategy.kind == "local-steps":
        # A delayed correction meets parameters that have moved on: one step more risk than a blocking one.
        return 4 + sum(strategy.inner_steps > bound for bound in (20, 100)) + (strategy.delay_steps > 0)
    return {"none": 0, "bf16": 1, "int8": 2, "int4": 3}[strategy.codec]


def joins(strategy: Strategy) -> bool:
    """Whether `isthmus.join` joins regions in this way; sharding and pipelines over regions are priced, not run."""
    return strategy.kind in ("flat", "hierarchical", "local-steps")


def runs(candidate: Candidate) -> bool:
    """Whether `isthmus.join` trains this whole: its strategy, and a layout of plain data parallelism.

    The runtime keeps a full replica on each rank; model parallelism, ZeRO and recomputation are the trainer's
    (Megatron, FSDP). The candidate's regions must be equal, which `layouts` leaves to the caller.
    """
    layout = candidate.layout
    plain = layout.tp * layout.pp * layout.cp * layout.ep == 1 and layout.zero == 0 and not layout.recompute
    return joins(candidate.strategy) and plain


def readiness(candidate: Candidate) -> int:
    """0: isthmus runs it whole; 1: isthmus joins the regions, another trainer must bring the layout; 2: neither."""
    return 0 if runs(candidate) else 1 if joins(candidate.strategy) else 2


def over_all(strategy: Strategy) -> bool:
    """Whether one copy of the training state spreads over all regions, instead of one in each."""
    return strategy.kind in ("sharded", "pipeline")


def whole_batch(workload: Workload, axes: Axes) -> Workload:
    """`workload` with its batch rounded up to what `axes` divides; the padding is paid for as imbalance."""
    slots = axes.dp * axes.micro_batch
    if workload.sequences_per_step % slots == 0:
        return workload
    return replace(workload, sequences_per_step=ceil(workload.sequences_per_step / slots) * slots)


def layouts(setting: Setting, strategy: Strategy) -> Iterator[Axes]:
    """Layouts that `strategy` may take: tp inside a node, pp inside a region (over all for a pipeline), dp
    the rest.

    For strategies with a replica in each region, `Axes.dp` counts all regions' replicas; ZeRO stays inside a
    region.
    """
    stages = _stage_counts(setting, strategy)
    zeros = ZERO_STAGES.get(strategy.name, (0, 1) if strategy.kind == "pipeline" else (0, 1, 3))
    for pp, tp, zero, micro, recompute in product(stages, DEGREES, zeros, (1, 2, 4, 8, 16), RECOMPUTE):
        if tp > setting.node_gpus or any(gpus % _grid(setting, strategy, tp, pp) for gpus in setting.region_gpus):
            continue
        axes = Axes(dp=setting.gpus // (tp * pp), tp=tp, pp=pp, zero=zero, micro_batch=micro, recompute=recompute)
        if axes.dp * micro > setting.workload.sequences_per_step:
            continue
        try:
            check_axes(whole_batch(setting.workload, axes), axes)
        except InfeasibleError:
            continue
        yield axes


def _stage_counts(setting: Setting, strategy: Strategy) -> list[int]:
    layers, smallest = setting.workload.shape.layers, min(setting.region_gpus)
    if strategy.name == "sharded-zero3":
        return [1]
    inside = [pp for pp in range(1, min(layers, smallest, 64) + 1) if smallest % pp == 0]
    if strategy.kind != "pipeline":
        return inside
    if len(set(setting.region_gpus)) > 1:
        return []
    return [pp * setting.regions for pp in inside if pp * setting.regions <= layers]


def _grid(setting: Setting, strategy: Strategy, tp: int, pp: int) -> int:
    """GPUs of one region's part of one replica."""
    return tp * pp // setting.regions if strategy.kind == "pipeline" else tp * pp
