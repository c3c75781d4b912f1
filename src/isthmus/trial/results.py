"""results.json: everything a trial asked, predicted and measured, in one document that the reports read."""

import platform
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from isthmus import __version__
from isthmus.bench import Speeds
from isthmus.cost import Segment
from isthmus.emulate import Tunnel
from isthmus.fabric import Fabric
from isthmus.plan import Assumption, Prediction, Strategy
from isthmus.trial.measured import Measured
from isthmus.trial.request import Setting, TrialRequest
from isthmus.trial.scaling import RealRatios, TunnelLinks
from isthmus.trial.schedule import Steps
from isthmus.workload import parameter_count

__all__ = ["StrategyRun", "results_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """One strategy's prediction and what came of it.

    Attributes:
        wire_bytes: (IP bytes on the busiest uplink since the first step was seen, number of that step).
        failure: Why the run ended early (only under a scripted fault), or None.
    """

    strategy: Strategy
    plan: str
    prediction: Prediction
    steps: Steps
    measured: Measured | None
    wire_bytes: tuple[int, int]
    seconds: float
    failure: str | None
    faults: list[dict[str, object]]
    timeline: list[Segment]


def results_document(  # noqa: PLR0913, PLR0917 -- one argument per part of the document
    request: TrialRequest, setting: Setting, ratios: RealRatios, links: TunnelLinks, calibration: Measured, speeds: Speeds,
    runs: list[StrategyRun], tunnel: Tunnel, assumptions: list[Assumption],
) -> dict[str, Any]:
    """The document; its layout is `report.results.read_results`'s."""
    return {
        "version": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "isthmus " + " ".join(sys.argv[1:]),
        "isthmus": __version__,
        "machine": _machine(tunnel),
        "fabric": _fabric(setting.fabric, str(request.fabric)),
        "workload": {
            "name": setting.workload.name,
            "parameters": parameter_count(setting.workload.shape),
            "tokens_per_step": setting.workload.tokens_per_step,
        },
        "trial": {
            "model": "tiny" if setting.script is None else "the script's own",
            "parameters": calibration.parameters,
            "gradient_bytes": calibration.gradient_bytes,
            "tokens_per_step": round(calibration.tokens_per_step),
            "steps": runs[0].steps.trained if runs else 0,
            "script": None if setting.script is None else " ".join(setting.script[1:]),
        },
        "tunnel": {
            "nodes": setting.nodes,
            "links": [
                {"between": list(link.between), "rate_bytes_per_s": link.rate_bytes_per_s, "rtt_s": link.rtt_s,
                 "jitter_s": link.jitter_s, "loss": link.loss}
                for link in links.links
            ],
            "lateness_p99_s": max(c.late_p99_s for c in tunnel.counters().values()),
            "congestion_control": tunnel.congestion,
            "similitude": {
                "transfer_over_compute": {"asked": ratios.ratios.transfer, "achieved": links.achieved.transfer},
                "rtt_over_compute": {"asked": ratios.ratios.rtt, "achieved": links.achieved.rtt},
                "left_out": list(links.left_out),
            },
        },
        "compute_s": calibration.off_step_s,
        "speeds": [asdict(row) for row in speeds.rows()],
        "strategies": [_strategy(run, run.measured, runs) for run in runs if run.measured is not None],
        "faults": [fault for run in runs for fault in _faults(run)],
        "assumptions": [assumption.model_dump() for assumption in assumptions],
    }


def _machine(tunnel: Tunnel) -> dict[str, Any]:
    import os

    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "privilege": "user namespace" if tunnel.rootless else "root",
    }


def _fabric(fabric: Fabric, source: str) -> dict[str, Any]:
    return {
        "name": fabric.name,
        "source": source,
        "regions": [
            {
                "name": region.name, "city": region.city, "nodes": region.nodes, "gpus": region.gpus,
                "gpu_kind": " + ".join(sorted({group.gpu.kind for group in region.groups})),
                "network_kind": region.network.kind, "network_rate_bytes_per_s": region.network.rate_bytes_per_s,
            }
            for region in fabric.regions
        ],
        "wan": [
            {
                "between": list(link.between), "rate_bytes_per_s": link.rate_bytes_per_s, "rtt_s": link.rtt_s,
                "jitter_s": link.jitter_s, "loss": link.loss, "transport": link.transport,
            }
            for link in fabric.wan
        ],
    }


def _faults(run: StrategyRun) -> list[dict[str, object]]:
    """What was played, and how the run ended where a fault ended it; each row names its strategy."""
    rows = [fault | {"what": f"{run.strategy.name}: {fault['what']}"} for fault in run.faults]
    if run.failure is not None:
        rows.append({"at_s": run.seconds, "what": f"{run.strategy.name}: ended early", "seen": run.failure})
    return rows


def _strategy(run: StrategyRun, measured: Measured, runs: list[StrategyRun]) -> dict[str, Any]:
    tokens = _equal_tokens(runs)
    loss = dict(measured.loss)
    return {
        "name": run.strategy.name, "kind": run.strategy.kind, "codec": run.strategy.codec, "plan": run.plan,
        "predicted": run.prediction.model_dump(mode="json"),
        "seconds": run.seconds,
        "timeline": [asdict(segment) for segment in run.timeline],
        "measured": {
            "step_s": measured.step_s,
            "step_s_repeats": list(measured.step_s_repeats),
            "off_step_s_repeats": list(measured.off_step_s_repeats),
            "tokens_per_s": measured.tokens_per_s,
            "utilisation": measured.utilisation,
            "exposed_s": measured.exposed_s,
            "wan_bytes_per_step": _wire_bytes_per_step(run, measured),
        },
        "ratio": run.prediction.step_s / measured.step_s,
        "loss": [list(pair) for pair in measured.loss],
        "loss_at_equal_tokens": loss.get(tokens) if tokens is not None else None,
        "equal_tokens": tokens,
        "replicas_equal": len(set(measured.hashes)) == 1 if measured.hashes else None,
        "hash": measured.hashes[0] if measured.hashes else None,
    }


def _equal_tokens(runs: list[StrategyRun]) -> int | None:
    """The most tokens after which every strategy was evaluated."""
    seen = [{tokens for tokens, _ in run.measured.loss} for run in runs if run.measured is not None]
    return max((tokens for tokens in (seen[0] if seen else ()) if all(tokens in other for other in seen)), default=None)


def _wire_bytes_per_step(run: StrategyRun, measured: Measured) -> float:
    """IP bytes on the busiest uplink per training step, counted at the emulated link."""
    total, first = run.wire_bytes
    trained = run.steps.trained if measured.steps >= run.steps.all else measured.steps
    return total / max(1, trained - first)
