"""The target `volcano`: a VCJob a region, and the region's switches as HyperNodes."""

from pathlib import Path
from typing import Any

from isthmus.deploy.kubernetes.fields import check_manifests
from isthmus.deploy.kubernetes.manifest import Manifest
from isthmus.deploy.kubernetes.names import entry_of, leaf_name, object_name
from isthmus.deploy.kubernetes.pod import CONTAINER, POD_NOTES, pod_template
from isthmus.deploy.kubernetes.region import Engine, bundle_pieces, metadata
from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.region_files import BAD_SETUP
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["check", "pieces"]

_ENGINE = Engine(name="Volcano", needs="Volcano (fields as of 1.15) with the plug-in `network-topology-aware`", kind="vcjob")
_JOB_NOTES = (
    *POD_NOTES,
    "minAvailable, networkTopology: all nodes or none, and none outside the region's HyperNode.",
    "policies: a pod that fails or is evicted starts the whole region again, since its ranks wait for the lost ones.",
    "The health check runs in the node's own container: Volcano's policies see its exit code, and no init container's.",
    "No plug-in svc, pytorch or env: their rank variables end at the region.",
)
_HYPERNODE_NOTES = ("The region's switches as Volcano sees them: tier 1 a leaf (sites.yaml, switch), the last tier the region.",)


def pieces(request: Request) -> tuple[Piece, ...]:
    """All files for clusters with Volcano."""
    objects = {site.name: (_hypernodes(request, site), [_job(request, site)]) for site in request.sites.sites}
    return bundle_pieces(request, _ENGINE, objects)


def check(folder: Path, request: Request) -> list[Finding]:
    """What Volcano would refuse."""
    return check_manifests(folder, request)


def _hypernodes(request: Request, site: Site) -> list[Manifest]:
    entry_of(site, request.sites)
    leaves = sorted({node.switch for node in site.nodes if node.switch})
    whole = all(node.switch for node in site.nodes) and len(leaves) > 1
    found: list[Manifest] = []
    if whole:
        for leaf in leaves:
            nodes = [node.name for node in site.nodes if node.switch == leaf]
            found.append(Manifest(_hypernode(leaf_name(site, leaf), 1, "leaf", "Node", nodes)))
    members = [leaf_name(site, leaf) for leaf in leaves] if whole else [node.name for node in site.nodes]
    kind, tier = ("HyperNode", 2) if whole else ("Node", 1)
    found.append(Manifest(_hypernode(object_name(site), tier, "region", kind, members)))
    return [Manifest(found[0].content, _HYPERNODE_NOTES), *found[1:]]


def _hypernode(name: str, tier: int, tier_name: str, kind: str, members: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "tierName": tier_name,
            "members": [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members],
        },
    }


def _job(request: Request, site: Site) -> Manifest:
    nodes, entry = len(site.nodes), entry_of(site, request.sites)
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": entry.queue or "default",
        "minAvailable": nodes,
        "maxRetry": site.entry.restarts,
        "networkTopology": {"mode": "hard", "highestTierName": "region"},
        "policies": [
            {"exitCode": BAD_SETUP, "action": "AbortJob"},
            {"event": "PodFailed", "action": "RestartJob"},
            {"event": "PodEvicted", "action": "RestartJob"},
            {"event": "TaskCompleted", "action": "CompleteJob"},
        ],
        "tasks": [
            {
                "name": CONTAINER,
                "replicas": nodes,
                "minAvailable": nodes,
                "template": pod_template(request, site, check_first=False),
            }
        ],
    }
    if entry.priority_class is not None:
        spec["priorityClassName"] = entry.priority_class
    content = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata(site, request), "spec": spec}
    return Manifest(content, _JOB_NOTES)
