"""The target `jobset`: a JobSet a region. Its parts are the Trainer's too."""

from pathlib import Path
from typing import Any

from isthmus.deploy.kubernetes.fields import check_manifests
from isthmus.deploy.kubernetes.manifest import Manifest
from isthmus.deploy.kubernetes.pod import CONTAINER, HEALTH_NOTE, POD_NOTES, failure_policy, pod_template
from isthmus.deploy.kubernetes.region import Engine, bundle_pieces, metadata
from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["JOBSET_NOTES", "batch_job_spec", "check", "jobset_spec", "pieces"]

_ENGINE = Engine(name="JobSet", needs="JobSet (fields as of 0.12)", kind="jobset")
JOBSET_NOTES = (
    *POD_NOTES,
    HEALTH_NOTE,
    "backoffLimit 0 and maxRestarts: a pod that fails starts the whole region again, since its ranks wait for the lost ones.",
    "enableDNSHostnames false: ranks meet at addresses; a pod on the node's network has no name of its own.",
)


def pieces(request: Request) -> tuple[Piece, ...]:
    """All files for clusters with JobSet."""
    objects: dict[str, tuple[list[Manifest], list[Manifest]]] = {}
    for site in request.sites.sites:
        content = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(site, request),
            "spec": jobset_spec(request, site),
        }
        objects[site.name] = ([], [Manifest(content, JOBSET_NOTES)])
    return bundle_pieces(request, _ENGINE, objects)


def check(folder: Path, request: Request) -> list[Finding]:
    """What JobSet would refuse."""
    return check_manifests(folder, request)


def jobset_spec(request: Request, site: Site, job_labels: dict[str, str] | None = None) -> dict[str, Any]:
    """One replicated Job of all the region's nodes."""
    template: dict[str, Any] = {"spec": batch_job_spec(request, site, 0)}
    if job_labels:
        template = {"metadata": {"labels": job_labels}, **template}
    return {
        "network": {"enableDNSHostnames": False},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {
            "maxRestarts": site.entry.restarts,
            "rules": [{"name": "badsetup", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": template}],
    }


def batch_job_spec(request: Request, site: Site, retries: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A batch Job of a pod a node."""
    nodes = len(site.nodes)
    return {
        "completionMode": "Indexed",
        "parallelism": nodes,
        "completions": nodes,
        "backoffLimit": retries,
        "podFailurePolicy": failure_policy(),
        "template": pod_template(request, site, annotations),
    }
