"""A strategy on a layout: what its step takes, what it needs of memory, what it may do to the loss."""

from dataclasses import dataclass

from isthmus.cost.quality import loss_band
from isthmus.plan import Candidate, Layout, LossBand, Prediction, Strategy
from isthmus.planner.crossing import Crossing, warm_up_extra
from isthmus.planner.feasibility import added_memory_bytes
from isthmus.planner.predict import Placed
from isthmus.planner.setting import Setting
from isthmus.planner.settle import settle
from isthmus.planner.ways import Way, risk_words
from isthmus.workload import Axes

__all__ = ["Priced", "layout_of", "price", "to_candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A strategy with its settings chosen, on one layout; `step_s` holds what of the WAN is seen."""

    strategy: Strategy
    placed: Placed
    crossing: Crossing
    memory_bytes: float
    loss: LossBand

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.placed.compute.total_s + self.crossing.exposed_s


def price(setting: Setting, way: Way, placed: Placed, loss_max: float | None = None) -> Priced:
    """`way` on the layout of `placed`. Its memory may exceed what there is: that is the caller's to see."""
    if setting.wan is None:
        none = Crossing(exposed_s=0.0, wan_bytes=0.0, words=lambda: "one region, nothing crosses a WAN")
        return Priced(strategy=way.strategy, placed=placed, crossing=none, memory_bytes=placed.memory_bytes, loss=LossBand())
    chosen, crossing = settle(setting, setting.wan, way, placed.axes, placed.compute, loss_max)
    return Priced(
        strategy=chosen,
        placed=placed,
        crossing=crossing,
        memory_bytes=placed.memory_bytes + _added(setting, chosen, placed),
        loss=loss_band(chosen, setting.parameters, setting.regions),
    )


def _added(setting: Setting, strategy: Strategy, placed: Placed) -> float:
    """Beyond the replica: activations that a pipeline keeps in flight for the WAN, and what error feedback owes in fp32.

    The outer state of local steps, and what their codecs owe, are kept in host memory.
    """
    assert setting.wan is not None
    if strategy.kind == "pipeline":
        extra = warm_up_extra(setting, strategy, placed.axes, placed.compute)
        return added_memory_bytes(setting, placed.axes, extra)
    if strategy.kind == "hierarchical" and strategy.codec != "none":
        return 4.0 * setting.parameters / min(setting.region_gpus)
    return 0.0


def to_candidate(setting: Setting, priced: Priced) -> Candidate:
    """As the plan writes it."""
    compute, step = priced.placed.compute, priced.step_s
    prediction = Prediction(
        step_s=step,
        compute_s=compute.busy_s,
        exposed_s=priced.crossing.exposed_s,
        utilisation=compute.total_s / step,
        tokens_per_s=setting.workload.tokens_per_step / step,
        wan_bytes_per_step=priced.crossing.wan_bytes / (setting.wan.payload_share if setting.wan else 1.0),
        memory_bytes_per_gpu=priced.memory_bytes,
        formula=f"{compute.words()}; {priced.crossing.words()}",
    )
    return Candidate(
        strategy=priced.strategy,
        layout=layout_of(priced.placed.axes),
        prediction=prediction,
        risk=risk_words(priced.strategy, priced.loss),
        loss=priced.loss,
    )


def layout_of(axes: Axes) -> Layout:
    """As the plan writes it."""
    return Layout(
        dp=axes.dp, tp=axes.tp, pp=axes.pp, cp=axes.cp, ep=axes.ep, zero=axes.zero,
        micro_batch=axes.micro_batch, recompute=axes.recompute != "none",
    )  # fmt: skip
