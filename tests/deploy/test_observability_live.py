"""A real Prometheus over the wind tunnel, from the files `isthmus deploy` wrote: the alarm of a throttled WAN comes and goes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.deploy.observability import pieces
from isthmus.deploy.observability.dashboard import queries_of
from isthmus.deploy.observability.rules import Pace
from isthmus.deploy.request import Request
from isthmus.deploy.sites import read_sites
from isthmus.emulate import EmulatedLink, Tunnel, open_tunnel
from isthmus.plan import Layout, Strategy, load_plan, save_plan
from isthmus.runtime.loopback import lone_plan

from .slurm_clusters import wait_for

pytestmark = [
    pytest.mark.tunnel,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian package) is not there"),
    pytest.mark.timeout(240),
]

RATE_BYTES_PER_S, RTT_S, THROTTLED = 4e6, 0.01, 0.2
GRADIENT_BYTES = 347_904  # of the demo's micro preset; of two regions each sends half of it, and then half of the sum
PACE = Pace(scrape_s=1, window_s=8, hold_s=3)
REGIONS = ("east", "west")
FABRIC = """
name: Two
regions:
  east:
    nodes: [{count: 1, kind: hgx-h100, gpus: 1}]
    network: {kind: ethernet, rate: 10 Gb/s}
  west:
    nodes: [{count: 1, kind: hgx-h100, gpus: 1}]
    network: {kind: ethernet, rate: 10 Gb/s}
wan: [{between: [east, west], rate: 32 Mb/s, rtt: 10 ms}]
"""
ASK = """
import json, sys, urllib.parse, urllib.request
for query in json.load(sys.stdin):
    url = f"http://{sys.argv[1]}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url, timeout=10) as answer:
        print(json.dumps(json.load(answer)["data"]["result"]))
"""


class Watched:
    """A run in the tunnel, an agent beside each rank, and the Prometheus that they send to."""

    def __init__(self, tunnel: Tunnel, folder: Path) -> None:
        self._tunnel, self._folder = tunnel, folder
        self._receiver = f"{tunnel.address('watch', 0)}:9090"
        self._write()

    def _write(self) -> None:
        folder = self._folder
        (folder / "fabric.yaml").write_text(FABRIC)
        plan = lone_plan(Strategy(name="every step", kind="hierarchical"))
        predicted = plan.prediction.model_copy(update={"step_s": 0.1, "tokens_per_s": 1e4, "wan_bytes_per_step": GRADIENT_BYTES})
        save_plan(
            plan.model_copy(update={"fabric": "Two", "layout": Layout(dp=2), "prediction": predicted}), folder / "plan.yaml"
        )
        entries = ""
        for name in REGIONS:
            node = f"{{name: {name}-1, address: {self._tunnel.address(name, 0)}}}"
            entries += f"  {name}: {{folder: /srv/run, export_port: 9600, nodes: [{node}]}}\n"
        sites = f"fabric: fabric.yaml\ninsecure: true\nprometheus: '{self._receiver}'\nregions:\n{entries}"
        (folder / "sites.yaml").write_text(sites)
        self.request = Request(
            plan=load_plan(folder / "plan.yaml"), plan_path=folder / "plan.yaml", sites=read_sites(folder / "sites.yaml")
        )
        for piece in pieces(self.request, PACE):
            path = folder / "watch" / piece.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(piece.text)

    def _start(self, region: str, name: str, argv: list[str], cwd: Path, **environment: str) -> None:
        log = open(self._folder / f"{name}.log", "ab")  # noqa: SIM115 - the program's own from here on
        self._tunnel.start(region, 0, argv, cwd=str(cwd), stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment)
        log.close()

    def start(self) -> None:
        """Everything, by the README of the bundle; ranks train until they are ended with the tunnel."""
        folder = self._folder
        central = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={self._receiver}"]
        central += ["--web.enable-remote-write-receiver", f"--storage.tsdb.path={folder}/central-data"]
        self._start("watch", "central", central, folder / "watch/central")
        members = folder / "members.json"
        members.write_text(self.request.sites.members.model_dump_json())
        for region in REGIONS:
            node = folder / f"node-{region}"
            shutil.copytree(folder / "watch/node", node)
            shutil.copy(node / f"targets/{region}-{region}-1.json", node / "targets/this-node.json")
            agent = ["prometheus", "--enable-feature=agent", "--config.file=prometheus.yml"]
            agent += ["--web.listen-address=127.0.0.1:9090", f"--storage.agent.path={node}/data"]
            self._start(region, f"agent-{region}", agent, node)
            trainer = [sys.executable, "-m", "isthmus.runtime.demo.train", "--preset", "micro", "--steps", "1000000"]
            self._start(
                region, f"rank-{region}", [*trainer, "--batch", "2"], folder, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0",
                MASTER_ADDR=self._tunnel.address(region, 0), MASTER_PORT="29500", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0",
                ISTHMUS_REGION=region, ISTHMUS_MEMBERS=str(members), ISTHMUS_PLAN=str(folder / "plan.yaml"),
                ISTHMUS_INSECURE="1", ISTHMUS_EXPORT="127.0.0.1:9600",
            )  # fmt: skip

    def ask(self, *queries: str) -> list[list[dict[str, Any]]]:
        """What the Prometheus answers to each."""
        questions, answers = self._folder / "questions.json", self._folder / "answers.txt"
        questions.write_text(json.dumps(queries))
        with questions.open("rb") as stdin, answers.open("wb") as stdout:
            argv = [sys.executable, "-c", ASK, self._receiver]
            asker = self._tunnel.start("watch", 0, argv, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)
        asker.wait(60)
        return [json.loads(line) for line in answers.read_text().splitlines()]

    def firing(self) -> set[tuple[str, str]]:
        """(region, peer) of links whose alarm is up."""
        found = self.ask('ALERTS{alertname="IsthmusWanBelowPlan",alertstate="firing"}')
        return {(each["metric"]["region"], each["metric"]["peer"]) for each in (found[0] if found else [])}

    def goodput(self) -> list[float]:
        """Of both directions, over the plan's."""
        names = "isthmus:link_goodput_bytes_per_second", "isthmus:plan_link_goodput_bytes_per_second"
        found = self.ask(f"{names[0]} / on (region, peer) {names[1]}")
        return [float(each["value"][1]) for each in (found[0] if found else [])]

    def logs(self) -> str:
        """The last of everybody's words."""
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-800:]}" for path in self._folder.glob("*.log"))

    def watch(self) -> dict[str, Any]:
        """What `isthmus watch` says on the node of east."""
        answer = self._folder / "watch.json"
        argv = [sys.executable, "-m", "isthmus", "watch", "127.0.0.1:9600", "--plan", "plan.yaml", "--sites", "sites.yaml"]
        with answer.open("wb") as stdout:
            argv += ["--every", "3", "--once", "--json"]
            asker = self._tunnel.start("east", 0, argv, cwd=str(self._folder), stdout=stdout)
        assert asker.wait(60) == 0
        return json.loads(answer.read_text())

    def throttle(self, share: float) -> None:
        """Both directions of the WAN to a share of what they were."""
        for src, dst in (REGIONS, REGIONS[::-1]):
            self._tunnel.set_link(src, dst, rate_bytes_per_s=share * RATE_BYTES_PER_S)


def test_the_alarm_of_a_throttled_wan_comes_and_goes_and_the_dashboard_shows_everything(tmp_path: Path) -> None:
    links = [EmulatedLink(between=REGIONS, rate_bytes_per_s=RATE_BYTES_PER_S, rtt_s=RTT_S)]
    # Longer than the WAN itself: the tunnel sends packets the quickest way, over a third region if that is it.
    links += [EmulatedLink(between=(region, "watch"), rate_bytes_per_s=100e6, rtt_s=0.02) for region in REGIONS]
    with open_tunnel({**dict.fromkeys(REGIONS, 1), "watch": 1}, links, seed=1) as tunnel:
        watched = Watched(tunnel, tmp_path)
        watched.start()
        wait_for("goodput of both directions", lambda: len(watched.goodput()) == 2, 90, watched.logs)
        wait_for("a link as planned", lambda: min(watched.goodput(), default=0) > 0.75, 40, lambda: str(watched.goodput()))
        wait_for("no alarm", lambda: not watched.firing(), 30)
        queries = queries_of(json.loads((tmp_path / "watch/grafana/isthmus.json").read_text()))
        unanswered = [query for query, answer in zip(queries, watched.ask(*queries), strict=True) if not answer]
        assert unanswered == []
        said = watched.watch()
        (link,) = said["links"]
        assert (said["regions"][0]["region"], link["region"], link["peer"]) == ("east", *REGIONS)
        assert link["goodput_bytes_per_s"] > 0.5 * link["planned_goodput_bytes_per_s"]
        watched.throttle(THROTTLED)
        both = {REGIONS, REGIONS[::-1]}
        wait_for("the alarm", lambda: watched.firing() == both, 60, lambda: f"{watched.goodput()} {watched.firing()}")
        watched.throttle(1.0)
        wait_for("the alarm to clear", lambda: not watched.firing(), 60, lambda: str(watched.goodput()))
