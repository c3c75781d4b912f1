"""A strategy on a layout: what its step takes, what it needs of memory, what it may do to the loss."""

from dataclasses import dataclass

from isthmus.cost.beside import Beside, checkpoint_s, data_bytes_per_s, stopped_share, waiting_s
from isthmus.cost.efficiency import CHECKPOINT_EVERY
from isthmus.cost.quality import loss_band
from isthmus.plan import Candidate, LossBand, Prediction, Strategy
from isthmus.planner.band import step_band
from isthmus.planner.crossing import Crossing, warm_up_extra
from isthmus.planner.feasibility import added_memory_bytes
from isthmus.planner.predict import Placed
from isthmus.planner.setting import Setting
from isthmus.planner.settle import settle
from isthmus.planner.ways import Way, layout_of, over_all, risk_words
from isthmus.units import show_bytes, show_seconds

__all__ = ["Priced", "price", "to_candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A strategy with its settings chosen, on one layout; `step_s` holds what of the WAN is seen, and what comes beside."""

    strategy: Strategy
    placed: Placed
    crossing: Crossing
    memory_bytes: float
    loss: LossBand
    beside: Beside

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.placed.compute.total_s + self.crossing.exposed_s + self.beside.total_s


def price(setting: Setting, way: Way, placed: Placed, loss_max: float | None = None) -> Priced:
    """`way` on the layout of `placed`. Its memory may exceed what there is: that is the caller's to see."""
    if setting.wan is None:
        none = Crossing(exposed_s=0.0, wan_bytes=0.0, words=lambda: "one region, nothing crosses a WAN")
        return Priced(
            strategy=way.strategy, placed=placed, crossing=none, memory_bytes=placed.memory_bytes, loss=LossBand(),
            beside=_beside(setting, way.strategy, placed, none),
        )  # fmt: skip
    chosen, crossing = settle(setting, setting.wan, way, placed.axes, placed.compute, loss_max)
    return Priced(
        strategy=chosen,
        placed=placed,
        crossing=crossing,
        memory_bytes=placed.memory_bytes + _added(setting, chosen, placed),
        loss=loss_band(chosen, setting.parameters, setting.regions),
        beside=_beside(setting, chosen, placed, crossing),
    )


def _beside(setting: Setting, strategy: Strategy, placed: Placed, crossing: Crossing) -> Beside:
    step = placed.compute.total_s + crossing.exposed_s
    holders = setting.gpus if over_all(strategy) else min(setting.region_gpus)
    return Beside(
        waiting_s=waiting_s(step, setting.regions, strategy.inner_steps, strategy.delay_steps),
        # Gradients are not kept, and a replica is written once, by all its ranks together.
        checkpoint_s=checkpoint_s(setting.kept_bytes / holders, setting.host_bytes_per_s, step),
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
    compute, step, beside = priced.placed.compute, priced.step_s, priced.beside
    band = step_band(setting, priced.strategy, priced.placed, priced.crossing, step)
    tokens_per_s = setting.workload.tokens_per_step / step
    prediction = Prediction(
        step_s=step,
        compute_s=compute.busy_s,
        exposed_s=priced.crossing.exposed_s,
        utilisation=(compute.total_s + beside.checkpoint_s) / step,
        tokens_per_s=tokens_per_s,
        wan_bytes_per_step=priced.crossing.wan_bytes / (setting.wan.payload_share if setting.wan else 1.0),
        memory_bytes_per_gpu=priced.memory_bytes,
        formula=f"{compute.words()}; {priced.crossing.words()}; {_beside_words(setting, beside, tokens_per_s)}",
        waiting_s=beside.waiting_s,
        checkpoint_s=beside.checkpoint_s,
        step_low_s=band[0] if band else None,
        step_high_s=band[1] if band else None,
    )
    return Candidate(
        strategy=priced.strategy,
        layout=layout_of(priced.placed.axes),
        prediction=prediction,
        risk=risk_words(priced.strategy, priced.loss),
        loss=priced.loss,
    )


def _beside_words(setting: Setting, beside: Beside, tokens_per_s: float) -> str:
    data = data_bytes_per_s(tokens_per_s, setting.regions)
    written = setting.kept_bytes / CHECKPOINT_EVERY.value
    waits = f"waiting for the slower region {show_seconds(beside.waiting_s)}, " if setting.regions > 1 else ""
    again_s = CHECKPOINT_EVERY.value / 2
    lost = stopped_share(86400.0, 1800.0, again_s)
    return (
        f"{waits}checkpoints every {show_seconds(CHECKPOINT_EVERY.value)} {show_seconds(beside.checkpoint_s)} a step and "
        f"{show_bytes(written)}/s of storage, data {show_bytes(data)}/s a region; "
        f"not in it: a stop of 30 min a day would cost {lost:.1%}, {show_seconds(again_s)} of it work done again"
    )
