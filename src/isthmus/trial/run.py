"""One trial from start to end: measure compute, predict, write the plans, then run every strategy and compare."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.bench import Exchange, Speeds, speeds_in
from isthmus.cost import Segment, TrialInputs, predict_trial, trial_segments
from isthmus.emulate import EmulatedLink, Tunnel, open_tunnel, probe
from isthmus.errors import InfeasibleError, InputError
from isthmus.plan import Assumption, Layout, Plan, Prediction, Strategy, save_plan
from isthmus.trial.launch import DEMO, RunSpec, start_ranks
from isthmus.trial.measured import Measured, combine_starts, read_lines, reduce_metrics
from isthmus.trial.perform import FaultPlayer
from isthmus.trial.progress import Progress
from isthmus.trial.request import Setting, TrialRequest, read_request
from isthmus.trial.results import StrategyRun, results_document
from isthmus.trial.scaling import TunnelLinks, links_for, real_ratios
from isthmus.trial.schedule import CALIBRATION_STARTS, Steps, calibration_steps, plan_steps
from isthmus.trial.strategies import STRATEGIES

__all__ = ["run_trial"]

_BENCH = "isthmus bench, in this tunnel before the runs"
# Wide enough that the calibration run, which crosses the WAN only to start and in one step of fifteen, never waits for it.
_OPEN_RATE_BYTES_PER_S, _OPEN_RTT_S = 125e6, 0.0
# The runtime's hierarchical all-reduce cuts a bucket into one segment a MiB.
SEGMENT_BYTES = 1 << 20
_RUN_LIMIT_FACTOR, _RUN_LIMIT_EXTRA_S = 6.0, 180.0


def run_trial(request: TrialRequest) -> dict[str, Any]:
    """Run the trial and write plans, results.json and report.html under `request.output`.

    Raises:
        InputError: The request is wrong, or this machine cannot hold a tunnel.
        InfeasibleError: The workload does not fit the fabric, or a run failed.
    """
    setting = read_request(request)
    probe()
    ratios = real_ratios(setting)  # refuses a workload that does not fit before anything is started
    output = _empty_folder(setting.output)
    with Progress() as progress, open_tunnel(nodes=setting.nodes, links=_open_links(setting)) as tunnel:
        calibration = _calibrate(tunnel, setting, output / "calibration", progress)
        links = links_for(setting, ratios, calibration)
        for link in links.links:
            tunnel.set_link(*link.between, rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=link.rtt_s,
                            jitter_s=link.jitter_s, loss=link.loss)
        progress.say("codec and copy speeds, and the CPU that an exchange takes (as isthmus bench) ...")
        speeds = speeds_in(tunnel, setting.nodes, calibration.gradient_bytes, _exchange(setting, links, calibration))
        inputs = {s.name: _inputs(s, setting, links, calibration, speeds) for s in setting.strategies}
        predictions = {s.name: predict_trial(s, inputs[s.name]) for s in setting.strategies}
        steps = plan_steps([p.step_s for p in predictions.values()], calibration.step_s, setting.minutes,
                           max(s.inner_steps for s in setting.strategies))
        plans = _write_plans(setting, predictions, inputs, links, output)
        progress.say(f"predictions written to {output}/plan-*.yaml; each strategy now runs {steps.trained} training steps")
        runs = [
            _run(tunnel, setting, strategy, _Run(plans[strategy.name], steps, predictions[strategy.name],
                                                 trial_segments(strategy, inputs[strategy.name])), progress)
            for strategy in setting.strategies
        ]
        results = results_document(request, setting, ratios, links, calibration, speeds, runs, tunnel,
                                   _distinct([row for known in inputs.values() for row in _assumptions(known, links)]))
    _write_results(results, output)
    return results


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Path
    steps: Steps
    prediction: Prediction
    timeline: list[Segment]


def _distinct(rows: list[Assumption]) -> list[Assumption]:
    return list({(row.name, row.value): row for row in rows}.values())


def _empty_folder(output: Path) -> Path:
    """The output folder, emptied of an earlier trial; anything else in it is never touched."""
    output = output.resolve()
    if output.exists() and not output.is_dir():
        raise InputError("--output", f"{str(output)!r} is a file", "name a folder")
    if output.exists() and any(output.iterdir()):
        if not (output / "results.json").exists() and not (output / "calibration").exists():
            raise InputError("--output", f"{str(output)!r} holds files that no trial wrote", "name a new folder")
        for name in ("results.json", "report.html"):
            (output / name).unlink(missing_ok=True)
        for path in output.glob("plan-*.yaml"):
            path.unlink()
        for name in ("calibration", *(f"run-{strategy}" for strategy in STRATEGIES)):
            shutil.rmtree(output / name, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    return output


def _open_links(setting: Setting) -> list[EmulatedLink]:
    return [
        EmulatedLink(between=link.between, rate_bytes_per_s=_OPEN_RATE_BYTES_PER_S, rtt_s=_OPEN_RTT_S)
        for link in setting.fabric.wan
    ]


def _command(setting: Setting, steps: Steps) -> tuple[str, ...]:
    if setting.script is not None:
        return setting.script
    return (*DEMO, "--preset", "tiny", "--steps", str(steps.trained), "--eval-every", str(steps.on), "--seed", str(setting.seed))


def _calibrate(tunnel: Tunnel, setting: Setting, folder: Path, progress: Progress) -> Measured:
    """Step time of these ranks with inter-region communication off, over several starts: the compute of every prediction."""
    plan = folder.parent / "plan-calibration.yaml"
    _save_bare_plan(setting, STRATEGIES["hierarchical"], plan)
    return combine_starts([
        _calibrated(tunnel, setting, RunSpec(folder=folder / f"start-{number}", nodes=setting.nodes, plan=plan,
                                             blocks=calibration_steps().text, command=_command(setting, calibration_steps())),
                    progress, f"compute, WAN off, start {number} of {CALIBRATION_STARTS}")
        for number in range(1, CALIBRATION_STARTS + 1)
    ])


def _calibrated(tunnel: Tunnel, setting: Setting, spec: RunSpec, progress: Progress, name: str) -> Measured:
    steps = calibration_steps()
    ranks = start_ranks(tunnel, spec)
    try:
        with progress.run(name, steps.all, ranks.steps_seen) as tick:
            ranks.wait(_RUN_LIMIT_EXTRA_S * 3, tick)
    finally:
        ranks.end()
    measured = reduce_metrics(read_lines(spec.folder / "metrics"))
    if measured is None or not measured.off_step_s_repeats:
        raise InfeasibleError("the calibration run ended before one block was complete",
                              f"the script must run at least {steps.all} optimizer steps")
    return measured


def _exchange(setting: Setting, links: TunnelLinks, calibration: Measured) -> Exchange:
    """The exchanges of these strategies, over the link as asked: its rate decides how many packets the bytes come in."""
    ranks = len(setting.nodes) * next(iter(setting.nodes.values()))
    crossing = [s for s in setting.strategies if s.kind != "flat"]
    return Exchange(
        buckets=calibration.buckets or (calibration.gradient_bytes,),
        codecs=tuple(dict.fromkeys(s.codec for s in crossing)),
        rate_bytes_per_s=links.rate_bytes_per_s / next(iter(setting.nodes.values())),
        compute_s=calibration.off_step_s * min(1.0, _cores() / ranks),
        flat=any(s.kind == "flat" for s in setting.strategies),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _inputs(strategy: Strategy, setting: Setting, links: TunnelLinks, calibration: Measured, speeds: Speeds) -> TrialInputs:
    regions = tuple(setting.nodes)
    codec = speeds.codecs.get(strategy.codec)
    work = speeds.exchanges.get("flat" if strategy.kind == "flat" else strategy.codec)
    ranks = len(regions) * next(iter(setting.nodes.values()))
    return TrialInputs(
        regions=regions,
        ranks_per_region=next(iter(setting.nodes.values())),
        gradient_bytes=calibration.gradient_bytes,
        tokens_per_step=round(calibration.tokens_per_step),
        compute_s=calibration.off_step_s,
        backward_fraction=calibration.backward_fraction,
        rate_bytes_per_s=links.rate_bytes_per_s,
        rtt_s=links.slowest.rtt_s,
        buckets=calibration.buckets,
        codec_encode_bytes_per_s=codec.encode_bytes_per_s if codec else None,
        codec_decode_bytes_per_s=codec.decode_bytes_per_s if codec else None,
        copy_bytes_per_s=speeds.copy_bytes_per_s,
        links_per_region=1 if len(regions) == 2 else len(regions) - 1,
        chunk_bytes=SEGMENT_BYTES,
        exchange_cpu_s=work.ranks_cpu_s + work.line_cpu_s if work else None,
        cores=_cores(),
        shared_cores=_cores() <= ranks,
        straggler_s=calibration.straggler_s,
    )


def _write_plans(
    setting: Setting, predictions: dict[str, Prediction], inputs: dict[str, TrialInputs], links: TunnelLinks, output: Path
) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    ranks = sum(setting.nodes.values())
    for strategy in setting.strategies:
        known = inputs[strategy.name]
        paths[strategy.name] = output / f"plan-{strategy.name}.yaml"
        save_plan(
            Plan(
                fabric=setting.fabric.name,
                workload=f"wind tunnel for {setting.workload.name}",
                tokens_per_step=known.tokens_per_step,
                strategy=strategy.model_copy(update={"wan_rate_bytes_per_s": links.rate_bytes_per_s}),
                layout=Layout(dp=ranks),
                prediction=predictions[strategy.name],
                why="asked for by `isthmus try`",
                rule_of_thumb="not applied: every strategy asked for is run",
                assumptions=_assumptions(known, links),
            ),
            paths[strategy.name],
        )
    return paths


def _assumptions(inputs: TrialInputs, links: TunnelLinks) -> list[Assumption]:
    rows = [
        Assumption(name="WAN rate, one way", value=inputs.rate_bytes_per_s, unit="B/s of IP", source=links.source),
        Assumption(name="WAN round trip", value=inputs.rtt_s, unit="s", source=links.source),
        Assumption(name="step with inter-region communication off", value=inputs.compute_s, unit="s",
                   source="measured before the predicted runs, same ranks (calibration/)"),
        Assumption(name="backward pass, share of the step", value=inputs.backward_fraction, unit="",
                   source="measured before the predicted runs, same ranks (calibration/)"),
        Assumption(name="reduce-scatter + all-gather in the region", value=inputs.copy_bytes_per_s, unit="B/s",
                   source=_BENCH),
    ]
    for name, value in (("encode", inputs.codec_encode_bytes_per_s), ("decode", inputs.codec_decode_bytes_per_s)):
        if value is not None:
            rows.append(Assumption(name=f"codec {name}, of fp32", value=value, unit="B/s", source=_BENCH))
    if inputs.exchange_cpu_s is not None:
        rows.append(Assumption(name="CPU of one exchange, all ranks and the emulated link", value=inputs.exchange_cpu_s, unit="s",
                               source=_BENCH))
    return rows


def _save_bare_plan(setting: Setting, strategy: Strategy, path: Path) -> None:
    nothing = Prediction(step_s=0, compute_s=0, exposed_s=0, utilisation=0, tokens_per_s=0, wan_bytes_per_step=0,
                         memory_bytes_per_gpu=0, formula="none: this run measures what predictions start from")
    save_plan(
        Plan(fabric=setting.fabric.name, workload=setting.workload.name, tokens_per_step=1, strategy=strategy,
             layout=Layout(dp=sum(setting.nodes.values())), prediction=nothing, why="calibration", rule_of_thumb="none"),
        path,
    )


def _run(tunnel: Tunnel, setting: Setting, strategy: Strategy, run: _Run, progress: Progress) -> StrategyRun:
    """Run one strategy, with the faults asked for, and gather what it measured."""
    folder = setting.output.resolve() / f"run-{strategy.name}"
    ranks = start_ranks(tunnel, RunSpec(folder=folder, nodes=setting.nodes, plan=run.plan, blocks=run.steps.text,
                                        command=_command(setting, run.steps)))
    player = FaultPlayer(tunnel, ranks, setting.faults)
    failure = None
    expected_s = run.steps.all * run.prediction.step_s
    try:
        with progress.run(strategy.name, run.steps.all, ranks.steps_seen) as tick:
            ranks.wait(expected_s * _RUN_LIMIT_FACTOR + _RUN_LIMIT_EXTRA_S, lambda: (tick(), player.play())[0])
    except InfeasibleError as error:
        if not setting.faults:
            raise
        failure = f"{error.message}; {error.bind}"
    finally:
        ranks.end()
        player.restore()
    measured = reduce_metrics(read_lines(folder / "metrics"))
    if measured is None and failure is None:
        raise InfeasibleError(f"{strategy.name}: the script ended before one block of {run.steps.on} steps was complete",
                              f"it must run {run.steps.all} optimizer steps, as cluster.batches does by itself")
    return StrategyRun(strategy=strategy, plan=run.plan.name, prediction=run.prediction, steps=run.steps,
                       measured=measured, wire_bytes=player.wire_bytes(), seconds=player.seconds(), failure=failure,
                       faults=player.seen(), timeline=run.timeline)


def _write_results(results: dict[str, Any], output: Path) -> None:
    partial = output / "results.json.partial"
    partial.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
    partial.replace(output / "results.json")
    if results["strategies"]:
        from isthmus.report import write_trial_page

        write_trial_page(results, output / "report.html")


