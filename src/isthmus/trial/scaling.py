"""From the real fabric to the tunnel: which ratios hold there, and the links that give small CPU ranks the same ones."""

from dataclasses import dataclass

from isthmus.cost.step import swap_bytes
from isthmus.emulate import EmulatedLink
from isthmus.emulate.similitude import Ratios, ratios, scale
from isthmus.errors import InfeasibleError
from isthmus.plan import Candidate
from isthmus.planner import choose_plan
from isthmus.trial.measured import Measured
from isthmus.trial.request import Setting

__all__ = ["RealRatios", "TunnelLinks", "links_for", "real_ratios"]

_ALWAYS_LEFT_OUT = (
    "GPUs, NVLink and in-region switches: ranks are CPU processes, in-region links are not shaped",
    "the number of GPUs in a region: a few ranks stand for all of them, since the WAN sees regions",
    "loss and jitter per step: loss is kept per packet, jitter in proportion to the RTT; a small model sends fewer packets",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRatios:
    """The real plan that is scaled: its step, its ratios, and which strategy they are of."""

    ratios: Ratios
    compute_s: float
    wan_bytes: float
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelLinks:
    """The links to emulate.

    Attributes:
        links: As the tunnel takes them.
        slowest: The link that the prediction rests on.
        achieved: Ratios of the slowest link in the tunnel.
        left_out: What the scaling does not keep, and what was clamped.
        source: Where rate and RTT come from, for the plan's assumptions.
    """

    links: tuple[EmulatedLink, ...]
    slowest: EmulatedLink
    achieved: Ratios
    left_out: tuple[str, ...]
    source: str

    @property
    def rate_bytes_per_s(self) -> float:
        """Of the slowest link; the tunnel's links always have one."""
        assert self.slowest.rate_bytes_per_s is not None, self.slowest
        return self.slowest.rate_bytes_per_s


def real_ratios(setting: Setting) -> RealRatios:
    """Transfer and round trip over compute, of the hierarchical every-step strategy on the real fabric.

    Raises:
        InfeasibleError: The workload does not fit the fabric, or no strategy that a trial runs fits it.
    """
    plan = choose_plan(setting.fabric, setting.workload)
    offered = [Candidate(strategy=plan.strategy, layout=plan.layout, prediction=plan.prediction), *plan.alternatives]
    for candidate in offered:
        strategy, prediction = candidate.strategy, candidate.prediction
        if strategy.kind == "hierarchical" and strategy.codec == "none" and prediction is not None:
            slowest = min(setting.fabric.wan, key=lambda link: link.rate_bytes_per_s)
            rtt_s = max(link.rtt_s for link in setting.fabric.wan)
            found = ratios(prediction.wan_bytes_per_step, slowest.rate_bytes_per_s, rtt_s, prediction.compute_s)
            return RealRatios(ratios=found, compute_s=prediction.compute_s, wan_bytes=prediction.wan_bytes_per_step,
                              strategy=strategy.name)
    refused = next((c.refused for c in offered if c.strategy.kind == "hierarchical" and c.refused), "see isthmus plan")
    raise InfeasibleError(
        f"{setting.workload.name} on {setting.fabric.name}: no strategy that a trial runs (a whole replica in each region) fits",
        refused,
    )


def links_for(setting: Setting, real: RealRatios, calibration: Measured) -> TunnelLinks:
    """The links that give these ranks the real ratios, or those asked for by hand."""
    wan_bytes = swap_bytes(calibration.gradient_bytes, len(setting.nodes))
    scaled = scale(real.ratios, calibration.off_step_s, wan_bytes)
    rate = setting.rate_bytes_per_s if setting.rate_bytes_per_s is not None else scaled.rate_bytes_per_s
    rtt_s = setting.rtt_s if setting.rtt_s is not None else scaled.rtt_s
    by_hand = [name for name, value in (("rate", setting.rate_bytes_per_s), ("RTT", setting.rtt_s)) if value is not None]
    slowest_real = min(link.rate_bytes_per_s for link in setting.fabric.wan)
    longest_real = max(link.rtt_s for link in setting.fabric.wan)
    links = tuple(
        EmulatedLink(
            between=link.between,
            rate_bytes_per_s=rate * link.rate_bytes_per_s / slowest_real,
            rtt_s=(scaled_rtt := rtt_s * link.rtt_s / longest_real if longest_real else rtt_s),
            jitter_s=min(scaled_rtt / 2, scaled_rtt * link.jitter_s / link.rtt_s) if link.rtt_s else 0.0,
            loss=link.loss,
        )
        for link in setting.fabric.wan
    )
    notes = [f"{' and '.join(by_hand)} as asked by hand, not scaled"] if by_hand else list(scaled.clamped)
    return TunnelLinks(
        links=links,
        slowest=min(links, key=lambda link: (link.rate_bytes_per_s or 0.0, -link.rtt_s)),
        achieved=ratios(wan_bytes, rate, rtt_s, calibration.off_step_s),
        left_out=(*notes, *_ALWAYS_LEFT_OUT),
        source="asked on the command line" if len(by_hand) == 2 else f"scaled from {setting.fabric.name} ({real.strategy})",
    )
