"""The ways of joining regions that are weighed, each by name, and who can run each.

A name stands for a family: what a user chooses between. Its free settings (bucket size, codec of deltas, fragments, delay,
outer optimizer) are its variants; `isthmus.planner.settle` takes one, on the layout at hand.
"""

from dataclasses import dataclass
from itertools import product

from isthmus.cost.quality import outer_for
from isthmus.plan import CodecName, Layout, LossBand, Strategy
from isthmus.planner.setting import Setting
from isthmus.workload import Axes

__all__ = ["Way", "joins", "lacks", "layout_of", "over_all", "readiness", "risk_words", "runs", "ways"]

LOCAL_STEPS = (10, 20, 50, 100, 200, 500)
EVERY_STEP_CODECS: tuple[CodecName, ...] = (
    "bf16", "int8", "int6", "int4", "int3", "int2", "sign", "topk", "topk-int4", "powersgd",
)  # fmt: skip
PIPELINES: dict[str, CodecName] = {"pipeline": "none", "pipeline-int8": "int8"}
DELTA_CODECS: tuple[CodecName, ...] = ("int8", "int4", "topk-int4")
FRAGMENTS = (1, 2, 4, 8, 16)
BUCKET_MIB = (25, 10, 5, 50, 100, 250)
"""The first is DDP's own."""

_CLASSES = (
    (0.0, "none"),
    (0.001, "very low"),
    (0.003, "low"),
    (0.007, "medium"),
    (0.015, "raised"),
    (0.03, "high"),
    (float("inf"), "very high"),
)
"""Words for the upper end of a loss band."""


@dataclass(frozen=True, slots=True)
class Way:
    """A family: its strategy by name, and every setting of it that is worth trying, plainest first.

    A variant with a delay has the least, 1: how long it must be is only known on a layout (`isthmus.planner.settle`).
    """

    strategy: Strategy
    variants: tuple[Strategy, ...]


def ways(setting: Setting) -> list[Way]:
    """Every way worth weighing on this fabric; on one region, only plain data parallelism.

    16-bit gradients need no bf16 codec, and are the plain wire format of `hierarchical`.
    """
    if setting.wan is None:
        alone = Strategy(name="one-region", kind="hierarchical")
        return [Way(alone, (alone,))]
    streams = setting.wan.streams
    rate = min(link.rate_bytes_per_s for link in setting.fabric.wan)
    plain = Strategy(name="hierarchical", kind="hierarchical", streams=streams, wan_rate_bytes_per_s=rate)
    found = [_bucketed(plain)]
    for codec in EVERY_STEP_CODECS:
        if codec != "bf16" or setting.workload.gradient_bytes > 2:
            found.append(_bucketed(plain.model_copy(update={"name": f"hierarchical-{codec}", "codec": codec})))
    found += [_local(setting, plain, steps, delayed) for steps, delayed in product(LOCAL_STEPS, (False, True))]
    for name, codec in PIPELINES.items():
        crossing = plain.model_copy(update={"name": name, "kind": "pipeline", "codec": codec})
        found.append(Way(crossing, (crossing,)))
    found += [_bucketed(Strategy(name=name, kind="sharded", streams=streams)) for name in ("sharded-zero1", "sharded-zero3")]
    return [*found, _bucketed(Strategy(name="flat", kind="flat", streams=streams))]


def _bucketed(strategy: Strategy) -> Way:
    return Way(strategy, tuple(strategy.model_copy(update={"bucket_bytes": size * 2**20}) for size in BUCKET_MIB))


def _local(setting: Setting, plain: Strategy, steps: int, delayed: bool) -> Way:
    outer, _ = outer_for(steps)
    apart = {"name": f"local-{steps}" + ("-delayed" if delayed else ""), "kind": "local-steps", "codec": "int8"}
    strategy = plain.model_copy(update=apart | {"inner_steps": steps, "delay_steps": int(delayed), "outer": outer})
    most = min(setting.workload.shape.layers, steps)
    pieces = [count for count in FRAGMENTS if count <= most] if delayed else [1]
    free = [{"codec": codec, "fragments": count} for codec, count in product(DELTA_CODECS, pieces)]
    return Way(strategy, tuple(strategy.model_copy(update=each) for each in free))


def layout_of(axes: Axes) -> Layout:
    """As the plan writes it."""
    return Layout(
        dp=axes.dp, tp=axes.tp, pp=axes.pp, cp=axes.cp, ep=axes.ep, zero=axes.zero,
        micro_batch=axes.micro_batch, recompute=axes.recompute != "none",
        virtual_stages=axes.virtual_stages, tp_overlap=axes.tp_overlap,
    )  # fmt: skip


def over_all(strategy: Strategy) -> bool:
    """Whether one copy of the training state spreads over all regions, instead of one in each."""
    return strategy.kind in ("sharded", "pipeline")


def joins(strategy: Strategy) -> bool:
    """Whether `isthmus.join` joins regions in this way; sharding over regions is priced, not run."""
    return strategy.kind != "sharded"


def runs(strategy: Strategy, layout: Layout, regions: int) -> bool:
    """Whether `isthmus.join` trains this whole: its strategy, and a layout that its runtime has.

    That is data parallelism, in shards (FSDP2: ZeRO 2 or 3) where the strategy is hierarchical or local steps; and a pipeline
    of one stage a region. Tensor, context and expert parallelism, ZeRO 1 and recomputation are the trainer's (Megatron,
    FSDP). Regions must be equal, which is left to the caller.
    """
    if not joins(strategy) or layout.tp * layout.cp * layout.ep > 1 or layout.recompute:
        return False
    if strategy.kind == "pipeline":
        return layout.pp == regions and layout.zero == 0
    return layout.pp == 1 and layout.zero in ((0,) if strategy.kind == "flat" else (0, 2, 3))


def readiness(strategy: Strategy, layout: Layout, regions: int) -> int:
    """0: isthmus runs it whole; 1: isthmus joins the regions, another trainer must bring the layout; 2: neither.

    A pipeline of more stages than regions is one trainer's over all GPUs: nothing is left for isthmus to join.
    """
    if runs(strategy, layout, regions):
        return 0
    return 1 if strategy.kind in ("flat", "hierarchical", "local-steps") else 2


def lacks(strategy: Strategy, layout: Layout, regions: int) -> str:
    """What keeps isthmus from running it whole, in words that follow its name."""
    if readiness(strategy, layout, regions) == 2 and strategy.kind == "sharded":
        return "isthmus does not run it over regions yet"
    return "isthmus does not run its layout yet"


def risk_words(strategy: Strategy, band: LossBand) -> str:
    """`low: gradients in int8 with error feedback; loss 0.0% to +0.2% (published)`."""
    word = next(name for limit, name in _CLASSES if band.high <= limit)
    return f"{word}: {_what(strategy)}; loss {band.low:+.1%} to {band.high:+.1%} ({band.basis})"


def _what(strategy: Strategy) -> str:
    if strategy.kind == "local-steps":
        late = f", corrected {strategy.delay_steps} late" if strategy.delay_steps else ""
        return f"regions drift for {strategy.inner_steps} steps{late}; needs a tuned outer optimizer"
    if strategy.codec == "none":
        return "the same sums as on one site"
    what = "activations" if strategy.kind == "pipeline" else "gradients"
    return f"{what} in {strategy.codec}" + (" with error feedback" if what == "gradients" else "")
