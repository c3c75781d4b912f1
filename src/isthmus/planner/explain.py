"""Why a plan is what it is, in sentences that carry their numbers."""

from isthmus.cost.efficiency import (
    BACKWARD_FRACTION,
    BLOCKING_IN_MFU,
    MEMORY_RESERVE,
    NCCL_BUFFER,
    NCCL_CHANNELS,
    NETWORK_EFFICIENCY,
    NVLINK_EFFICIENCY,
    OUTER_STATE,
    PCIE_EFFICIENCY,
    RDMA_PAYLOAD,
    TCP_WINDOW,
)
from isthmus.cost.paths import Wan
from isthmus.fabric import levels
from isthmus.plan import Assumption, Candidate, Prediction, StrategyKind
from isthmus.planner.candidates import readiness, risk, runs
from isthmus.planner.setting import Setting
from isthmus.planner.words import counted
from isthmus.units import show_bytes, show_seconds

__all__ = ["assumptions", "rule_of_thumb", "why"]

_BANDS: tuple[tuple[float, str, tuple[StrategyKind, ...]], ...] = (
    (0.005, "below 5 ms: every step, compressed", ("hierarchical",)),
    (0.030, "5 to 30 ms: local steps", ("local-steps",)),
    (float("inf"), "above 30 ms: pipeline across regions, data parallel inside", ("pipeline",)),
)


def why(setting: Setting, ranked: list[Candidate], refused: list[Candidate], tolerance: float) -> str:
    """One paragraph: what the winner reaches, who runs it, what decided against the runner-up, and what it passed over."""
    winner = ranked[0]
    best = _prediction(winner)
    exposed = f"{show_seconds(best.exposed_s)} of communication" if best.exposed_s else "no communication"
    text = (
        f"{winner.strategy.name} takes {show_seconds(best.step_s)} a step, {best.utilisation:.1%} of the pace of "
        f"its own layout without the WAN, with {exposed} exposed and "
        f"{show_bytes(best.wan_bytes_per_step)} a step out of a region."
    )
    text += _who_runs(setting, winner)
    if len(ranked) > 1:
        text += " " + _against(winner, ranked[1], tolerance)
    text += _passed_over(winner, ranked[2:])
    if refused:
        text += f" {_refused_count(len(refused), len(ranked) + len(refused))} refused, each for the reason that stands with it."
    return text


def _who_runs(setting: Setting, winner: Candidate) -> str:
    """Whether isthmus's own runtime trains the winner, and if not, what is missing."""
    if readiness(winner) == 2:
        return f" isthmus prices {winner.strategy.kind} over regions but does not run it yet."
    unequal = len(set(setting.region_gpus)) > 1
    if not runs(winner):
        text = (
            " isthmus's own runtime does not run this layout yet (it runs plain data parallelism: tp, pp, ep 1, ZeRO 0, no "
            "recomputation)"
        )
        if setting.wan is None:
            return f"{text}: it is a plan for Megatron or FSDP."
        return f"{text}: it is a plan for Megatron or FSDP inside a region with isthmus's {winner.strategy.name} between them."
    if unequal:
        return " isthmus's own runtime does not run it yet: it needs as many ranks in each region."
    return ""


def _passed_over(winner: Candidate, others: list[Candidate]) -> str:
    """Candidates that are quicker and no riskier, yet lower because isthmus cannot run them: none silently."""
    better = [
        each
        for each in others
        if _prediction(each).step_s < _prediction(winner).step_s and risk(each.strategy) <= risk(winner.strategy)
    ]
    return "".join(
        f" {each.strategy.name} would be {_pace(winner, each)}, {_risks(each, winner)}, but {_lacks(each)}."
        for each in better
    )


def _lacks(candidate: Candidate) -> str:
    if readiness(candidate) == 2:
        return "isthmus does not run it over regions yet"
    return "isthmus does not run its layout yet"


def _refused_count(refused: int, all_: int) -> str:
    return f"{refused} of {counted(all_, 'strategy', 'strategies')} {'is' if refused == 1 else 'are'}"


def rule_of_thumb(setting: Setting, ranked: list[Candidate], refused: list[Candidate]) -> str:
    """What the RTT alone would suggest, and why the choice differs where it does."""
    if setting.wan is None:
        return "one region: no rule applies"
    _, words, kinds = next(band for band in _BANDS if setting.wan.rtt_s < band[0])
    head = f"RTT {show_seconds(setting.wan.rtt_s)}, {words}"
    if ranked[0].strategy.kind in kinds:
        return f"{head}; the computed choice agrees"
    advised = next((each for each in ranked if each.strategy.kind in kinds), None)
    if advised is None:
        bind = next((each.refused for each in refused if each.strategy.kind in kinds), None)
        return f"{head}; not possible here: {bind or 'not among the strategies of one region'}"
    return f"{head}; differs: {advised.strategy.name} would be {_pace(ranked[0], advised)}, {_reason(ranked[0], advised)}"


def _reason(winner: Candidate, advised: Candidate) -> str:
    """What really put `advised` below `winner`: pace, what isthmus runs, or risk."""
    risks = _risks(advised, winner)
    if _change(winner, advised) > 0 and risk(advised.strategy) >= risk(winner.strategy):
        return f"and no safer ({risks})"
    if readiness(winner) < readiness(advised):
        return f"{risks}, but {_lacks(advised)}, which decides between strategies about as quick"
    if risk(advised.strategy) > risk(winner.strategy):
        return f"and risks the loss more ({risks})"
    return f"and that is too much for its lower risk ({risks})"


def assumptions(setting: Setting, tolerance: float) -> list[Assumption]:
    """Every number that the predictions rest on and the user did not see computed, with its source."""
    workload = setting.workload
    source = "; ".join((workload.source, *workload.assumed))
    found = [
        Assumption(name="tokens per step", value=workload.tokens_per_step, unit="", source=source),
        Assumption(name="parameters", value=setting.parameters, unit="", source=workload.source),
        Assumption(
            name=f"dense {setting.peak_precision} peak of one GPU",
            value=setting.dense_flop_per_s,
            unit="FLOP/s",
            source="catalogue gpus",
        ),
        Assumption(name="MFU inside one region", value=setting.mfu, unit="", source=setting.mfu_source),
        MEMORY_RESERVE,
        *_tier_assumptions(setting),
    ]
    if setting.wan is None:
        return found
    tolerated = Assumption(
        name="longer step taken for lower risk",
        value=tolerance,
        unit="",
        source="judgement; isthmus.planner.choose.TOLERANCE",
    )
    return [*found, BACKWARD_FRACTION, OUTER_STATE, tolerated, *_wan_assumptions(setting.wan)]


def _tier_assumptions(setting: Setting) -> list[Assumption]:
    """Efficiencies of the tiers that the regions have; none for single GPUs."""
    names = {level.name for level in levels(setting.fabric)}
    found = [BLOCKING_IN_MFU] if names - {"wan"} else []
    found += [NVLINK_EFFICIENCY] if "nvlink" in names else []
    found += [PCIE_EFFICIENCY] if "pcie" in names else []
    return found + ([NETWORK_EFFICIENCY] if names & {"node", "region"} else [])


def _wan_assumptions(wan: Wan) -> list[Assumption]:
    given = "the fabric's wan entries"
    return [
        Assumption(name="RTT between regions", value=wan.rtt_s, unit="s", source=given),
        Assumption(
            name="jitter, added to each one-way trip",
            value=wan.jitter_s,
            unit="s",
            source=f"{given}; the slowest message counts",
        ),
        Assumption(name="loss", value=wan.loss, unit="", source=given),
        Assumption(
            name="WAN payload rate of a region",
            value=wan.limit.rate_bytes_per_s,
            unit="B/s",
            source=f"bound by {wan.limit.bind}; {counted(wan.rails, 'rail')} x {counted(wan.streams, 'stream')}"
            + ("" if wan.rdma else "; headers at MTU 1500, window / RTT, loss after Mathis et al. 1997"),
        ),
        Assumption(
            name="WAN payload rate of one NCCL ring",
            value=wan.flat(1).rate_bytes_per_s,
            unit="B/s",
            source=f"bound by {wan.flat(1).bind}; {counted(wan.channels, 'channel')}, one connection each; "
            "tp x pp such rings at once",
        ),
        *([RDMA_PAYLOAD] if wan.rdma else [TCP_WINDOW]),
        NCCL_CHANNELS,
        NCCL_BUFFER,
    ]


def _against(winner: Candidate, runner_up: Candidate, tolerance: float) -> str:
    name, change, pace = runner_up.strategy.name, _change(winner, runner_up), _pace(winner, runner_up)
    risks = _risks(winner, runner_up)
    if change >= tolerance:
        return f"The runner-up {name} is {pace}; risk decides only within {tolerance:.0%}; {risks}."
    if readiness(winner) < readiness(runner_up):
        return f"The runner-up {name} is {pace}, but {_lacks(runner_up)}; {risks}."
    if risk(winner.strategy) < risk(runner_up.strategy):
        return f"The runner-up {name} is {pace}; within {tolerance:.0%} the lower risk decides: {risks}."
    return f"The runner-up {name} is {pace} at the same risk, {_risk(winner)}."


def _change(winner: Candidate, other: Candidate) -> float:
    return _prediction(other).step_s / _prediction(winner).step_s - 1


def _pace(winner: Candidate, other: Candidate) -> str:
    change, seconds = _change(winner, other), show_seconds(_prediction(other).step_s)
    if abs(change) < 0.0005:
        return f"as quick ({seconds} a step)"
    return f"{abs(change):.1%} {'quicker' if change < 0 else 'slower'} ({seconds} a step)"


def _risks(one: Candidate, other: Candidate) -> str:
    if _risk(one) == _risk(other):
        return f"at the same risk, {_risk(one)}"
    return f"risk {_risk(one)} against {_risk(other)}"


def _risk(candidate: Candidate) -> str:
    return candidate.risk.split(":")[0]


def _prediction(candidate: Candidate) -> Prediction:
    assert candidate.prediction is not None, candidate
    return candidate.prediction
