"""`isthmus run`: regions on this machine restart as a whole, and a real region goes through torchrun."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.plan import Strategy, save_plan
from isthmus.run import HereRequest, RegionRequest, parse_regions, region_command, run_here
from isthmus.runtime.loopback import lone_plan, prepare
from isthmus.watch import RegionFollower

# Ranks without torch: each writes the lines a rank writes; `flaky` region's rank 1 dies in its first life.
SCRIPT = """
import json, os, pathlib, sys, time
region, rank = os.environ["ISTHMUS_REGION"], os.environ["RANK"]
metrics = pathlib.Path(os.environ["ISTHMUS_METRICS"]); metrics.mkdir(exist_ok=True)
life = pathlib.Path(os.environ["ISTHMUS_PLAN"]).with_name(f"{region}-{rank}.lives")
with open(life, "a") as stream: stream.write("x")
def line(**fields): open(metrics / f"{region}-{rank}.jsonl", "a").write(json.dumps(fields) + "\\n")
line(kind="start")
if region == "flaky" and rank == "1" and len(life.read_text()) <= int(sys.argv[1]): sys.exit(3)
for step in range(1, 4):
    line(kind="step", step=step, seconds=0.5, loss=3.0 - step, tokens=10, exposed_s=0.1, wan_bytes=1000 * step)
line(kind="sync", hash="c0ffee00c0ffee00")
if region == "flaky": time.sleep(0.3)  # the survivor of a failed life is ended by its launcher
line(kind="end", hash="c0ffee00c0ffee00")
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    save_plan(lone_plan(Strategy(name="every step", kind="hierarchical")), tmp_path / "plan.yaml")
    return tmp_path / "plan.yaml"


def _here(plan: Path, failures: int, restarts: int) -> HereRequest:
    script = plan.with_name("script.py")
    script.write_text(SCRIPT)
    return HereRequest(
        plan=plan, regions={"flaky": 2, "steady": 1}, folder=plan.with_name("out"), restarts=restarts,
        script=(str(script), str(failures)),
    )  # fmt: skip


def test_a_region_of_which_a_rank_fails_starts_again_as_a_whole_and_the_others_go_on(plan: Path) -> None:
    request = _here(plan, failures=2, restarts=3)
    assert run_here(request) == {"flaky": {0: 0, 1: 0}, "steady": {0: 0}}
    lives = {path.stem: len(path.read_text()) for path in request.folder.glob("*.lives")}
    assert (lives["flaky-1"], lives["steady-0"]) == (3, 1)  # rank 0 of the flaky one may be ended before it counts a life


def test_a_region_that_fails_for_good_is_reported_and_the_others_end_well(plan: Path) -> None:
    codes = run_here(_here(plan, failures=9, restarts=1))
    assert codes["steady"] == {0: 0}
    assert codes["flaky"][1] == 3


def test_the_table_follows_what_ranks_write_and_leaves_torn_lines_for_later(plan: Path) -> None:
    request = _here(plan, failures=0, restarts=0)
    run_here(request)
    metrics = request.folder / "metrics"
    follower = RegionFollower(metrics, "flaky", 2)
    row = follower.row(alive=0, restarts=0, failed=False)
    assert (row.state, row.step, row.loss, row.syncs, row.last_hash) == ("ended", 3, 0.0, 1, "c0ffee00c0ffee00")
    assert (row.step_s, row.tokens_per_s, row.waiting_share) == (0.5, 40.0, pytest.approx(0.2))
    assert row.wan_bytes_per_s == pytest.approx(2 * 2000 / 1.5)
    more = json.dumps({"kind": "step", "step": 4, "seconds": 0.5, "loss": 9.0, "tokens": 10, "exposed_s": 0, "wan_bytes": 4000})
    with open(metrics / "flaky-0.jsonl", "a") as stream:
        stream.write(more[:20])
        stream.flush()
        assert follower.row(alive=1, restarts=0, failed=False).step == 3
        stream.write(more[20:] + "\n")
    assert follower.row(alive=1, restarts=0, failed=False).step == 4


@pytest.mark.parametrize("text", ["", "a", "a=0", "a=65", "a=two", "=2", "a=1,a=2", "a=1,,b=2"])
def test_regions_that_are_written_wrong_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--here: "):
        parse_regions(text)


def test_a_node_of_a_region_gets_its_torchrun_command_and_variables(plan: Path) -> None:
    prepare({"east": 4, "west": 2}, lone_plan(Strategy(name="every step", kind="hierarchical")), plan.parent)
    request = _region(plan, "west", nodes=2)
    command, variables = region_command(request)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert {"--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "5"} < set(command)
    assert "is_host=1" in command  # not left to what the node's own name resolves to
    assert "is_host=0" in region_command(replace(request, node_rank=1))[0]
    assert command[-2:] == [str(plan), "--steps"]  # the script and its arguments come last
    assert variables["ISTHMUS_REGION"] == "west"
    assert variables["ISTHMUS_COORDINATOR"] == "tcp://127.0.0.1:29700"
    with pytest.raises(InputError, match=re.escape("--nodes: 2 nodes of 1 ranks are 2, not the 4 of 'east'")):
        region_command(_region(plan, "east", nodes=2))
    with pytest.raises(InputError, match="'wset' is not a region"):
        region_command(_region(plan, "wset", nodes=2))


def test_nodes_are_listed_as_torchrun_will_number_them(plan: Path) -> None:
    """Its c10d rendezvous sorts nodes by address, as text: 10.0.0.10 comes before 10.0.0.2."""
    members = plan.with_name("members.json")
    rails = ["10.0.0.10:29600", "10.0.0.2:29600"]
    members.write_text(json.dumps({"regions": [{"name": "west", "rails": rails}]}))
    command, _ = region_command(replace(_region(plan, "west", nodes=2), node_rank=1))
    assert command[command.index("--local-addr") + 1] == "10.0.0.2"
    with pytest.raises(InputError, match="--node-rank: is 2, but the region has 2 nodes"):
        region_command(replace(_region(plan, "west", nodes=2), node_rank=2))
    members.write_text(json.dumps({"regions": [{"name": "west", "rails": rails[::-1]}]}))
    with pytest.raises(InputError, match=re.escape("list the rails of 10.0.0.10, 10.0.0.2 in that order")):
        region_command(_region(plan, "west", nodes=2))


def _region(plan: Path, region: str, nodes: int) -> RegionRequest:
    return RegionRequest(
        plan=plan, members=plan.with_name("members.json"), region=region, nodes=nodes, ranks_per_node=1,
        rendezvous="127.0.0.1:29400", node_rank=0, restarts=5, coordinator="tcp://127.0.0.1:29700", keys=None, metrics=None,
        script=(str(plan), "--steps"),
    )  # fmt: skip


@pytest.mark.tunnel
def test_two_regions_under_torchrun_train_together_over_loopback(tmp_path: Path) -> None:
    """Each region its own torchrun, as in two data centres; both end with the same parameters."""
    local = Strategy(name="local", kind="local-steps", inner_steps=4)
    environments = prepare({"east": 2, "west": 2}, local, tmp_path)
    running: list[subprocess.Popen[bytes]] = []
    for region in ("east", "west"):
        variables = environments[region, 0]
        command = [
            sys.executable, "-m", "isthmus", "run", str(tmp_path / "plan.yaml"), "--members", str(tmp_path / "members.json"),
            "--region", region, "--ranks-per-node", "2", "--rendezvous", f"127.0.0.1:{variables['MASTER_PORT']}",
            "-o", str(tmp_path), "--", "-m", "isthmus.runtime.demo.train", "--preset", "micro", "--steps", "8",
        ]  # fmt: skip
        with open(tmp_path / f"{region}.err", "wb") as errors:
            running.append(subprocess.Popen(command, stderr=errors))
    codes = [process.wait(timeout=100) for process in running]
    assert codes == [0, 0], [(tmp_path / f"{region}.err").read_text()[-2000:] for region in ("east", "west")]
    ends = [json.loads(path.read_text().splitlines()[-1]) for path in sorted((tmp_path / "metrics").glob("*.jsonl"))]
    assert len(ends) == 4
    assert {end["kind"] for end in ends} == {"end"}
    assert len({end["hash"] for end in ends}) == 1
