"""The target `kueue`: a batch Job a region behind Kueue's quota, on nodes that are near each other."""

from pathlib import Path
from typing import Any

from isthmus.deploy.kubernetes.fields import check_manifests
from isthmus.deploy.kubernetes.jobset import batch_job_spec
from isthmus.deploy.kubernetes.manifest import Manifest
from isthmus.deploy.kubernetes.names import LABEL_LEAF, LABEL_REGION, entry_of, object_name
from isthmus.deploy.kubernetes.pod import HEALTH_NOTE, POD_NOTES, requested
from isthmus.deploy.kubernetes.region import Engine, bundle_pieces, metadata
from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["check", "pieces"]

_API = "kueue.x-k8s.io/v1beta2"
_ENGINE = Engine(name="Kueue", needs="Kueue (API v1beta2, fields as of 0.19)", kind="job.batch", labels_nodes=True)
_JOB_NOTES = (
    *POD_NOTES,
    HEALTH_NOTE,
    "suspend: Kueue lets the job go when all its nodes are free at once.",
    "podset-required-topology: all pods under one value of that label; the region's nodes carry it.",
    "backoffLimit: a pod that fails is started again on its node; the others wait for it at the rendezvous.",
)


def pieces(request: Request) -> tuple[Piece, ...]:
    """All files for clusters with Kueue."""
    return bundle_pieces(
        request, _ENGINE, {site.name: (_queues(request, site), [_job(request, site)]) for site in request.sites.sites}
    )


def check(folder: Path, request: Request) -> list[Finding]:
    """What Kueue would refuse."""
    return check_manifests(folder, request)


def _queue(request: Request, site: Site) -> str:
    return entry_of(site, request.sites).queue or object_name(site)


def _queues(request: Request, site: Site) -> list[Manifest]:
    """Topology, flavor and queues; only the topology and the flavor where sites.yaml names a queue that exists."""
    name, entry = object_name(site), entry_of(site, request.sites)
    leaves = [LABEL_LEAF] if all(node.switch for node in site.nodes) else []
    levels = [LABEL_REGION, *leaves, "kubernetes.io/hostname"]
    topology = {"levels": [{"nodeLabel": label} for label in levels]}
    flavor = {"nodeLabels": {LABEL_REGION: name}, "topologyName": name}
    quota = [
        {"name": resource, "nominalQuota": _times(amount, len(site.nodes))} for resource, amount in requested(site, entry).items()
    ]
    cluster_queue = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": entry.namespace}},
        "resourceGroups": [
            {"coveredResources": [each["name"] for each in quota], "flavors": [{"name": name, "resources": quota}]},
        ],
    }
    found = [
        Manifest(
            _object("Topology", metadata(site, request, namespaced=False), topology),
            ("From the region down to a node, by labels that README.md sets; hostname only at the bottom.",),
        ),
        Manifest(_object("ResourceFlavor", metadata(site, request, namespaced=False), flavor)),
    ]
    if entry.queue is None:
        found += [
            Manifest(
                _object("ClusterQueue", metadata(site, request, namespaced=False), cluster_queue),
                (
                    "Quota of this region's nodes, all of it. Every resource that a pod asks for must be covered, or Kueue "
                    "never admits it.",
                ),
            ),
            Manifest(_object("LocalQueue", metadata(site, request), {"clusterQueue": name})),
        ]
    return found


def _times(amount: str, nodes: int) -> str:
    """A quantity `nodes` times over: its number multiplied, its suffix kept."""
    digits = amount.rstrip("KMGTPEikm")
    return f"{int(digits) * nodes}{amount[len(digits) :]}"


def _object(kind: str, data: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": data, "spec": spec}


def _job(request: Request, site: Site) -> Manifest:
    data = metadata(site, request)
    data["labels"] = data["labels"] | {"kueue.x-k8s.io/queue-name": _queue(request, site)}
    near = {"kueue.x-k8s.io/podset-required-topology": LABEL_REGION}
    spec = {"suspend": True, **batch_job_spec(request, site, site.entry.restarts * len(site.nodes), near)}
    return Manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": data, "spec": spec}, _JOB_NOTES)
