"""Regions, plans and whole bundles for the network target's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from isthmus.deploy.marks import MARKS, Marks
from isthmus.deploy.network import pieces
from isthmus.deploy.network.roce import Roce, roce_of
from isthmus.deploy.request import Request
from isthmus.deploy.sites import read_sites
from isthmus.fabric import parse_fabric, read_fabric
from isthmus.plan import Layout, Plan, RegionGroup, Strategy
from isthmus.runtime.loopback import lone_plan


def _plan(traffic_class: int | None = None, name: str = "one", gpus: int = 1) -> Plan:
    group = RegionGroup(traffic_class=traffic_class) if traffic_class is not None else None
    strategy = Strategy(name="hierarchical", kind="hierarchical", region_group=group)
    return lone_plan(strategy).model_copy(update={"fabric": name, "layout": Layout(dp=gpus)})


@pytest.fixture
def make_plan() -> Callable[..., Plan]:
    """A plan, with NCCL's traffic class between regions if one is given."""
    return _plan


@pytest.fixture
def make_roce() -> Callable[..., Roce]:
    """A RoCE region of HGX H100 nodes by the text of its network."""

    def make(network: str, nodes: int = 4, marks: Marks | None = None) -> Roce:
        text = f"name: one\nregions:\n  east:\n    nodes: [{{count: {nodes}, kind: hgx-h100}}]\n"
        fabric = parse_fabric(f"{text}    network: {{kind: roce, {network}}}\n", "fabric.yaml")
        return roce_of(fabric.regions[0], marks or MARKS)

    return make


@pytest.fixture
def make_request(tmp_path: Path) -> Callable[..., Request]:
    """Everything that the target is given, for a fabric's text."""

    def make(text: str, **plan: int) -> Request:
        (tmp_path / "fabric.yaml").write_text(text, encoding="utf-8")
        fabric = read_fabric(tmp_path / "fabric.yaml")
        regions = {
            region.name: {
                "folder": "/srv/isthmus",
                "nodes": [{"name": f"{region.name}-{i}", "address": f"10.{number}.0.{11 + i}"} for i in range(region.nodes)],
            }
            for number, region in enumerate(fabric.regions, 1)
        }
        (tmp_path / "sites.yaml").write_text(yaml.safe_dump({"fabric": "fabric.yaml", "regions": regions}), encoding="utf-8")
        made = _plan(name=fabric.name, gpus=fabric.gpus, **plan)
        return Request(plan=made, plan_path=tmp_path / "plan.yaml", sites=read_sites(tmp_path / "sites.yaml"))

    return make


@pytest.fixture
def write(tmp_path: Path, make_request: Callable[..., Request]) -> Callable[..., tuple[Path, Request]]:
    """Writes the bundle for a fabric's text; its folder and what it was made from."""

    def make(text: str, **plan: int) -> tuple[Path, Request]:
        request, folder = make_request(text, **plan), tmp_path / "out"
        for piece in pieces(request):
            (folder / piece.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / piece.path).write_text(piece.text, encoding="utf-8")
        return folder, request

    return make
