"""The target `trainjob`: a TrainJob of Kubeflow Trainer a region, on a runtime without its torch policy."""

from pathlib import Path
from typing import Any

from isthmus.deploy.kubernetes.fields import check_manifests
from isthmus.deploy.kubernetes.jobset import JOBSET_NOTES, jobset_spec
from isthmus.deploy.kubernetes.manifest import Manifest
from isthmus.deploy.kubernetes.region import Engine, bundle_pieces, metadata
from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["check", "pieces"]

_ENGINE = Engine(name="Kubeflow Trainer", needs="Kubeflow Trainer (fields as of 2.3)", kind="trainjob")
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_RUNTIME_NOTES = (
    "mlPolicy without torch: that one sets PET_NNODES, PET_MASTER_ADDR and more for this TrainJob alone, and a TrainJob may not "
    "set them itself; right in one region, wrong over several.",
    *JOBSET_NOTES,
)


def pieces(request: Request) -> tuple[Piece, ...]:
    """All files for clusters with Kubeflow Trainer."""
    objects = {site.name: ([_runtime(request, site)], [_job(request, site)]) for site in request.sites.sites}
    return bundle_pieces(request, _ENGINE, objects)


def check(folder: Path, request: Request) -> list[Finding]:
    """What the Trainer would refuse."""
    return check_manifests(folder, request)


def _runtime(request: Request, site: Site) -> Manifest:
    content: dict[str, Any] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(site, request),
        "spec": {"mlPolicy": {"numNodes": len(site.nodes)}, "template": {"spec": jobset_spec(request, site, _STEP)}},
    }
    return Manifest(content, _RUNTIME_NOTES)


def _job(request: Request, site: Site) -> Manifest:
    data = metadata(site, request)
    content: dict[str, Any] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": data,
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": data["name"]},
            "trainer": {"numNodes": len(site.nodes)},
        },
    }
    return Manifest(content, ("What runs is the runtime's: image, command and nodes stand there, in one place.",))
