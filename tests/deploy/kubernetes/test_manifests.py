"""Objects for Kubernetes: what they hold, that core kinds pass Kubernetes' own schemas, and that broken ones are refused."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.deploy.kubernetes.fields import check_manifests, faults_of
from isthmus.deploy.kubernetes.rules import RESERVED, broken_rules
from isthmus.deploy.request import Request
from isthmus.deploy.sites import read_sites
from isthmus.deploy.targets import make_bundle
from isthmus.errors import InputError
from isthmus.plan import load_plan

from ..conftest import prepare

TARGETS = ("volcano", "jobset", "trainjob", "kueue")
Objects = dict[str, list[dict[str, Any]]]
Edit = Callable[[str], str]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's documents and certificates, made once."""
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def given(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(given: Path, edit: Edit = lambda text: text, script: tuple[str, ...] = ("train.py", "--steps", "10")) -> Request:
    """The example's request, with sites.yaml edited."""
    path = given / "sites.yaml"
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    return Request(plan=load_plan(given / "plan.yaml"), plan_path=given / "plan.yaml", sites=read_sites(path), script=script)


def objects(request: Request, target: str) -> Objects:
    """Objects of each region, by its name."""
    found: Objects = {}
    for piece in make_bundle(target, request).pieces:
        region, slash, _ = piece.path.rpartition("/")
        if slash and piece.path.endswith(".yaml"):
            found.setdefault(region, []).extend(yaml.safe_load_all(piece.text))
    return found


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (match,) = [each for each in found if each["kind"] == kind]
    return match


def pod(found: list[dict[str, Any]], target: str) -> dict[str, Any]:
    """The pod template of a region's job."""
    match target:
        case "volcano":
            return one(found, "Job")["spec"]["tasks"][0]["template"]
        case "jobset":
            return one(found, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        case "trainjob":
            return one(found, "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        case _:
            return one(found, "Job")["spec"]["template"]


def full(text: str) -> str:
    """Every key of `kubernetes` given, and a leaf switch for each node of shenzhen."""
    keys = (
        "image: registry.example/train:1, namespace: training, context: east, gpu_resource: nvidia.com/gpu, "
        "rdma_resource: rdma/hca, cpus: 96, memory: 1500Gi, "
        "storage: 20Ti, storage_class: fast, priority_class: high, pull_secret: registry"
    )
    text = text.replace("kubernetes: {image: registry.example/train:1}", f"kubernetes: {{{keys}}}")
    for number, node in enumerate(("shenzhen-1", "shenzhen-2"), 1):
        text = text.replace(f"{{name: {node}, ", f"{{name: {node}, switch: Leaf_{number}, ")
    return text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("edit", [lambda text: text, full], ids=["least", "full"])
def test_core_kinds_and_every_pod_pass_kubernetes_own_schemas(given: Path, target: str, edit: Edit) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (dev extra)")
    found = objects(asked(given, edit), target)["shenzhen"]
    template = pod(found, target)
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", **template["metadata"]}, "spec": template["spec"]}
    for document in [whole, *[each for each in found if each["apiVersion"] == "batch/v1"]]:
        validator.validate(document, "1.37", strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate({**whole, "spec": {**whole["spec"], "hostNetwrok": True}}, "1.37", strict=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("edit", [lambda text: text, full], ids=["least", "full"])
def test_our_own_schemas_and_rules_accept_what_we_write(given: Path, target: str, edit: Edit) -> None:
    for found in objects(asked(given, edit), target).values():
        assert [fault for each in found for fault in faults_of(each)] == []
        assert broken_rules([("x", each) for each in found], 2) == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_pod_knows_its_node_and_no_engine_numbers_ranks(given: Path, target: str) -> None:
    for region, found in objects(asked(given), target).items():
        spec = pod(found, target)["spec"]
        assert spec["hostNetwork"] is True
        names = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
        assert names["matchExpressions"][0]["values"] == [f"{region}-1", f"{region}-2"]
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        # Volcano sees no exit code of an init container: there the node checks itself before it runs.
        assert [each["command"][-1] for each in containers] == (["both"] if target == "volcano" else ["check", "run"])
        for container in containers:
            (variable,) = container["env"]
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        files = one(found, "ConfigMap")["data"]
        assert files["nodes.txt"].startswith(f"{region}-1 0 ")
        assert json.loads(files["members.json"])["regions"][0]["name"] == "shenzhen"
        assert "export NCCL_DEBUG=WARN" in files["env.sh"]


@pytest.mark.parametrize("target", TARGETS)
def test_certificates_come_from_a_secret_that_others_cannot_read(given: Path, target: str) -> None:
    found = objects(asked(given), target)["shenzhen"]
    (keys,) = [volume for volume in pod(found, target)["spec"]["volumes"] if volume["name"] == "keys"]
    assert keys["secret"] == {"secretName": "isthmus-shenzhen-keys", "defaultMode": 0o400}
    bundle = make_bundle(target, asked(given))
    (readme,) = [piece.text for piece in bundle.pieces if piece.path == "shenzhen/README.md"]
    assert "create secret generic isthmus-shenzhen-keys --from-file=keys/ca.pem --from-file=keys/shenzhen.pem" in readme
    assert not [piece.path for piece in bundle.pieces if "PRIVATE KEY" in piece.text]


def test_a_relative_script_comes_by_a_configmap_and_an_absolute_one_is_the_images(given: Path) -> None:
    spec = pod(objects(asked(given, script=("src/train.py",)), "jobset")["shenzhen"], "jobset")["spec"]
    (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "code"]
    assert (mount["mountPath"], mount["subPath"]) == ("/srv/isthmus/src/train.py", "train.py")
    bundle = make_bundle("jobset", asked(given, script=("src/train.py",)))
    (readme,) = [piece.text for piece in bundle.pieces if piece.path == "shenzhen/README.md"]
    assert "create configmap isthmus-shenzhen-code --from-file=train.py=src/train.py" in readme
    spec = pod(objects(asked(given, script=("/app/train.py",)), "jobset")["shenzhen"], "jobset")["spec"]
    assert "code" not in [volume["name"] for volume in spec["volumes"]]


def test_nccls_topology_file_comes_from_the_node(given: Path) -> None:
    request = asked(given, lambda text: text.replace("    # topology_file: /opt/topo.xml", "    topology_file: /opt/topo.xml"))
    found = objects(request, "jobset")["shenzhen"]
    (volume,) = [volume for volume in pod(found, "jobset")["spec"]["volumes"] if volume["name"] == "topology"]
    assert volume["hostPath"] == {"path": "/opt/topo.xml", "type": "File"}
    assert "export NCCL_TOPO_FILE=/opt/topo.xml" in one(found, "ConfigMap")["data"]["env.sh"]
    assert [fault for each in found for fault in faults_of(each)] == []


def test_leaf_switches_become_hypernodes_under_the_region(given: Path) -> None:
    found = objects(asked(given, full), "volcano")
    tiers = {each["metadata"]["name"]: each["spec"] for each in found["shenzhen"] if each["kind"] == "HyperNode"}
    assert {name: (spec["tier"], spec["tierName"]) for name, spec in tiers.items()} == {
        "isthmus-shenzhen-leaf-1": (1, "leaf"), "isthmus-shenzhen-leaf-2": (1, "leaf"), "isthmus-shenzhen": (2, "region"),
    }  # fmt: skip
    assert [each["selector"]["exactMatch"]["name"] for each in tiers["isthmus-shenzhen"]["members"]] == [
        "isthmus-shenzhen-leaf-1", "isthmus-shenzhen-leaf-2",
    ]  # fmt: skip
    (alone,) = [each["spec"] for each in found["shanghai"] if each["kind"] == "HyperNode"]
    assert (alone["tier"], alone["members"][0]["type"]) == (1, "Node")


def test_kueue_covers_every_resource_with_the_quota_of_all_nodes(given: Path) -> None:
    (group,) = one(objects(asked(given, full), "kueue")["shenzhen"], "ClusterQueue")["spec"]["resourceGroups"]
    assert {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]} == {
        "nvidia.com/gpu": "16", "rdma/hca": "2", "cpu": "192", "memory": "3000Gi",
    }  # fmt: skip


def test_a_queue_and_a_claim_that_exist_are_used_and_not_made(given: Path) -> None:
    request = asked(given, lambda text: text.replace("train:1}", "train:1, queue: team, claim: scratch}"))
    found = objects(request, "kueue")["shenzhen"]
    assert not {"ClusterQueue", "LocalQueue", "PersistentVolumeClaim"} & {each["kind"] for each in found}
    assert one(found, "Job")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "scratch" in str(pod(found, "kueue")["spec"]["volumes"])
    assert broken_rules([("x", each) for each in found], 2) == []


def test_rdma_without_a_device_plug_in_needs_a_privileged_pod(given: Path) -> None:
    least, most = (pod(objects(asked(given, edit), "jobset")["shenzhen"], "jobset")["spec"]["containers"][0]["securityContext"]
                   for edit in (lambda text: text, full))  # fmt: skip
    assert least == {"runAsUser": 0, "privileged": True}
    assert most == {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}


REFUSED = {
    "nothing about Kubernetes": (
        lambda text: text.replace("    kubernetes: {image", "    # kubernetes: {image"),
        "'shenzhen' says nothing about Kubernetes",
    ),
    "a node's name with a capital": (
        lambda text: text.replace("name: shenzhen-1", "name: Shenzhen-1"), "'Shenzhen-1' is no name of a Kubernetes node",
    ),
    "an unknown key": (lambda text: text.replace("{image: r", "{imgae: r"), "unknown key 'imgae'"),
    "no quantity": (lambda text: text.replace("train:1}", "train:1, memory: 1500 GB}"), "memory"),
    "a switch whose name is too long": (
        lambda text: text.replace("name: shenzhen-1,", f"name: shenzhen-1, switch: {'leaf' * 14},"),
        "makes no name for Kubernetes",
    ),
    "two switches of one name": (
        lambda text: text.replace("name: shenzhen-1,", "name: shenzhen-1, switch: leaf-1,").replace(
            "name: shenzhen-2,", "name: shenzhen-2, switch: Leaf_1,"
        ),
        "two switches have one name in Kubernetes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_kubernetes_cannot_take_is_refused_where_it_stands(given: Path, case: str) -> None:
    edit, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason) as error:
        make_bundle("volcano", asked(given, edit))
    assert "sites.yaml" in error.value.where


Way = tuple[str, Callable[[], object], str]
"""A way to break a bundle: its name, how, and what is said."""


def of_any(found: list[dict[str, Any]], target: str) -> Iterator[Way]:
    template = pod(found, target)
    spec, container = template["spec"], template["spec"]["containers"][0]
    yield "unknown field", lambda: spec.update(hostNetwrok=True), "hostNetwrok is unknown; did you mean 'hostNetwork'?"
    yield "wrong kind of value", lambda: spec.update(hostNetwork="yes"), "hostNetwork is 'yes', expected bool"
    yield "missing", lambda: spec.pop("containers"), "spec.containers is missing"
    for name in ("RANK", "PET_NNODES", "MASTER_ADDR"):
        yield name, lambda name=name: container["env"].append({"name": name, "value": "1"}), f"container node sets {name}"
    yield "no volume", lambda: spec["volumes"].pop(0), "mounts 'work', which is no volume of the pod"
    files, claim = one(found, "ConfigMap"), one(found, "PersistentVolumeClaim")
    yield "no files", lambda: found.remove(files), "ConfigMap 'isthmus-shenzhen-files', which is not in the bundle"
    yield "no claim", lambda: found.remove(claim), "claim 'isthmus-shenzhen-checkpoints', which is not in the bundle"


def of_volcano(found: list[dict[str, Any]]) -> Iterator[Way]:
    job, node = one(found, "Job")["spec"], one(found, "HyperNode")["spec"]
    selector = node["members"][0]["selector"]
    yield "both tiers", lambda: job["networkTopology"].update(highestTierAllowed=1), "or highestTierName, not both"
    yield "no tier", lambda: job["networkTopology"].update(highestTierName="rack"), "'rack' is the tierName of no HyperNode"
    yield "pods", lambda: job["tasks"][0].update(replicas=3), "starts 3 pods, the region has 2 nodes"
    yield "never", lambda: job.update(minAvailable=9), "minAvailable is more than all replicas"
    yield "replica", lambda: job["tasks"][0].update(replica=8), "replica is unknown; did you mean 'replicas'?"
    yield "event", lambda: job["policies"][0].update(event="PodFailed"), "an event or an exitCode, not both"
    yield "two selectors", lambda: selector.update(regexMatch={"pattern": "x"}), "exactly one of exactMatch"
    yield "no selector", lambda: node["members"][0].update(selector={}), "exactly one of exactMatch"


def of_jobset(found: list[dict[str, Any]]) -> Iterator[Way]:
    spec = one(found, "JobSet")["spec"]
    template = spec["replicatedJobs"][0]["template"]["spec"]["template"]
    yield "always", lambda: template["spec"].update(restartPolicy="OnFailure"), "needs restartPolicy Never"
    yield "long", lambda: one(found, "JobSet")["metadata"].update(name="a" * 60), "at most 63 are taken"
    yield "action", lambda: spec["failurePolicy"]["rules"][0].update(action="Fail"), "action is 'Fail', expected"


def of_trainjob(found: list[dict[str, Any]]) -> Iterator[Way]:
    job, runtime = one(found, "TrainJob")["spec"], one(found, "TrainingRuntime")["spec"]
    yield "torch policy", lambda: runtime["mlPolicy"].update(torch={}), "mlPolicy.torch is unknown"
    yield "nodes", lambda: job["trainer"].update(numNodes=3), "numNodes differs from its runtime's"
    yield "runtime", lambda: job["runtimeRef"].update(name="torch"), "runs on 'torch', which is no TrainingRuntime"
    yield "env", lambda: job["trainer"].update(env=[{"name": "PET_NNODES", "value": "2"}]), "sets PET_NNODES"


def of_kueue(found: list[dict[str, Any]]) -> Iterator[Way]:
    levels, flavor = one(found, "Topology")["spec"]["levels"], one(found, "ResourceFlavor")["spec"]
    covered = one(found, "ClusterQueue")["spec"]["resourceGroups"][0]["coveredResources"]
    template = pod(found, "kueue")
    requests = template["spec"]["containers"][0]["resources"]["requests"]
    near = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    yield "hostname", levels.reverse, "kubernetes.io/hostname may stand at the lowest level only"
    yield "twice", lambda: levels.append(levels[-1]), "levels must differ"
    yield "labels", lambda: flavor.update(nodeLabels={}), "topologyName needs nodeLabels"
    yield "not covered", lambda: requests.update(cpu="4"), "asks for cpu, which isthmus-shenzhen does not cover"
    yield "quota", lambda: covered.append("cpu"), "gives quota for other resources than are covered"
    yield "near", lambda: template["metadata"]["annotations"].update(near), "requires the topology 'rack'"


OF = {"volcano": of_volcano, "jobset": of_jobset, "trainjob": of_trainjob, "kueue": of_kueue}


def places(found: list[dict[str, Any]], target: str) -> list[Way]:
    return [*of_any(found, target), *OF[target](found)]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_broken_is_named(given: Path, target: str) -> None:
    request = asked(given)
    whole = objects(request, target)["shenzhen"]
    names = [name for name, _, _ in places(whole, target)]
    for number, name in enumerate(names):
        found = copy.deepcopy(whole)
        _, spoil, says = places(found, target)[number]
        spoil()
        said = [fault for each in found for fault in faults_of(each)]
        said += [finding.found for finding in broken_rules([("x", each) for each in found], 2)] if not said else []
        assert any(says in each for each in said), (name, said)


def test_what_is_no_yaml_or_no_object_is_found_on_disk(given: Path) -> None:
    request = asked(given)
    for piece in make_bundle("volcano", request).pieces:
        path = given / "out" / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(piece.text, encoding="utf-8")
    assert check_manifests(given / "out", request) == []
    (given / "out/shenzhen/40-job.yaml").write_text("a: [")
    (given / "out/shanghai/40-job.yaml").write_text("apiVersion: v1\nkind: Pod\n---\n- 1\n")
    said = [str(finding) for finding in check_manifests(given / "out", request)]
    assert any("shenzhen/40-job.yaml: is not YAML" in each for each in said)
    assert any("v1 Pod is no object that isthmus writes" in each for each in said)
    assert any("holds no object but [1]" in each for each in said)


def test_what_a_server_would_fill_in_wrongly_is_said(given: Path) -> None:
    request = asked(given)
    batch = one(objects(request, "jobset")["shenzhen"], "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert batch["backoffLimit"] == 0  # 6: a lone pod would come back to ranks that have gone
    assert batch["completions"] == batch["parallelism"] == 2  # 1: a region of one node
    spec = one(objects(request, "jobset")["shenzhen"], "JobSet")["spec"]
    assert spec["failurePolicy"]["maxRestarts"] == 3  # 0: the first failure is the last
    assert spec["network"]["enableDNSHostnames"] is False  # true: a Service and names that nobody uses
    runtime = one(objects(request, "trainjob")["shenzhen"], "TrainJob")["spec"]["runtimeRef"]
    assert runtime["kind"] == "TrainingRuntime"  # ClusterTrainingRuntime
    job = one(objects(request, "volcano")["shenzhen"], "Job")["spec"]
    assert job["minAvailable"] == job["tasks"][0]["minAvailable"] == 2
    assert job["schedulerName"] == "volcano"  # default-scheduler's pods know no gang
    found = objects(request, "kueue")["shenzhen"]
    assert one(found, "Job")["spec"]["suspend"] is True
    (keys,) = [volume for volume in pod(found, "kueue")["spec"]["volumes"] if volume["name"] == "keys"]
    assert keys["secret"]["defaultMode"] == 0o400  # 0644: node.sh refuses a key that others may read


def test_trainers_reserved_names_are_among_ours() -> None:
    # kubeflow/trainer 8c0f505 pkg/constants/constants.go, TorchRunReservedEnvNames.
    assert {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"} <= RESERVED
