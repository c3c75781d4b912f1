"""Who makes the pieces of a bundle, by the name that `--to` takes.

A target is a module of this room, loaded on use, with two functions (`Given` is `Request`, or `FabricRequest` where it `takes` a
fabric only):

    def pieces(request: Given) -> tuple[Piece, ...]            what it adds to the bundle; raises InputError
    def check(folder: Path, request: Given) -> list[Finding]   looks at a bundle on disk, beyond what holds for every target

`make_bundle` adds what every bundle has: copies of the documents, from which `check_bundle` starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from isthmus.deploy.checks import check_request
from isthmus.deploy.folder import MANIFEST, edits, read_manifest
from isthmus.deploy.pieces import Bundle, Finding, Piece
from isthmus.deploy.request import FabricRequest, Request
from isthmus.deploy.sites import read_sites
from isthmus.documents import read_text
from isthmus.errors import InputError, nearest
from isthmus.fabric import read_fabric
from isthmus.plan import load_plan

__all__ = ["TARGETS", "Target", "check_bundle", "make_bundle", "target"]


@dataclass(frozen=True, slots=True)
class Target:
    """One engine.

    Attributes:
        module: Where its `pieces` and `check` are.
        summary: For --help and errors.
        takes: A plan (with sites and a script), or a fabric.
        script: It starts one, so one must be given.
    """

    module: str
    summary: str
    takes: Literal["plan", "fabric"] = "plan"
    script: bool = True


TARGETS: dict[str, Target] = {
    "slurm": Target("isthmus.deploy.slurm", "a job a region for sbatch, and topology files"),
    "torchrun": Target("isthmus.deploy.torchrun", "a script to start on every node, for those without a scheduler"),
    "volcano": Target("isthmus.deploy.kubernetes.volcano", "Volcano's job a region, and its switches as HyperNodes"),
    "jobset": Target("isthmus.deploy.kubernetes.jobset", "a JobSet a region"),
    "trainjob": Target("isthmus.deploy.kubernetes.trainjob", "Kubeflow Trainer's job and runtime a region"),
    "kueue": Target("isthmus.deploy.kubernetes.kueue", "a batch Job a region behind Kueue's queues"),
    "observability": Target("isthmus.deploy.observability", "Prometheus with rules, a Grafana dashboard", script=False),
    "network": Target("isthmus.deploy.network", "switches, adapters, TCP between regions, clocks", script=False),
}


def target(name: str) -> Target:
    """The target called `name`. Raises InputError where there is none."""
    if name not in TARGETS:
        raise InputError("--to", f"{name!r} is no target", nearest(name, TARGETS))
    return TARGETS[name]


def make_bundle(name: str, request: Request | FabricRequest) -> Bundle:
    """All files for one target. Raises InputError for what it cannot be asked."""
    pieces: Callable[[Any], tuple[Piece, ...]] = import_module(target(name).module).pieces
    if isinstance(request, FabricRequest):
        return Bundle(name, (*pieces(request), Piece("fabric.yaml", read_text(request.fabric_path))))
    if target(name).script and not request.script:
        raise InputError("isthmus deploy", "no training script given", f"isthmus deploy plan.yaml ... --to {name} -- train.py")
    sites = request.sites
    copies = (
        Piece("plan.yaml", read_text(request.plan_path)),
        Piece("fabric.yaml", read_text(sites.fabric_path)),
        Piece("sites.yaml", read_text(sites.path)),
    )
    made_from: dict[str, object] = {
        "script": list(request.script),
        "health_check": request.health_check,
        "certificates": str(sites.certificates.resolve()) if sites.certificates else None,
    }
    return Bundle(name, (*pieces(request), *copies), made_from)


def check_bundle(folder: Path) -> list[Finding]:
    """Everything wrong with a bundle on disk, errors first.

    Raises:
        InputError: It is no bundle, or a document in it cannot be read.
    """
    manifest = read_manifest(folder)
    found = edits(folder, manifest)
    if any(finding.severity == "error" for finding in found):
        return found
    if manifest.target not in TARGETS:
        raise InputError(str(folder / MANIFEST), f"target {manifest.target!r} is unknown", nearest(manifest.target, TARGETS))
    check: Callable[[Path, Any], list[Finding]] = import_module(target(manifest.target).module).check
    if target(manifest.target).takes == "fabric":
        place = folder / "fabric.yaml"
        found += check(folder, FabricRequest(fabric=read_fabric(place), fabric_path=place))
    else:
        request = _request_of(folder, manifest.made_from)
        found += check_request(request, starts=target(manifest.target).script) + check(folder, request)
    return sorted(found, key=lambda finding: finding.severity)


def _request_of(folder: Path, made_from: dict[str, Any]) -> Request:
    sites = read_sites(folder / "sites.yaml", folder / "fabric.yaml", made_from.get("certificates"))
    return Request(
        plan=load_plan(folder / "plan.yaml"),
        plan_path=folder / "plan.yaml",
        sites=sites,
        script=tuple(made_from.get("script", ())),
        health_check=bool(made_from.get("health_check", True)),
    )
