"""A plan as one HTML file that asks nothing of the network: what was chosen, why, and everything it rests on."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from isthmus import __version__
from isthmus.cost.collectives_constants import Constants
from isthmus.errors import InputError
from isthmus.fabric import Fabric
from isthmus.plan import Candidate, Plan
from isthmus.planner.curves import rate_curves, rtt_curves, varied_curves
from isthmus.planner.predict import Known
from isthmus.planner.setting import Setting, make_setting
from isthmus.planner.vary import Varied
from isthmus.planner.ways import over_all
from isthmus.planner.words import amount, break_even_words, settings, telling
from isthmus.report.fabric_drawing import DrawnLink, DrawnRegion, fabric_svg
from isthmus.report.plan_charts import MemoryPart, curves_svg, memory_svg, steps_svg, wan_svg
from isthmus.report.trial_page import FULL_PX, HALF_PX, Chart, both, environment
from isthmus.units import show_bytes, show_seconds
from isthmus.workload import Axes, Recompute, Workload, gpu_memory

__all__ = ["write_plan_page"]

ROWS, CURVES = 10, 6


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the head of the page."""

    name: str
    value: str
    small: str


def write_plan_page(
    plan: Plan,
    fabric: Fabric,
    workload: Workload,
    path: Path | str,
    constants: Constants | None = None,
    varied: Varied | None = None,
) -> None:
    """Write `plan` as a self-contained page; an old file stays whole until the new one is complete.

    Args:
        plan: What `choose_plan` made of `fabric` and `workload`.
        fabric: For the drawing and the curves, which are worked out anew.
        workload: Likewise.
        path: Where to write; its folder exists.
        constants: Of the calibration that the plan was made with, if any.
        varied: The answer to `--vary`, shown as a section of its own.

    Raises:
        InputError: It cannot be written, or jinja2 is not installed.
    """
    setting = make_setting(fabric, workload, constants)
    winner = Candidate(strategy=plan.strategy, layout=plan.layout, prediction=plan.prediction, risk=plan.risk, loss=plan.loss)
    priced = [winner, *(each for each in plan.alternatives if each.prediction)]
    shown = telling(priced)[:ROWS]
    refused: dict[str, list[str]] = {}
    for each in plan.alternatives:
        if each.refused:
            refused.setdefault(each.refused, []).append(each.strategy.name)
    page = (
        environment()
        .get_template("plan.html")
        .render(
            plan=plan,
            shown=shown,
            left_over=len(priced) - len(shown),
            refused=refused,
            tiles=_tiles(plan),
            settings=settings(plan.strategy),
            breaks=break_even_words(plan.break_even),
            charts=_charts(plan, setting, shown) | {"varied": _varied_chart(varied)},
            varied=varied,
            amount=amount,
            version=__version__,
        )
    )
    partial = Path(f"{path}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError("--report", f"cannot write {str(path)!r}: {error.strerror}", "write elsewhere") from None


def _tiles(plan: Plan) -> list[Tile]:
    prediction = plan.prediction
    low, high = prediction.step_low_s, prediction.step_high_s
    sure = f" (p10 to p90: {show_seconds(low)} to {show_seconds(high)})" if low is not None and high is not None else ""
    tiles = [
        Tile("Pace", f"{prediction.tokens_per_s:,.0f}", f"tokens/s, {show_seconds(prediction.step_s)} a step{sure}"),
        Tile("Pace kept over the WAN", f"{prediction.utilisation:.1%}", f"{show_seconds(prediction.exposed_s)} seen"),
        Tile("Over the WAN", show_bytes(prediction.wan_bytes_per_step), "a step, from the busiest region"),
    ]
    if plan.money is not None:
        money = plan.money
        tiles.append(Tile("A trillion tokens", amount(money.per_trillion_tokens, money.currency), "at the fabric's prices"))
    else:
        band = plan.loss
        word = "exact" if band.basis == "exact" else f"up to {band.high:+.1%}"
        tiles.append(Tile("Loss", word, f"against exact sums ({band.basis})"))
    return tiles


def _varied_chart(varied: Varied | None) -> Chart | None:
    """The strategies that are best somewhere, then others that are quick on the whole."""
    curves = varied_curves(varied) if varied is not None else None
    if varied is None or curves is None:
        return None
    best = dict.fromkeys(point.best.strategy.name for point in varied.points if point.best)
    quick = sorted(curves.tokens_per_s, key=lambda name: -sum(value or 0.0 for value in curves.tokens_per_s[name]))
    names = [*best, *(name for name in quick if name not in best)][: max(CURVES, len(best))]
    if not names:
        return None
    return both(lambda width, ident: curves_svg(curves, names, width_px=width, ident=ident), FULL_PX, "varied")


def _charts(plan: Plan, setting: Setting, shown: list[Candidate]) -> dict[str, Chart | None]:
    fabric, workload, constants = setting.fabric, setting.workload, setting.constants
    regions = [
        DrawnRegion(
            name=region.name,
            city=region.city,
            nodes=region.nodes,
            gpus=region.gpus,
            gpu_kind=", ".join(dict.fromkeys(group.gpu.kind for group in region.groups)),
            network_kind=region.network.kind,
            network_rate_bytes_per_s=region.network.rate_bytes_per_s,
        )
        for region in fabric.regions
    ]
    links = [
        DrawnLink(between=link.between, rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=link.rtt_s, note=link.transport)
        for link in fabric.wan
    ]
    charts = {
        "fabric": both(lambda width, ident: fabric_svg(regions, links, width_px=width, ident=ident), FULL_PX, "fabric"),
        "steps": both(lambda width, ident: steps_svg(shown, width_px=width, ident=ident), FULL_PX, "steps"),
        "memory": _memory(plan, setting),
    }
    if setting.wan is None:
        return charts | {"wan": None, "rate": None, "rtt": None}
    rate = setting.wan.limit.rate_bytes_per_s / setting.wan.payload_share
    busy = [each.prediction.wan_bytes_per_step / rate if each.prediction else 0.0 for each in shown]
    known: Known = {}
    names = [each.strategy.name for each in shown[:CURVES]]
    by_rate, by_rtt = (each(fabric, workload, known, constants) for each in (rate_curves, rtt_curves))
    return charts | {
        "wan": both(lambda width, ident: wan_svg(shown, busy, width_px=width, ident=ident), FULL_PX, "wan"),
        "rate": both(lambda width, ident: curves_svg(by_rate, names, width_px=width, ident=ident), HALF_PX, "rate"),
        "rtt": both(lambda width, ident: curves_svg(by_rtt, names, width_px=width, ident=ident), HALF_PX, "rtt"),
    }


def _memory(plan: Plan, setting: Setting) -> Chart | None:
    parts = memory_parts(plan, setting)
    return both(
        lambda width, ident: memory_svg(
            parts, setting.usable_memory_bytes, setting.gpu_memory_bytes, width_px=width, ident=ident
        ),
        FULL_PX,
        "memory",
    )


def memory_parts(plan: Plan, setting: Setting) -> list[MemoryPart]:
    """The winner's memory on the fullest GPU; what is left over of the total is what its strategy adds."""
    layout = plan.layout
    recompute: Recompute = "full" if layout.recompute else "none"
    dp = layout.dp if over_all(plan.strategy) else min(setting.region_gpus) // (layout.tp * layout.pp * layout.cp)
    sequences = -(-setting.workload.sequences_per_step // (layout.dp * layout.micro_batch)) * layout.micro_batch * dp
    zero = cast(Literal[0, 1, 2, 3], layout.zero)
    axes = Axes(
        dp=dp, tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, zero=zero, micro_batch=layout.micro_batch,
        recompute=recompute, virtual_stages=layout.virtual_stages, tp_overlap=layout.tp_overlap,
    )  # fmt: skip
    memory = gpu_memory(replace(setting.workload, sequences_per_step=sequences), axes)
    state, total = memory.state, plan.prediction.memory_bytes_per_gpu
    parts = [
        MemoryPart("weights", state.weights),
        MemoryPart("gradients", state.gradients),
        MemoryPart("fp32 weights", state.master),
        MemoryPart("optimizer", state.optimizer),
        MemoryPart("activations", memory.activations),
    ]
    rest = total - memory.total
    return [*parts, MemoryPart("owed by the codec, or kept in flight", rest)] if rest > 1e-6 * total else parts
