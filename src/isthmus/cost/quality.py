"""What joining regions may do to the loss: bands from published results and from our own runs, each with its source.

A band is the change of the final loss against the same tokens with every sum exact, as a share of that loss. Effects of a
strategy's parts (drift between syncs, late corrections, the codec) are added; the weakest basis names the whole.

Figures marked `recalled` were not opened again when this was written.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from math import log

from isthmus.plan import Basis, CodecName, LossBand, Outer, Strategy

__all__ = ["EXACT", "drift", "every_step_codec", "loss_band", "outer_for"]

EXACT = LossBand()
_BASES: tuple[Basis, ...] = ("exact", "published", "measured", "judgement")

_SMALL = "benchmarks/quality.py: 87 k parameters, 2 regions, 2,000 steps, 3 seeds, against fp32 with the same seed"

EVERY_STEP: dict[CodecName, LossBand] = {
    "none": EXACT,
    "bf16": LossBand(low=0.0, high=0.001, basis="judgement", source="one rounding of 2^-9; trainers reduce in bf16 every day"),
    "int8": LossBand(
        low=0.0, high=0.002, basis="published",
        source="8-bit gradients at no loss (Dettmers, arXiv 1511.04561; ZeRO++, arXiv 2306.10209; recalled)",
    ),
    "int4": LossBand(low=-0.0045, high=0.0063, basis="measured", source=f"+0.09% with a standard error of 0.54% ({_SMALL})"),
    "int3": LossBand(low=-0.005, high=0.014, basis="measured", source=f"+0.45%, one run; seeds scatter 0.9% ({_SMALL})"),
    "int2": LossBand(low=0.035, high=0.055, basis="measured", source=f"+4.5%, one run; seeds scatter 0.9% ({_SMALL})"),
    "sign": LossBand(low=0.17, high=0.19, basis="measured", source=f"+17.9%, one run, no warm-up ({_SMALL})"),
    "topk": LossBand(low=0.33, high=0.35, basis="measured", source=f"1% kept: +33.7%, one run, no warm-up ({_SMALL})"),
    "topk-int4": LossBand(low=0.33, high=0.36, basis="judgement", source=f"top-k's +33.7% and int4's band ({_SMALL})"),
}  # fmt: skip
"""With error feedback; codecs of between 8 and 4 bits are worked out from int8 and int4."""

_SCALING_PARAMETERS = (35e6, 90e6, 180e6, 335e6, 550e6, 1.3e9, 2.4e9)
_SCALING: dict[int, tuple[float, ...]] = {
    2: (0.007, 0.005, 0.002, 0.001, 0.001, 0.002, -0.001),
    4: (0.020, 0.015, 0.010, 0.009, 0.008, 0.005, 0.003),
    8: (0.039, 0.031, 0.023, 0.020, 0.017, 0.013, 0.011),
}
_SCALING_STEPS = 30
_PUBLISHED_STEPS = 100
"""From so many inner steps on nothing of our own was measured, and the rule is DiLoCo's (which uses H = 500; recalled)."""
_SCALING_SOURCE = "Scaling Laws for DiLoCo, arXiv 2503.09799, table 4 (H = 30, tuned outer Nesterov; recalled)"
"""Loss of DiLoCo over that of data parallelism, by replicas and parameters."""

_SMALL_PARAMETERS, _SMALL_DRIFT = 87e3, 0.021
_SPREAD = 0.002
_LONGER = 0.0035
_LONGER_SOURCE = "perplexity +2.9% from H = 50 to 1,000 with 8 workers (DiLoCo, arXiv 2311.08105; recalled)"
_LATE = 0.005
_LATE_SOURCE = "late by a whole window costs up to 0.5% (judgement, after Eager Updates, arXiv 2502.12996)"

_DELTAS: dict[CodecName, LossBand] = {
    "none": EXACT,
    "bf16": LossBand(
        low=0.0, high=0.0005, basis="published", source="16-bit deltas at no loss (OpenDiLoCo, arXiv 2407.07852; recalled)"
    ),
    "int8": LossBand(
        low=0.0, high=0.001, basis="published", source="8-bit deltas of a 10B model (INTELLECT-1, arXiv 2412.01152)"
    ),
    "int4": LossBand(
        low=0.0, high=0.002, basis="published", source="4-bit deltas at no loss (Streaming DiLoCo, arXiv 2501.18512)"
    ),
    "topk-int4": LossBand(
        low=0.0, high=0.005, basis="judgement",
        source="1-3% of the elements in 2 bits did no harm with error feedback (SparseLoCo, arXiv 2508.15706; recalled)",
    ),
}  # fmt: skip

_ACTIVATIONS: dict[CodecName, LossBand] = {
    "none": EXACT,
    "bf16": LossBand(low=0.0, high=0.001, basis="judgement", source="one rounding of 2^-9 an activation"),
    "int8": LossBand(
        low=0.0, high=0.005, basis="judgement",
        source="8-bit activations between stages did little harm in fine-tuning (Wang et al., arXiv 2206.01299; recalled)",
    ),
}  # fmt: skip


def loss_band(strategy: Strategy, parameters: float, regions: int) -> LossBand:
    """What `strategy` over `regions` may do to the loss of a model of `parameters`."""
    match strategy.kind:
        case "flat" | "sharded":
            return EXACT
        case "hierarchical":
            return every_step_codec(strategy.codec)
        case "pipeline":
            return _ACTIVATIONS.get(strategy.codec, _unknown(f"{strategy.codec} activations"))
        case "local-steps":
            return _local_steps(parameters, regions, strategy.inner_steps, strategy.delay_steps, strategy.codec)


@cache
def _local_steps(parameters: float, regions: int, inner_steps: int, delay_steps: int, codec: CodecName) -> LossBand:
    apart = drift(parameters, regions, inner_steps, delay_steps)
    return _sum([apart, _DELTAS.get(codec, _unknown(f"{codec} deltas"))])


@cache
def every_step_codec(codec: CodecName) -> LossBand:
    """Gradients coded in every step, with error feedback.

    Between 8 and 4 bits: what int4 showed, times (7 / L)^2, L = 2^(k-1) - 1 levels a side: the variance that rounding adds.
    """
    if codec in EVERY_STEP:
        return EVERY_STEP[codec]
    if codec in ("int5", "int6", "int7"):
        share, four = (7 / (2 ** (int(codec[3]) - 1) - 1)) ** 2, EVERY_STEP["int4"]
        eight = EVERY_STEP["int8"]
        return LossBand(
            low=four.low * share, high=eight.high + four.high * share, basis="judgement",
            source=f"int8's band and int4's x (7/L)^2 = {share:.2f}; {four.source}",
        )  # fmt: skip
    return _unknown(f"{codec} gradients")


def drift(parameters: float, regions: int, inner_steps: int, delay_steps: int) -> LossBand:
    """Regions that train apart for K = `inner_steps` and are corrected `delay_steps` = d late.

        low = c - s;   high = c + s + 0.35% ln(K / 30)  (K > 30)  + 0.5% d / K

    c = the published change at K = 30, read off the table by log parameters and log regions; s = 0.2% of scatter, or 60% of c
    where that is more. Models beyond the table count as its largest: it falls with size, and nothing is extrapolated.
    Below the table the line runs to our own 87 k parameter model (+2.1% at K = 20, from +1.2 to +3.3%).
    """
    centre = _published(parameters, regions)
    scatter = max(_SPREAD, 0.6 * abs(centre))
    longer = _LONGER * max(0.0, log(inner_steps / _SCALING_STEPS))
    late = _LATE * delay_steps / inner_steps
    sources = [_SCALING_SOURCE]
    sources += [f"below 35 M parameters: {_SMALL}"] if parameters < _SCALING_PARAMETERS[0] else []
    sources += [_LONGER_SOURCE] if longer else []
    sources += [_LATE_SOURCE] if late else []
    basis: Basis = "judgement" if late else "measured" if parameters < _SCALING_PARAMETERS[0] else "published"
    return LossBand(low=centre - scatter, high=max(0.0, centre + scatter + longer + late), basis=basis, source="; ".join(sources))


def outer_for(inner_steps: int) -> tuple[Outer, str]:
    """The outer optimizer whose band `drift` quotes, and who used it."""
    if inner_steps < _SCALING_STEPS:
        return Outer(lr=0.8, momentum=0.4, nesterov=True), "benchmarks/quality.py at K = 20"
    if inner_steps < _PUBLISHED_STEPS:
        return Outer(lr=1.0, momentum=0.7, nesterov=True), "benchmarks/quality.py at K = 50, the same over 2 and 3 regions"
    return Outer(lr=0.7, momentum=0.9, nesterov=True), "DiLoCo, arXiv 2311.08105"


def _published(parameters: float, regions: int) -> float:
    """The table of changes, linear in log parameters and log regions; ends are held."""
    counts = sorted(_SCALING)
    rows: list[float] = []
    for count in counts:
        small = _SMALL_DRIFT * _SCALING[count][0] / _SCALING[2][0]  # measured with two regions; others in the table's proportion
        rows.append(_line([_SMALL_PARAMETERS, *_SCALING_PARAMETERS], [small, *_SCALING[count]], parameters))
    return _line(counts, rows, regions)


def _line(at: Sequence[float], values: Sequence[float], where: float) -> float:
    """Linear in log `at` between the points, held beyond the ends."""
    if where <= at[0] or len(at) == 1:
        return values[0]
    if where >= at[-1]:
        return values[-1]
    upper = bisect_right(at, where)
    share = log(where / at[upper - 1]) / log(at[upper] / at[upper - 1])
    return values[upper - 1] + share * (values[upper] - values[upper - 1])


def _sum(parts: Sequence[LossBand]) -> LossBand:
    telling = [part for part in parts if part.basis != "exact"]
    if not telling:
        return EXACT
    weakest: Basis = "exact"
    for part in telling:
        if _BASES.index(part.basis) > _BASES.index(weakest):
            weakest = part.basis
    return LossBand(
        low=sum(part.low for part in telling),
        high=sum(part.high for part in telling),
        basis=weakest,
        source="; ".join(part.source for part in telling),
    )


@cache
def _unknown(what: str) -> LossBand:
    source = f"{what}: nothing published or measured, so up to 10% is assumed"
    return LossBand(low=0.0, high=0.10, basis="judgement", source=source)
