"""`isthmus simulate --plan`: one step of a plan played on the fabric's graph, beside what the plan predicted."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.cli.simulated import carriage_of, routing_named
from isthmus.cost.codecs import codec_ratio
from isthmus.cost.collectives_group import part_of
from isthmus.cost.collectives_time import seconds_of
from isthmus.cost.efficiency import BACKWARD_FRACTION, BUCKET_WORK
from isthmus.cost.paths import pipeline_legs
from isthmus.cost.step import pipeline_bubble_fraction, pipeline_warm_up_extra, swap_bytes
from isthmus.cost.step_wires import neighbours
from isthmus.errors import InputError
from isthmus.fabric import Fabric
from isthmus.formats.perfetto import Span, trace_events
from isthmus.plan import Plan, load_plan
from isthmus.planner.crossing import coding_seconds
from isthmus.planner.setting import make_setting
from isthmus.sim import FabricMap, map_fabric, with_faults
from isthmus.sim.script import Script, ScriptPlayed, play_script
from isthmus.sim.step_script import StepAsked, script_of
from isthmus.units import show_bytes, show_seconds
from isthmus.workload import Workload, mtp_parameter_count, parameter_count, read_workload

__all__ = ["play_plan", "step_asked", "step_of"]

How = tuple[str | None, str | None, Sequence[str], Sequence[tuple[str, float]]]


def play_plan(fabric: Fabric, path: Path, how: How, trace: Path | None, as_json: bool) -> None:
    """Play the plan at `path`; `how` is (workload, routing, cut cables, weakened ones)."""
    named, routing, fail, weaken = how
    plan = load_plan(path)
    workload = _workload(plan, named, path)
    chart = with_faults(map_fabric(fabric, carriage_of(fabric, plan.strategy), routing_named(routing)), fail, weaken)
    script = script_of(chart, step_asked(fabric, plan, workload))
    with Console(stderr=True).status(f"playing {len(script.activities):,} activities"):
        played, alone = play_script(script), play_script(script, without_wan=True)
    found = _result(chart, plan, (script, played, alone))
    if trace is not None:
        spans = _spans(script, played)
        trace.write_text(json.dumps(trace_events(spans), separators=(",", ":")), encoding="utf-8")
        print(f"{trace}: {len(spans)} spans", file=sys.stderr)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)


def _workload(plan: Plan, named: str | None, path: Path) -> Workload:
    try:
        return read_workload(named or plan.workload)
    except InputError as error:
        if named is not None:
            raise
        raise InputError(
            str(path), f"its workload {plan.workload!r} is no preset", f"name its file with --workload ({error.hint})"
        ) from None


def step_asked(fabric: Fabric, plan: Plan, workload: Workload) -> StepAsked:
    """What the plan's step does. Its compute is the plan's own prediction with the WAN off, less the pipeline's bubble."""
    layout, strategy = plan.layout, plan.strategy
    rounds = max(1, -(-plan.tokens_per_step // (workload.sequence_length * layout.dp * layout.micro_batch)))
    own = plan.prediction.step_s - plan.prediction.exposed_s
    compute = (own - _sends_s(fabric, plan, workload)) / (1 + pipeline_bubble_fraction(layout.pp, rounds) / layout.virtual_stages)
    parameters = float(parameter_count(workload.shape) + mtp_parameter_count(workload.shape))
    local = strategy.kind == "local-steps"
    plain = 4 if local else workload.gradient_bytes
    ratio = 1.0 if strategy.codec in ("none", "powersgd") else codec_ratio(strategy.codec, strategy.codec_density)
    crossing = parameters * (plain if strategy.codec == "none" else 4 * ratio)
    if strategy.codec == "powersgd":  # its bytes follow from the shapes of the parameters, which the plan has counted
        crossing = plan.prediction.wan_bytes_per_step * strategy.inner_steps / swap_bytes(1.0, len(fabric.regions))
    each = 4 if workload.precision == "fp32" else 2
    activation = workload.sequence_length * layout.micro_batch * workload.shape.hidden * each / (layout.tp * layout.cp)
    crossing_activation = activation if strategy.codec == "none" else activation / each * 4 * ratio
    extra: tuple[int, ...] = ()
    if strategy.kind == "pipeline":
        pairs = layout.tp * layout.cp * layout.dp
        legs = pipeline_legs(fabric, pairs)
        ways = [leg.one_way_s + crossing_activation * pairs / leg.limit.rate_bytes_per_s for leg in legs]
        extra = tuple(pipeline_warm_up_extra(compute / rounds, ways[region:]) for region in range(len(ways) + 1))
    coding = (0.0, 0.0)
    if len(fabric.regions) > 1 and strategy.kind in ("hierarchical", "local-steps"):
        coding = coding_seconds(make_setting(fabric, workload), strategy, ratio)
    return StepAsked(
        strategy=strategy,
        layout=layout,
        compute_s=own if local else compute,
        backward_fraction=BACKWARD_FRACTION.value,
        micro_batches=rounds,
        gradient_bytes=parameters * workload.gradient_bytes / (layout.tp * layout.pp),
        wan_bytes=crossing,
        gathered_bytes=parameters * 4,
        activation_bytes=activation,
        crossing_bytes=crossing_activation,
        extra_in_flight=extra,
        coding_s=coding,
        bucket_work_s=BUCKET_WORK.value,
        exchanges=2 if strategy.codec == "powersgd" else 1,
    )


def _sends_s(fabric: Fabric, plan: Plan, workload: Workload) -> float:
    """What filling and draining a pipeline takes of the plan's step for sends inside regions, which are played by themselves."""
    layout, crossings = plan.layout, len(fabric.regions) - 1 if plan.strategy.kind == "pipeline" else 0
    if layout.pp == 1:
        return 0.0
    stride, setting = layout.tp * layout.cp, make_setting(fabric, workload)
    part = part_of(setting.group, stride, max(1, layout.pp // (crossings + 1)))
    if not part:
        return 0.0
    each = 4 if workload.precision == "fp32" else 2
    size = workload.sequence_length * layout.micro_batch * workload.shape.hidden * each / (layout.tp * layout.cp)
    return 2 * (layout.pp - 1 - crossings) * seconds_of("send-recv", size, neighbours(part), setting.constants)


def _result(chart: FabricMap, plan: Plan, played: tuple[Script, ScriptPlayed, ScriptPlayed]) -> dict[str, Any]:
    script, whole, _ = played
    steps = plan.strategy.inner_steps if plan.strategy.kind == "local-steps" else 1
    own, exposed = step_of(plan, played[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = whole.busy_s / whole.seconds
    predicted = plan.prediction
    return {
        "fabric": chart.fabric.name,
        "strategy": plan.strategy.name,
        "steps_played": steps,
        "activities": len(script.activities),
        "played": {"step_s": own + exposed, "own_s": own, "exposed_s": exposed, "utilisation": own / (own + exposed)},
        "predicted": {
            "step_s": predicted.step_s,
            "own_s": predicted.step_s - predicted.exposed_s,
            "exposed_s": predicted.exposed_s,
            "utilisation": predicted.utilisation,
        },
        "peak_load": whole.peak_load,
        "levels": _levels(chart, whole, busy),
    }


def step_of(plan: Plan, played: tuple[ScriptPlayed, ScriptPlayed]) -> tuple[float, float]:
    """(seconds of a step with the WAN off, seconds that it adds), from the script played with the WAN and without it."""
    whole, alone = played
    if plan.strategy.kind != "local-steps":
        return alone.seconds, whole.seconds - alone.seconds
    # Of the window, every inner step is alike; what comes on top is the sync's.
    own = plan.prediction.step_s - plan.prediction.exposed_s
    window = plan.strategy.inner_steps + plan.strategy.delay_steps
    return own, (whole.seconds - window * own) / plan.strategy.inner_steps


def _levels(chart: FabricMap, whole: ScriptPlayed, busy: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for level in chart.cables.levels():
        links = np.concatenate([np.arange(b.first, b.first + 2 * b.count) for b in chart.cables.blocks if b.level == level])
        used = links[whole.busy_s[links] > 0]
        if len(used):
            fullest = int(used[busy[used].argmax()])
            found.append(
                {
                    "level": level,
                    "links": len(used),
                    "mean": float(busy[used].mean()),
                    "most": float(busy[fullest]),
                    "busy_s": float(whole.busy_s[fullest]),
                    "fullest": chart.cables.name(fullest),
                }
            )
    return found


def _spans(script: Script, played: ScriptPlayed) -> list[Span]:
    spans: list[Span] = []
    for activity, begin, end in zip(script.activities, played.begin_s.tolist(), played.finish_s.tolist(), strict=True):
        if activity.track and end > begin:
            details = {"bytes": show_bytes(activity.size_bytes)} if activity.size_bytes else {}
            where = {"process": activity.process, "track": activity.track, "name": activity.name}
            spans.append(Span(**where, begin_s=begin, seconds=end - begin, details=details))
    return spans


def _show(found: dict[str, Any]) -> None:
    console = Console()
    window = f", a window of {found['steps_played']} steps" if found["steps_played"] > 1 else ""
    what = f"A step of {found['strategy']} on {found['fabric']}, {found['activities']:,} activities{window}"
    console.print(f"{what}\n", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "step", "WAN off", "exposed", "vs own"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in ("played", "predicted"):
        each = found[name]
        times = [show_seconds(each[key]) for key in ("step_s", "own_s", "exposed_s")]
        table.add_row(name if name == "played" else "the plan's formula", *times, f"{each['utilisation']:.1%}")
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("level", "links used", "busy", "of the step", "fullest link"):
        table.add_column(name, justify="left" if name in ("level", "fullest link") else "right")
    for each in found["levels"]:
        table.add_row(each["level"], f"{each['links']:,}", show_seconds(each["busy_s"]), f"{each['most']:.1%}", each["fullest"])
    console.print(table)
