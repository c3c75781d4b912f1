"""Why a plan is what it is, in sentences that carry their numbers."""

from isthmus.cost.efficiency import (
    BACKWARD_FRACTION,
    MEMORY_RESERVE,
    NCCL_BUFFER,
    NCCL_CHANNELS,
    NETWORK_EFFICIENCY,
    NVLINK_EFFICIENCY,
    OUTER_STATE,
    TCP_WINDOW,
)
from isthmus.cost.paths import Wan
from isthmus.plan import Assumption, Candidate, Prediction, StrategyKind
from isthmus.planner.candidates import risk, runs
from isthmus.planner.setting import Setting
from isthmus.units import show_bytes, show_seconds

__all__ = ["assumptions", "rule_of_thumb", "why"]

_BANDS: tuple[tuple[float, str, tuple[StrategyKind, ...]], ...] = (
    (0.005, "below 5 ms: every step, compressed", ("hierarchical",)),
    (0.030, "5 to 30 ms: local steps", ("local-steps",)),
    (float("inf"), "above 30 ms: pipeline across regions, data parallel inside", ("pipeline",)),
)


def why(ranked: list[Candidate], refused: list[Candidate], tolerance: float) -> str:
    """One paragraph: what the winner reaches, and what decided against the runner-up."""
    winner = ranked[0]
    best = _prediction(winner)
    exposed = f"{show_seconds(best.exposed_s)} of communication" if best.exposed_s else "no communication"
    text = (
        f"{winner.strategy.name} takes {show_seconds(best.step_s)} a step, {best.utilisation:.1%} of the same GPUs "
        f"without the WAN, with {exposed} exposed and {show_bytes(best.wan_bytes_per_step)} a step out of a region."
    )
    if not runs(winner.strategy):
        text += f" isthmus prices {winner.strategy.kind} over regions but does not run it yet."
    if len(ranked) > 1:
        text += " " + _against(winner, ranked[1], tolerance)
    if refused:
        text += f" {len(refused)} of {len(ranked) + len(refused)} strategies are refused: {_common_bind(refused)}"
    return text


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
    best, other = _prediction(ranked[0]), _prediction(advised)
    return (
        f"{head}; differs, because RTT says nothing of bytes, bandwidth and compute: {advised.strategy.name} would "
        f"take {show_seconds(other.step_s)} a step ({other.utilisation:.1%}, risk {_risk(advised)}) against "
        f"{show_seconds(best.step_s)} ({best.utilisation:.1%}, risk {_risk(ranked[0])})"
    )


def assumptions(setting: Setting, tolerance: float) -> list[Assumption]:
    """Every number that the predictions rest on and the user did not see computed, with its source."""
    workload = setting.workload
    source = "; ".join((workload.source, *workload.assumed))
    found = [
        Assumption(name="tokens per step", value=workload.tokens_per_step, unit="", source=source),
        Assumption(name="parameters", value=setting.parameters, unit="", source=workload.source),
        Assumption(
            name="dense peak of one GPU",
            value=setting.dense_flop_per_s,
            unit="FLOP/s",
            source="catalogue gpus",
        ),
        Assumption(name="MFU inside one region", value=setting.mfu, unit="", source=setting.mfu_source),
        BACKWARD_FRACTION,
        MEMORY_RESERVE,
        NVLINK_EFFICIENCY,
        NETWORK_EFFICIENCY,
        OUTER_STATE,
        Assumption(
            name="longer step taken for lower risk",
            value=tolerance,
            unit="",
            source="judgement; isthmus.planner.choose.TOLERANCE",
        ),
    ]
    return [*found, *_wan_assumptions(setting.wan)] if setting.wan else found


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
            source=f"bound by {wan.limit.bind}; {wan.rails} rails x {wan.streams} streams; "
            "headers at MTU 1500, window / RTT, loss after Mathis et al. 1997",
        ),
        Assumption(
            name="WAN payload rate of NCCL's ring",
            value=wan.flat.rate_bytes_per_s,
            unit="B/s",
            source=f"bound by {wan.flat.bind}; one TCP stream a channel",
        ),
        TCP_WINDOW,
        NCCL_CHANNELS,
        NCCL_BUFFER,
    ]


def _against(winner: Candidate, runner_up: Candidate, tolerance: float) -> str:
    best, other = _prediction(winner), _prediction(runner_up)
    name, change = runner_up.strategy.name, other.step_s / best.step_s - 1
    pace = f"{abs(change):.1%} {'quicker' if change < 0 else 'slower'} ({show_seconds(other.step_s)} a step)"
    if abs(change) < 0.0005:
        pace = f"as quick ({show_seconds(other.step_s)} a step)"
    risks = f"risk {_risk(winner)} against {_risk(runner_up)}"
    if change >= tolerance:
        return f"The runner-up {name} is {pace}; risk decides only within {tolerance:.0%}; {risks}."
    if runs(winner.strategy) and not runs(runner_up.strategy):
        return f"The runner-up {name} is {pace}, but isthmus does not run it yet; {risks}."
    if risk(winner.strategy) < risk(runner_up.strategy):
        return f"The runner-up {name} is {pace}; within {tolerance:.0%} the lower risk decides: {risks}."
    return f"The runner-up {name} is {pace} at the same risk, {_risk(winner)}."


def _common_bind(refused: list[Candidate]) -> str:
    """The constraint that most of the refused share, and who they are."""
    binds = [each.refused or "" for each in refused]
    most = max(binds, key=binds.count)
    names = ", ".join(each.strategy.name for each in refused if each.refused == most)
    return f"{names} ({most})" + ("." if binds.count(most) == len(binds) else "; the others below.")


def _risk(candidate: Candidate) -> str:
    return candidate.risk.split(":")[0]


def _prediction(candidate: Candidate) -> Prediction:
    assert candidate.prediction is not None, candidate
    return candidate.prediction
