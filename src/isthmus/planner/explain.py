"""Why a plan is what it is, in sentences that carry their numbers."""

from isthmus.plan import Candidate, Prediction, StrategyKind
from isthmus.planner.setting import Setting
from isthmus.planner.ways import lacks, readiness, runs
from isthmus.planner.words import counted, layout_words
from isthmus.units import show_bytes, show_seconds

__all__ = ["rule_of_thumb", "why"]

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
        f"{winner.strategy.name} on {layout_words(winner.layout)} takes {show_seconds(best.step_s)} a step, "
        f"{best.utilisation:.1%} of the pace of its own layout without the WAN, with {exposed} exposed and "
        f"{show_bytes(best.wan_bytes_per_step)} a step out of a region."
    )
    text += _who_runs(setting, winner)
    if len(ranked) > 1:
        text += " " + _against(setting, winner, ranked[1], tolerance)
    text += _passed_over(setting, winner, ranked[2:])
    if refused:
        text += f" {_refused_count(len(refused), len(ranked) + len(refused))} refused, each for the reason that stands with it."
    return text


def _who_runs(setting: Setting, winner: Candidate) -> str:
    """Whether isthmus's own runtime trains the winner, and if not, what is missing."""
    if _readiness(setting, winner) == 2:
        stages = f"a pipeline of {winner.layout.pp} stages" if winner.strategy.kind == "pipeline" else winner.strategy.kind
        return f" isthmus prices {stages} over regions but does not run it yet."
    unequal = len(set(setting.region_gpus)) > 1
    if not runs(winner.strategy, winner.layout, setting.regions):
        text = (
            " isthmus's own runtime does not run this layout yet (it runs data parallelism: tp, pp, ep 1, ZeRO 0, 2 or 3, no "
            "recomputation)"
        )
        if setting.wan is None:
            return f"{text}: it is a plan for Megatron or FSDP."
        return f"{text}: it is a plan for Megatron or FSDP inside a region with isthmus's {winner.strategy.name} between them."
    if unequal:
        return " isthmus's own runtime does not run it yet: it needs as many ranks in each region."
    return ""


def _passed_over(setting: Setting, winner: Candidate, others: list[Candidate]) -> str:
    """Candidates that are quicker and no riskier, yet lower because isthmus cannot run them: none silently."""
    better = [
        each
        for each in others
        if _prediction(each).step_s < _prediction(winner).step_s and each.loss.high <= winner.loss.high
    ]
    return "".join(
        f" {each.strategy.name} would be {_pace(winner, each)}, {_risks(each, winner)}, but {_lacks(setting, each)}."
        for each in better
    )


def _lacks(setting: Setting, candidate: Candidate) -> str:
    return lacks(candidate.strategy, candidate.layout, setting.regions)


def _readiness(setting: Setting, candidate: Candidate) -> int:
    return readiness(candidate.strategy, candidate.layout, setting.regions)


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
    pace, reason = _pace(ranked[0], advised), _reason(setting, ranked[0], advised)
    return f"{head}; differs: {advised.strategy.name} would be {pace}, {reason}"


def _reason(setting: Setting, winner: Candidate, advised: Candidate) -> str:
    """What really put `advised` below `winner`: pace, what isthmus runs, or risk."""
    risks = _risks(advised, winner)
    if _change(winner, advised) > 0 and advised.loss.high >= winner.loss.high:
        return f"and no safer ({risks})"
    if _readiness(setting, winner) < _readiness(setting, advised):
        return f"{risks}, but {_lacks(setting, advised)}, which decides between strategies about as quick"
    if advised.loss.high > winner.loss.high:
        return f"and risks the loss more ({risks})"
    return f"and that is too much for its lower risk ({risks})"


def _against(setting: Setting, winner: Candidate, runner_up: Candidate, tolerance: float) -> str:
    name, change, pace = _named(winner, runner_up), _change(winner, runner_up), _pace(winner, runner_up)
    risks = _risks(winner, runner_up)
    if change >= tolerance:
        return f"The runner-up {name} is {pace}; risk decides only within {tolerance:.0%}; {risks}."
    if _readiness(setting, winner) < _readiness(setting, runner_up):
        return f"The runner-up {name} is {pace}, but {_lacks(setting, runner_up)}; {risks}."
    if winner.loss.high < runner_up.loss.high:
        return f"The runner-up {name} is {pace}; within {tolerance:.0%} the lower risk decides: {risks}."
    return f"The runner-up {name} is {pace} at the same risk, {_risk(winner)}."


def _named(winner: Candidate, other: Candidate) -> str:
    """Its name, and what its layout is where it differs from the winner's."""
    if other.layout == winner.layout:
        return f"{other.strategy.name} on the same layout"
    return f"{other.strategy.name} on {layout_words(other.layout)}"


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
    """`low (loss 0.0% to +0.2%)`; `none` where the sums are the same."""
    word, band = candidate.risk.split(":")[0], candidate.loss
    return word if band.basis == "exact" else f"{word} (loss {band.low:+.1%} to {band.high:+.1%})"


def _prediction(candidate: Candidate) -> Prediction:
    assert candidate.prediction is not None, candidate
    return candidate.prediction
