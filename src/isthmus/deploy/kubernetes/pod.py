"""The pod of one node, the same for every engine."""

from pathlib import PurePosixPath
from typing import Any

from isthmus.deploy.checks import needs_keys
from isthmus.deploy.kubernetes.names import LABEL_REGION, entry_of, object_name
from isthmus.deploy.region_files import BAD_SETUP
from isthmus.deploy.request import Request
from isthmus.deploy.sites import KubernetesEntry, Site

__all__ = [
    "CONTAINER",
    "FILES",
    "POD_NOTES",
    "code_file",
    "failure_policy",
    "gpu_resource",
    "labels",
    "pod_template",
    "requested",
]

HEALTH_NOTE = (
    "initContainers: node.sh check looks at files, certificate and hardware (isthmus doctor) before the node takes part."
)
CONTAINER = "node"
"""Kubeflow Trainer writes into the container of this name, and into no other."""
FILES = ("node.sh", "env.sh", "nodes.txt", "plan.yaml", "members.json")
_HARMLESS_S = 60

POD_NOTES = (
    "hostNetwork: members.json names every rank by its node's address, which other regions reach; a pod's own address they "
    "do not.",
    "ISTHMUS_NODE: the node a pod lands on says which of the region's nodes it is (nodes.txt), so any order of pods is right.",
    "nodeAffinity, podAntiAffinity: on the nodes of sites.yaml, one pod each; members.json is fixed for the run.",
    "securityContext: RDMA pins memory and needs its devices: IPC_LOCK with a device plug-in (rdma_resource), privileged "
    "without; root, because the certificate's key is readable for its owner only.",
    f"exit code {BAD_SETUP} means that starting again does not help: the job fails at once.",
    "No RANK, WORLD_SIZE, MASTER_ADDR or PET_ variable is set: isthmus run numbers ranks, within the region and over all of "
    "them.",
)


def labels(site: Site) -> dict[str, str]:
    """Of every object and pod of a region."""
    return {"app.kubernetes.io/name": "isthmus", LABEL_REGION: object_name(site)}


def gpu_resource(site: Site, entry: KubernetesEntry) -> str:
    """As device plug-ins call GPUs: sites.yaml's word, or the vendor's."""
    if entry.gpu_resource is not None:
        return entry.gpu_resource
    vendors = {group.gpu.vendor for group in site.region.groups}
    return "amd.com/gpu" if vendors == {"AMD"} else "nvidia.com/gpu"


def requested(site: Site, entry: KubernetesEntry) -> dict[str, str]:
    """What one pod takes of its node."""
    found = {gpu_resource(site, entry): str(site.ranks_per_node)}
    if entry.rdma_resource is not None:
        found[entry.rdma_resource] = "1"
    if entry.cpus is not None:
        found["cpu"] = str(entry.cpus)
    if entry.memory is not None:
        found["memory"] = entry.memory
    return found


def code_file(request: Request) -> PurePosixPath | None:
    """The script where its path is relative: it is not in the image, and comes by a ConfigMap of one file."""
    path = next((PurePosixPath(word) for word in request.script if word.endswith(".py")), None)
    return None if path is None or path.is_absolute() else path


def failure_policy() -> dict[str, Any]:
    """Of a batch Job: a bad set-up fails at once, an eviction costs no retry."""
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [BAD_SETUP]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }


def pod_template(
    request: Request, site: Site, annotations: dict[str, str] | None = None, *, check_first: bool = True
) -> dict[str, Any]:
    """metadata and spec of the pod; `check_first`: the health check is an init container, else the node's first step."""
    entry = entry_of(site, request.sites)
    metadata: dict[str, Any] = {"labels": labels(site)}
    if annotations:
        metadata["annotations"] = annotations
    spec: dict[str, Any] = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _HARMLESS_S,
        "affinity": _affinity(site),
        "tolerations": [{"key": gpu_resource(site, entry), "operator": "Exists", "effect": "NoSchedule"}],
        **({"initContainers": [_container(request, site, "health", "check")]} if check_first else {}),
        "containers": [_container(request, site, CONTAINER, "run" if check_first else "both")],
        "volumes": _volumes(request, site, entry),
    }
    if entry.priority_class is not None:
        spec["priorityClassName"] = entry.priority_class
    if entry.pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": entry.pull_secret}]
    return {"metadata": metadata, "spec": spec}


def _affinity(site: Site) -> dict[str, Any]:
    names = [node.name for node in site.nodes]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
    apart = {"labelSelector": {"matchLabels": labels(site)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }


def _container(request: Request, site: Site, name: str, step: str) -> dict[str, Any]:
    entry = entry_of(site, request.sites)
    taken = requested(site, entry)
    return {
        "name": name,
        "image": entry.image,
        "command": ["/bin/bash", f"{site.folder}/node.sh", step],
        "workingDir": str(site.folder),
        "env": [{"name": "ISTHMUS_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"limits": dict(taken), "requests": dict(taken)},
        "securityContext": _security(site, entry),
        "volumeMounts": _mounts(request, site),
    }


def _security(site: Site, entry: KubernetesEntry) -> dict[str, Any]:
    """RDMA pins memory, and its devices come by a plug-in's resource or, without one, by a privileged container."""
    if site.region.network.kind not in ("infiniband", "roce"):
        return {"runAsUser": 0}
    if entry.rdma_resource is None:
        return {"runAsUser": 0, "privileged": True}
    return {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}


def _volumes(request: Request, site: Site, entry: KubernetesEntry) -> list[dict[str, Any]]:
    name = object_name(site)
    found: list[dict[str, Any]] = [
        {"name": "work", "emptyDir": {}},
        {"name": "files", "configMap": {"name": f"{name}-files"}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": entry.claim or f"{name}-checkpoints"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if needs_keys(request):
        found.append({"name": "keys", "secret": {"secretName": f"{name}-keys", "defaultMode": 0o400}})
    if code_file(request) is not None:
        found.append({"name": "code", "configMap": {"name": f"{name}-code"}})
    if site.entry.topology_file is not None:
        found.append({"name": "topology", "hostPath": {"path": site.entry.topology_file, "type": "File"}})
    return found


def _mounts(request: Request, site: Site) -> list[dict[str, Any]]:
    """The folder is the pod's own, with the bundle's files in it one by one: metrics are written beside them."""
    found: list[dict[str, Any]] = [{"name": "work", "mountPath": str(site.folder)}]
    found += [{"name": "files", "mountPath": f"{site.folder}/{file}", "subPath": file, "readOnly": True} for file in FILES]
    found += [
        {"name": "checkpoints", "mountPath": str(site.checkpoints)},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if needs_keys(request):
        found.append({"name": "keys", "mountPath": str(site.keys), "readOnly": True})
    if site.entry.topology_file is not None:
        found.append({"name": "topology", "mountPath": site.entry.topology_file, "readOnly": True})
    code = code_file(request)
    if code is not None:
        found.append({"name": "code", "mountPath": f"{site.folder}/{code}", "subPath": code.name, "readOnly": True})
    return found
