"""Settings: only what differs from NCCL's own choice, each with a reason, and nothing that our own linter would fault."""

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.deploy.settings import settings_for
from isthmus.deploy.sites import Site, Sites, read_sites
from isthmus.doctor.env.table import variables
from isthmus.doctor.judge import diagnose
from isthmus.doctor.sources import documents
from isthmus.plan import Plan, RegionGroup, load_plan

from .conftest import EXAMPLES, Isthmus, deploy_arguments, prepare

OPTIONS = """interface: bond0
    hcas: [mlx5_1, mlx5_10]
    export_port: 29800
    topology_file: /opt/topo.xml
    # """


def _sites(folder: Path, example: str, options: bool = False) -> tuple[Sites, Plan]:
    prepare(folder, example)
    if options:
        text = (folder / "sites.yaml").read_text()
        (folder / "sites.yaml").write_text(text.replace("# interface: eth0", OPTIONS))
    return read_sites(folder / "sites.yaml"), load_plan(folder / "plan.yaml")


def _values(site: Site, plan: Plan) -> dict[str, str]:
    return {setting.name: setting.value for setting in settings_for(site, plan)}


def test_infiniband_needs_nothing_and_roce_its_traffic_class_and_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    sites, plan = _sites(tmp_path / "a", "shenzhen-shanghai")
    assert _values(sites.sites[0], plan) == {"PYTHONUNBUFFERED": "1", "NCCL_DEBUG": "WARN"}
    (tmp_path / "b").mkdir()
    sites, plan = _sites(tmp_path / "b", "beijing-shenzhen-shanghai")
    site = sites.sites[0]
    assert site.region.network.shape == "single-switch"
    assert _values(site, plan).items() >= {"NCCL_IB_TC": "106"}.items()
    assert "NCCL_IB_QPS_PER_CONNECTION" not in _values(site, plan)  # one switch has one path
    wide = replace(site, region=replace(site.region, network=replace(site.region.network, shape="clos-2")))
    assert _values(wide, plan)["NCCL_IB_QPS_PER_CONNECTION"] == "4"


def test_tcp_between_regions_through_nccl_gets_more_streams(tmp_path: Path) -> None:
    sites, plan = _sites(tmp_path, "shenzhen-shanghai")
    axis = RegionGroup(backend="nccl", net_name="Socket")
    strategy = plan.strategy.model_copy(update={"kind": "hierarchical", "region_group": axis})
    values = _values(sites.sites[0], plan.model_copy(update={"strategy": strategy}))
    assert int(values["NCCL_SOCKET_NTHREADS"]) * int(values["NCCL_NSOCKS_PERTHREAD"]) <= 64  # NCCL's own bound


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("example", ["shenzhen-shanghai", "beijing-shenzhen-shanghai", "clos-1024", "one-node"])
def test_each_setting_differs_from_the_default_and_has_a_reason_and_a_source(tmp_path: Path, example: str, options: bool) -> None:
    sites, plan = _sites(tmp_path, example, options)
    for setting in settings_for(sites.sites[0], plan):
        assert setting.reason
        assert setting.source
        if setting.name in variables():
            assert setting.value != variables()[setting.name].default


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_the_doctors_linter_faults_nothing_in_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isthmus: Isthmus, example: str, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _sites(tmp_path, example, options=True)
    code, _, errors = isthmus(*deploy_arguments(target))
    assert code == 0, errors
    read = list(documents(["bundle"], None))
    report = diagnose(read, nccl_version=(2, 27, 3))
    assert report.findings == ()
    exported = {line.split("=")[0] for document in read for line in document.lines if line.startswith("export ")}
    set_here = {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_TOPO_FILE"}
    assert {f"export {name}" for name in set_here} <= exported  # they were there to be faulted
