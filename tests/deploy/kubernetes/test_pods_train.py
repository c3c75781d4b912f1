"""Pods of two regions train together: their containers run here as processes, with files, variables, command of the objects.

No kubelet is at hand, so the test is one for what matters: every volume is put where the container mounts it, the downward API's
variable is set, and the command runs as it stands. Scheduling, images and device plug-ins are not part of it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FABRIC = """
name: Two small clusters
regions:
  east: {nodes: [{count: 1, kind: hgx-h100, gpus: 1, nics: {count: 1, kind: connectx-7}}]}
  west: {nodes: [{count: 1, kind: hgx-h100, gpus: 1, nics: {count: 1, kind: connectx-7}}]}
wan: [{between: [east, west], rate: 1 Gb/s, rtt: 5 ms}]
"""
pytestmark = [pytest.mark.tunnel, pytest.mark.timeout(180)]


def isthmus(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "isthmus", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sites(folder: Path) -> str:
    regions = "".join(
        f"  {name}: {{folder: {folder}/{name}, python: {sys.executable}, rail_port: {29610 + 10 * number}, "
        f"rendezvous_port: {29410 + 10 * number}, kubernetes: {{image: registry.example/train:1}}, "
        f"nodes: [{{name: {name}-node, address: 127.0.0.{2 + number}}}]}}\n"
        for number, name in enumerate(("east", "west"))
    )
    return f"version: 1\nfabric: fabric.yaml\nregions:\n{regions}"


def objects(folder: Path, kind: str) -> dict[str, Any]:
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == kind:
                return document
    raise AssertionError(f"no {kind} in {folder}")


def pod_of(folder: Path) -> dict[str, Any]:
    template = objects(folder, "TrainingRuntime")["spec"]["template"]
    return template["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def mount(pod: dict[str, Any], container: dict[str, Any], region: Path) -> None:
    """What a kubelet puts into the container, for the volumes that are not the machine's own."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    files = objects(region, "ConfigMap")
    for each in container["volumeMounts"]:
        volume, place = volumes[each["name"]], Path(each["mountPath"])
        if "configMap" in volume:
            assert volume["configMap"]["name"] == files["metadata"]["name"]
            place.write_text(files["data"][each["subPath"]], encoding="utf-8")
            place.chmod(0o444)
        elif each["mountPath"] != "/dev/shm":
            place.mkdir(parents=True, exist_ok=True)


def started(pod: dict[str, Any], container: dict[str, Any], node: str, log: Path) -> "subprocess.Popen[bytes]":
    (variable,) = container["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    environment = os.environ | {variable["name"]: node, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with log.open("ab") as stream:
        return subprocess.Popen(
            container["command"], cwd=container["workingDir"], env=environment, stdout=stream, stderr=subprocess.STDOUT
        )


def test_the_containers_of_both_regions_train_together(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    (tmp_path / "sites.yaml").write_text(sites(tmp_path))
    isthmus(tmp_path, "plan", "fabric.yaml", str(ROOT / "examples/workloads/tiny.yaml"), "-o", "plan.yaml")
    script = ["--no-health-check", "--", str(ROOT / "examples/train.py"), "20"]
    isthmus(tmp_path, "deploy", "plan.yaml", "--sites", "sites.yaml", "--to", "trainjob", "-o", "bundle", *script)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in ("east", "west"):
            region = tmp_path / "bundle" / name
            pod = pod_of(region)
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                mount(pod, container, region)
            log = tmp_path / f"{name}.log"
            for container in pod.get("initContainers", []):
                assert started(pod, container, f"{name}-node", log).wait(60) == 0, log.read_text()
            running[name] = started(pod, pod["containers"][0], f"{name}-node", log)
        for name, process in running.items():
            assert process.wait(120) == 0, (tmp_path / f"{name}.log").read_text()
    finally:
        for process in running.values():
            process.terminate()
            process.wait(30)
    for rank, name in enumerate(running):  # numbered over both regions, in the order of members.json
        assert f"{name} rank {rank}: loss" in (tmp_path / f"{name}.log").read_text()
