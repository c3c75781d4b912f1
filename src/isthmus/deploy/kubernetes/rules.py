"""What engines check beyond their schemas: their CEL rules and webhooks that bear on what we write, and references among objects.

Sources: the CRDs' x-kubernetes-validations (Volcano ed72c7c HyperNode and Job, Kueue ff69552 Topology and ResourceFlavor, JobSet
08dfbdf, Trainer 8c0f505 TrainJob and TrainingRuntime); Trainer's reserved names, pkg/constants/constants.go; Kubernetes'
validation of batch Jobs.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

from isthmus.deploy.pieces import Finding

__all__ = ["RESERVED", "broken_rules"]

RESERVED = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
        "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
    }
)  # fmt: skip
"""Variables that number ranks: `isthmus run` sets them, and what an engine sets ends at the region."""

Objects = list[tuple[str, dict[str, Any]]]


def broken_rules(objects: Objects, nodes: int) -> list[Finding]:
    """What the objects of one region break; each has passed its schema. `nodes` are those of the region."""
    found: list[Finding] = []
    for path, content in objects:
        said = [*_own(content), *_pods(content, objects, nodes), *_among(content, objects)]
        name = f"{content['kind']} {content['metadata']['name']}"
        found += [Finding("error", path, f"{name}: {each}") for each in said]
    return found


def _own(content: dict[str, Any]) -> Iterator[str]:
    volcano = content["apiVersion"] == "batch.volcano.sh/v1alpha1"
    check = _volcano if volcano else _OWN.get(content["kind"])
    if check is not None:
        yield from check(content)


def _hypernode(content: dict[str, Any]) -> Iterator[str]:
    for member in content["spec"].get("members", []):
        if len(member.get("selector", {})) != 1:
            yield "a member's selector is exactly one of exactMatch, regexMatch and labelMatch"
        if "labelMatch" in member.get("selector", {}) and member["type"] != "Node":
            yield "labelMatch selects nodes, not HyperNodes"


def _topology(content: dict[str, Any]) -> Iterator[str]:
    names = [level["nodeLabel"] for level in content["spec"]["levels"]]
    if len(set(names)) < len(names):
        yield "levels must differ"
    if "kubernetes.io/hostname" in names[:-1]:
        yield "kubernetes.io/hostname may stand at the lowest level only"
    if not 1 <= len(names) <= 16:
        yield f"has {len(names)} levels, 1 to 16 are taken"


def _flavor(content: dict[str, Any]) -> Iterator[str]:
    if "topologyName" in content["spec"] and not content["spec"].get("nodeLabels"):
        yield "topologyName needs nodeLabels"


def _cluster_queue(content: dict[str, Any]) -> Iterator[str]:
    for group in content["spec"].get("resourceGroups", []):
        for flavor in group["flavors"]:
            if [each["name"] for each in flavor["resources"]] != group["coveredResources"]:
                yield f"flavor {flavor['name']} gives quota for other resources than are covered"


def _volcano(content: dict[str, Any]) -> Iterator[str]:
    spec = content["spec"]
    for topology in [spec.get("networkTopology", {}), *[task.get("networkTopology", {}) for task in spec["tasks"]]]:
        if {"highestTierAllowed", "highestTierName"} <= set(topology):
            yield "networkTopology takes highestTierAllowed or highestTierName, not both"
    if spec.get("minAvailable", 0) > sum(task["replicas"] for task in spec["tasks"]):
        yield "minAvailable is more than all replicas: the job never starts"
    for policy in spec.get("policies", []):
        if ("exitCode" in policy) == ("event" in policy):
            yield "a policy has an event or an exitCode, not both"


def _jobset(content: dict[str, Any]) -> Iterator[str]:
    name, spec = content["metadata"]["name"], content["spec"]
    for job in (spec["template"]["spec"] if content["kind"] == "TrainingRuntime" else spec)["replicatedJobs"]:
        batch = job["template"]["spec"]
        longest = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{batch.get('completions', 1) - 1}-abcde"
        if len(longest) > 63:
            yield f"its pods would be called {longest}: {len(longest)} characters, at most 63 are taken"


_OWN: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "HyperNode": _hypernode,
    "Topology": _topology,
    "ResourceFlavor": _flavor,
    "ClusterQueue": _cluster_queue,
    "JobSet": _jobset,
    "TrainingRuntime": _jobset,
}


def _templates(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pod templates of an object, each with what holds it."""
    spec = content.get("spec", {})
    match content["apiVersion"], content["kind"]:
        case "batch.volcano.sh/v1alpha1", "Job":
            yield from ((task, task["template"]) for task in spec["tasks"])
        case _, "Job":
            yield spec, spec["template"]
        case _, "JobSet":
            yield from ((job["template"]["spec"], job["template"]["spec"]["template"]) for job in spec["replicatedJobs"])
        case _, "TrainingRuntime":
            jobs = spec["template"]["spec"]["replicatedJobs"]
            yield from ((job["template"]["spec"], job["template"]["spec"]["template"]) for job in jobs)
        case _:
            return


def _pods(content: dict[str, Any], objects: Objects, nodes: int) -> Iterator[str]:
    for holder, template in _templates(content):
        pod = template["spec"]
        count = holder.get("replicas", holder.get("parallelism"))
        if count != nodes or holder.get("completions", count) != count:
            yield f"starts {count} pods, the region has {nodes} nodes"
        if "podFailurePolicy" in holder and pod["restartPolicy"] != "Never":
            yield "podFailurePolicy needs restartPolicy Never"
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        if len(set(volumes)) < len(volumes):
            yield "two volumes have one name"
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield from _container(container, volumes)
        yield from _references(pod, objects)


def _container(container: dict[str, Any], volumes: list[str]) -> Iterator[str]:
    reserved = sorted(RESERVED & {each["name"] for each in container.get("env", [])})
    if reserved:
        yield f"container {container['name']} sets {reserved[0]}: isthmus run numbers ranks, over all regions"
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    if len(set(paths)) < len(paths):
        yield f"container {container['name']} mounts two volumes at one path"
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"container {container['name']} mounts {mount['name']!r}, which is no volume of the pod"


def _references(pod: dict[str, Any], objects: Objects) -> Iterator[str]:
    """The region's own ConfigMap and claim; its Secret and the script's ConfigMap are made by hand, as README.md says."""
    here = {(content["kind"], content["metadata"]["name"]) for _, content in objects}
    for volume in pod.get("volumes", []):
        name = volume.get("configMap", {}).get("name", "")
        if name.endswith("-files") and ("ConfigMap", name) not in here:
            yield f"mounts the ConfigMap {name!r}, which is not in the bundle"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
        own = f"{_name_of(pod)}-checkpoints"
        if claim == own and ("PersistentVolumeClaim", claim) not in here:
            yield f"mounts the claim {claim!r}, which is not in the bundle"


def _name_of(pod: dict[str, Any]) -> str:
    """The region's object name, by its ConfigMap of files."""
    names = [cast(str, volume["configMap"]["name"]) for volume in pod.get("volumes", []) if "configMap" in volume]
    return next((name.removesuffix("-files") for name in names if name.endswith("-files")), "")


Here = dict[tuple[str, str], dict[str, Any]]


def _among(content: dict[str, Any], objects: Objects) -> Iterator[str]:
    here: Here = {(other["kind"], other["metadata"]["name"]): other for _, other in objects}
    volcano = content["apiVersion"] == "batch.volcano.sh/v1alpha1"
    check = _tier_named if volcano else _AMONG.get(content["kind"])
    if check is not None:
        yield from check(content, here)


def _tier_named(content: dict[str, Any], here: Here) -> Iterator[str]:
    tiers: set[str] = {other["spec"].get("tierName", "") for (kind, _), other in here.items() if kind == "HyperNode"}
    name = content["spec"].get("networkTopology", {}).get("highestTierName")
    if name is not None and name not in tiers:
        yield f"highestTierName {name!r} is the tierName of no HyperNode: {', '.join(sorted(tiers))}"


def _members_there(content: dict[str, Any], here: Here) -> Iterator[str]:
    for member in content["spec"].get("members", []):
        name = member.get("selector", {}).get("exactMatch", {}).get("name")
        if member["type"] == "HyperNode" and ("HyperNode", name) not in here:
            yield f"its member {name!r} is no HyperNode of the bundle"


def _runtime_there(content: dict[str, Any], here: Here) -> Iterator[str]:
    spec = content["spec"]
    runtime = here.get(("TrainingRuntime", spec["runtimeRef"]["name"]))
    if runtime is None:
        yield f"runs on {spec['runtimeRef']['name']!r}, which is no TrainingRuntime of the bundle"
    elif spec.get("trainer", {}).get("numNodes") != runtime["spec"].get("mlPolicy", {}).get("numNodes"):
        yield "numNodes differs from its runtime's"
    reserved = sorted(RESERVED & {each["name"] for each in spec.get("trainer", {}).get("env", [])})
    if reserved:
        yield f"sets {reserved[0]}: isthmus run numbers ranks, over all regions"


def _cluster_queue_there(content: dict[str, Any], here: Here) -> Iterator[str]:
    if ("ClusterQueue", content["spec"]["clusterQueue"]) not in here:
        yield f"leads to {content['spec']['clusterQueue']!r}, which is no ClusterQueue of the bundle"


def _topology_there(content: dict[str, Any], here: Here) -> Iterator[str]:
    name = content["spec"].get("topologyName")
    if name is not None and ("Topology", name) not in here:
        yield f"names the Topology {name!r}, which is not in the bundle"


def _admitted(content: dict[str, Any], here: Here) -> Iterator[str]:
    """A Job behind a queue of the bundle: every resource covered, or Kueue never admits it; the topology's label there."""
    queues = [other for (kind, _), other in here.items() if kind == "ClusterQueue"]
    topologies = [other for (kind, _), other in here.items() if kind == "Topology"]
    template = content["spec"]["template"]
    for queue in queues:
        covered = {name for group in queue["spec"].get("resourceGroups", []) for name in group["coveredResources"]}
        for container in template["spec"]["containers"]:
            for name in container["resources"]["requests"]:
                if name not in covered:
                    yield f"asks for {name}, which {queue['metadata']['name']} does not cover: Kueue would never admit it"
    near = template.get("metadata", {}).get("annotations", {}).get("kueue.x-k8s.io/podset-required-topology")
    for topology in topologies:
        if near is not None and near not in {level["nodeLabel"] for level in topology["spec"]["levels"]}:
            yield f"requires the topology {near!r}, which is no level of {topology['metadata']['name']}"


_AMONG: dict[str, Callable[[dict[str, Any], Here], Iterator[str]]] = {
    "HyperNode": _members_there,
    "TrainJob": _runtime_there,
    "LocalQueue": _cluster_queue_there,
    "ResourceFlavor": _topology_there,
    "Job": _admitted,
}
