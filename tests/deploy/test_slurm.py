"""Two Slurm clusters in two regions train one model together, from the files that `isthmus deploy` wrote, unedited."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.deploy.slurm_names import hostlist
from isthmus.emulate import open_tunnel
from isthmus.emulate.topology import EmulatedLink
from isthmus.emulate.tunnel import Tunnel
from isthmus.plan import Strategy, load_plan, save_plan
from isthmus.runtime.loopback import lone_plan

from .slurm_clusters import Cluster, metrics_lines, wait_for

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
STEPS = 300
FABRIC = """
name: Two Slurm clusters
regions:
  east:
    nodes: [{count: 2, kind: hgx-h100, gpus: 1}]
    network: {kind: ethernet, rate: 10 Gb/s}
  west:
    nodes: [{count: 2, kind: hgx-h100, gpus: 1}]
    network: {kind: ethernet, rate: 10 Gb/s}
wan: [{between: [east, west], rate: 200 Mb/s, rtt: 10 ms}]
"""
# The example script as it stands, on data that come as slowly as a file says: so that the test can wait for what it waits for.
PACED = """
import runpy, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from torch.utils import data
pace, script, *arguments = sys.argv[1:]
class Paced(data.TensorDataset):
    def __getitem__(self, index):
        time.sleep(float(Path(pace).read_text()) / 4)
        return super().__getitem__(index)
data.TensorDataset = Paced
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""
REASONS = [
    *([] if all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))) else ["Slurm is not installed (Debian: slurmctld slurmd)"]),
    *([] if os.getuid() == 0 else ["slurmd needs root"]),
]
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(REASONS), reason="; ".join(REASONS)), pytest.mark.timeout(280)]


def _isthmus(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "isthmus", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _sites(folder: Path, addresses: dict[str, list[str]]) -> str:
    regions = "".join(
        f"  {name}: {{folder: {folder}/bundle/{name}, python: {sys.executable}, keys: {folder}/keys, interface: eth0,"
        f" slurm: {{partition: gpu, gres: none, switches: {2 if name == 'west' else 1}, time: '30'}},"
        f" nodes: [{', '.join(_node(name, n, host) for n, host in enumerate(hosts, 1))}]}}\n"
        for name, hosts in addresses.items()
    )
    coordinator = f"{{address: '{addresses['east'][0]}:29700', folder: {folder}/coordinator, python: {sys.executable}}}"
    return f"version: 1\nfabric: fabric.yaml\ncertificates: keys\ncoordinator: {coordinator}\nregions:\n{regions}"


def _node(region: str, number: int, host: str) -> str:
    """West's nodes hang on a leaf each, joined by a spine; east's on one switch, which the fabric says."""
    leaf = f", switch: leaf-{number}" if region == "west" else ""
    return f"{{name: {region}-n{number}, address: {host}{leaf}}}"


def _handed_over(folder: Path, tunnel: Tunnel) -> Path:
    """A bundle for the tunnel's nodes, made as a user makes it: describe, plan, keys, deploy."""
    (folder / "fabric.yaml").write_text(FABRIC)
    (folder / "paced.py").write_text(PACED)
    addresses = {name: [tunnel.address(name, node) for node in range(2)] for name in ("east", "west")}
    (folder / "sites.yaml").write_text(_sites(folder, addresses))
    _isthmus(folder, "plan", "fabric.yaml", str(ROOT / "examples/workloads/tiny.yaml"), "-o", "plan.yaml")
    _isthmus(folder, "keys", "east", "west", "-o", "keys")
    (folder / "coordinator").mkdir()
    (folder / "coordinator" / "keys").symlink_to(folder / "keys")
    script = [str(folder / "paced.py"), str(folder / "pace"), str(ROOT / "examples/train.py"), str(STEPS)]
    _isthmus(folder, "deploy", "plan.yaml", "--sites", "sites.yaml", "--to", "slurm", "-o", "bundle", "--", *script)
    return folder / "bundle"


def test_two_clusters_train_together_and_a_lost_node_costs_its_region_one_window(tmp_path: Path) -> None:
    _pace(tmp_path, 0.02)
    link = EmulatedLink(between=("east", "west"), rate_bytes_per_s=25e6, rtt_s=0.01)
    with open_tunnel({"east": 2, "west": 2}, [link]) as tunnel:
        bundle = _handed_over(tmp_path, tunnel)
        clusters = {
            name: Cluster(tunnel, name, [f"{name}-n1", f"{name}-n2"], tunnel.folder / name, _topology(bundle, name))
            for name in ("east", "west")
        }
        coordinator = ["bash", str(bundle / "coordinator" / "start.sh")]
        tunnel.start("east", 0, coordinator, stderr=subprocess.DEVNULL, measuring=True)
        for cluster in clusters.values():
            cluster.start()
        _refused_for_good(clusters["west"], bundle, tmp_path / "keys" / "west.key")
        jobs = {name: each.run("sbatch", "--parsable", f"{bundle}/{name}/job.sbatch").strip() for name, each in clusters.items()}
        west = clusters["west"]

        def said() -> str:
            found = [path.read_text(errors="replace")[-3000:] for path in sorted(bundle.glob("*/*.out"))]
            return "\n---\n".join([*found, *(cluster.logs() for cluster in clusters.values())])

        def step(region: str) -> int:
            lines = [line for line in metrics_lines(bundle / region / "metrics", region, 0) if line["kind"] == "step"]
            return lines[-1]["step"] if lines else 0

        wait_for("both regions train", lambda: min(step("east"), step("west")) >= 60, 90, said)
        assert west.kill_node("west-n2") >= 2  # slurmd and a rank at least
        _pace(tmp_path, 0.5)  # east has time: what follows takes as long as Slurm takes
        before = step("east")
        wait_for("the job of the lost node back in the queue", lambda: west.job(jobs["west"])["JobState"] == "PENDING", 60, said)
        west.start_node("west-n2")
        wait_for("the node back", lambda: west.idle() == 2 and west.told_to_end("west-n2"), 60, said)
        wait_for("west's job on its nodes again", lambda: west.released(jobs["west"]), 30, said)
        wait_for("west in the run again", lambda: _rejoined(bundle), 90, said)
        assert before < step("east") < STEPS  # it trained on meanwhile
        _pace(tmp_path, 0)
        for name, cluster in clusters.items():
            state = wait_for(f"{name} done", lambda c=cluster, n=name: _ended(c, jobs[n]), 60, said)
            assert state == "COMPLETED", said()
        assert clusters["west"].job(jobs["west"])["Restarts"] == "1"
    _check_history(tmp_path, bundle)


# Fails in its first life, waits in its second, ends well in its third.
LIVES = """
import pathlib, sys, time
lives = pathlib.Path(sys.argv[1])
with open(lives, "a") as stream: stream.write("x")
if len(lives.read_text()) == 1: sys.exit(3)
if len(lives.read_text()) == 2: time.sleep(600)
"""


def test_a_job_goes_back_into_the_queue_when_its_ranks_fail_and_when_its_time_ends(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    (tmp_path / "lives.py").write_text(LIVES)
    (tmp_path / "fabric.yaml").write_text("name: One\nregions:\n  lone:\n    nodes: [{count: 1, kind: hgx-h100, gpus: 1}]\n")
    slurm = "slurm: {partition: gpu, gres: none, time: '30'}"
    nodes = "nodes: [{name: lone-n1, address: 10.77.0.10}]"
    site = f"{{folder: {tmp_path}/bundle/lone, python: {sys.executable}, restarts: 1, {slurm}, {nodes}}}"
    (tmp_path / "sites.yaml").write_text(f"version: 1\nfabric: fabric.yaml\nregions: {{lone: {site}}}\n")
    plan = lone_plan(Strategy(name="alone", kind="hierarchical"))
    save_plan(plan.model_copy(update={"fabric": "One"}), tmp_path / "plan.yaml")
    script = [str(tmp_path / "lives.py"), str(lives)]
    arguments = ["deploy", "plan.yaml", "--sites", "sites.yaml", "--to", "slurm", "-o", "bundle", "--no-health-check"]
    _isthmus(tmp_path, *arguments, "--", *script)
    folder = tmp_path / "bundle" / "lone"
    job_file = (folder / "job.sbatch").read_text()
    assert "--restarts 1" in (folder / "node.sh").read_text()
    # torchrun's own restart would take the first failure; here the queue is to.
    (folder / "node.sh").write_text((folder / "node.sh").read_text().replace("--restarts 1", "--restarts 0"))
    with open_tunnel({"lone": 1}, []) as tunnel:
        cluster = Cluster(tunnel, "lone", ["lone-n1"], tunnel.folder / "lone", (folder / "topology.conf").read_text())
        cluster.start()
        job = cluster.run("sbatch", "--parsable", str(folder / "job.sbatch")).strip()

        def said() -> str:
            return (folder / f"isthmus-lone-{job}.out").read_text() + cluster.logs()

        def lived() -> int:
            return len(lives.read_text()) if lives.exists() else 0

        wait_for("requeued after a failure", lambda: cluster.job(job)["Restarts"] == "1", 60, said)
        wait_for("its second life", lambda: cluster.released(job) and lived() == 2, 60, said)
        assert "--signal=B:USR1@300" in job_file
        cluster.run("scancel", "--batch", "--signal=USR1", job)  # what Slurm does 300 s before the limit
        wait_for("requeued before its limit", lambda: cluster.job(job)["Restarts"] == "2", 60, said)
        wait_for("its third life", lambda: cluster.released(job) or lived() == 3, 60, said)
        assert wait_for("its end", lambda: _ended(cluster, job), 60, said) == "COMPLETED", said()
    output = (folder / f"isthmus-lone-{job}.out").read_text()
    assert "goes back into the queue: its ranks failed with exit code 1" in output
    assert "goes back into the queue: the time limit is near" in output
    assert "started again 2 times" in output


def _pace(folder: Path, seconds: float) -> None:
    """What a step takes from now on; ranks read it while it is written."""
    (folder / "pace.new").write_text(str(seconds))
    os.replace(folder / "pace.new", folder / "pace")


def _refused_for_good(cluster: Cluster, bundle: Path, key: Path) -> None:
    """A node that is not fit ends its job with the reason, and the job does not go back into the queue."""
    key.chmod(0o644)
    names = [f"gpu-{number:02d}" for number in (1, 2, 3, 7, 9, 10)] + ["login", "rack1-n5", "rack1-n6"]
    assert cluster.run("scontrol", "show", "hostnames", hostlist(names)).split() == names
    cluster.run("sbatch", "--test-only", f"{bundle}/west/job.sbatch")
    job = cluster.run("sbatch", "--parsable", f"{bundle}/west/job.sbatch").strip()
    assert wait_for("the refusal", lambda: _ended(cluster, job), 30, cluster.logs) == "FAILED"
    assert [cluster.job(job)[key] for key in ("ExitCode", "Restarts")] == ["78:0", "0"]
    assert "west.key may be read by others (mode 644)" in (bundle / "west" / f"isthmus-west-{job}.out").read_text()
    key.chmod(0o600)
    wait_for("the nodes idle", lambda: cluster.idle() == 2, 30, cluster.logs)


def _topology(bundle: Path, region: str) -> str:
    return (bundle / region / "topology.conf").read_text()


def _rejoined(bundle: Path) -> bool:
    lines = metrics_lines(bundle / "west" / "metrics", "west", 0)
    starts = [number for number, line in enumerate(lines) if line["kind"] == "start"]
    return len(starts) == 2 and any(line["kind"] == "round" and len(line["counted"]) == 2 for line in lines[starts[1] :])


def _ended(cluster: Cluster, job: str) -> str:
    state = cluster.job(job)["JobState"]
    return state if state not in {"RUNNING", "COMPLETING", "PENDING"} else ""


def _check_history(folder: Path, bundle: Path) -> None:
    """Loss falls; all hold the same bits; every token of the survivor was counted once, the other lost at most its window."""
    from chaos.checks import Rules, check, losses
    from chaos.history import read_history

    together = folder / "metrics"
    together.mkdir()
    for path in bundle.glob("*/metrics/*.jsonl"):
        shutil.copy(path, together)
    history = read_history(together)
    steps = [line["loss"] for line in metrics_lines(together, "east", 0) if line["kind"] == "step"]
    assert len(steps) == STEPS
    assert statistics.mean(steps[-20:]) < 0.75 * statistics.mean(steps[:20])
    ends = [stretches[-1].end for stretches in history.ranks.values()]
    assert len(ends) == 4
    assert len({end["hash"] for end in ends if end is not None}) == 1, ends
    strategy = load_plan(bundle / "plan.yaml").strategy
    step_tokens = sum(each[0].steps[1]["tokens"] for (region, _), each in history.ranks.items() if region == "west")
    window = step_tokens * (strategy.inner_steps + strategy.delay_steps)
    rules = Rules(detect_s=5, grace_s=None, slow_s=1, window_tokens={"east": window, "west": window})
    # A delayed round is committed some steps after the window that it counts, so the law `counted` is held in sum, by `losses`.
    assert [found for found in check(history, (), rules) if found.law in {"agreement", "arithmetic"}] == []
    lost = {region: sum(loss.tokens for loss in losses(history) if loss.region == region) for region in ("east", "west")}
    assert lost["east"] == 0
    assert 0 <= lost["west"] <= window
    total = max(line["total"] for _, _, line in history.rounds())
    ends_at = [round(loss, 3) for loss in (steps[0], steps[-1])]
    print(json.dumps({"loss": ends_at, "counted_tokens": total, "lost_tokens": lost, "window": window}))
