"""`isthmus deploy`: what is written fits together, and misuse is refused with the reason."""

import json
import shutil
from pathlib import Path

import pytest

from isthmus.deploy.sites import CoordinatorEntry, KubernetesEntry, NodeEntry, SiteEntry, SitesDocument, SlurmEntry
from isthmus.deploy.targets import TARGETS
from isthmus.plan import load_plan
from isthmus.runtime.environment import read_members

from .conftest import EXAMPLES, Isthmus, deploy_arguments, prepare, tree

ENGINES = [name for name, target in TARGETS.items() if target.takes == "plan"]


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_handed_over_to_every_engine_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isthmus: Isthmus, example: str, target: str
) -> None:
    monkeypatch.chdir(prepare(tmp_path, example))
    text = Path("sites.yaml").read_text()
    text = text.replace("# export_port: 29800", "export_port: 29800") + "prometheus: 10.99.0.3:9090\n"  # for observability
    Path("sites.yaml").write_text(text)
    code, _, errors = isthmus(*deploy_arguments(target))
    assert code == 0, errors
    assert isthmus("deploy", "--check", "bundle") == (0, "bundle: 0 errors, 0 warnings\n", "")
    written = tree(tmp_path / "bundle")
    assert isthmus(*deploy_arguments(target))[0] == 0  # again
    assert tree(tmp_path / "bundle") == written
    assert not [name for name, content in written.items() if b"PRIVATE KEY" in content]


def test_members_stand_in_torchruns_order_whatever_the_order_in_sites(given: Path, isthmus: Isthmus) -> None:
    text = Path("sites.yaml").read_text().replace("10.1.0.1}", "10.1.0.9}").replace("10.1.0.2}", "10.1.0.10}")
    Path("sites.yaml").write_text(text)
    assert isthmus(*deploy_arguments("torchrun"))[0] == 0
    rails = read_members(given / "bundle" / "shenzhen" / "members.json").regions[0].rails
    assert rails[::8] == ["10.1.0.10:29600", "10.1.0.9:29600"]  # as text
    assert rails[:2] == ["10.1.0.10:29600", "10.1.0.10:29601"]
    assert Path("bundle/shenzhen/nodes.txt").read_text() == "shenzhen-2 0 10.1.0.10\nshenzhen-1 1 10.1.0.9\n"


def _edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text, f"{path} holds no {old!r}"
    Path(path).write_text(text.replace(old, new, 1))


MISUSE = {
    "another fabric's plan": (
        lambda: _edit("plan.yaml", "fabric: Shenzhen - Shanghai", "fabric: Oslo - Bergen"),
        "plan.yaml: is a plan for the fabric 'Oslo - Bergen', but the sites are of 'Shenzhen - Shanghai'",
    ),
    "another size's plan": (
        lambda: _edit("plan.yaml", "dp: 32", "dp: 64"),
        "plan.yaml: lays the model out on 64 GPUs, but fabric.yaml has 32",
    ),
    "a plan of another fabric of the same name": (
        lambda: [_edit("plan.yaml", digest, "0123456789ab") for digest in load_plan("plan.yaml").fabric_parts.values()],
        "was made for another fabric of the name 'Shenzhen - Shanghai': no region or link is as in fabric.yaml",
    ),
    "a strategy that does not run": (
        lambda: _edit("plan.yaml", "kind: local-steps", "kind: sharded"),
        "strategy.kind: 'sharded' cannot be run by this runtime yet",
    ),
    "no certificates": (
        lambda: _edit("sites.yaml", "certificates: keys", "# certificates: keys"),
        "sites.yaml: names no certificates, and rails between these regions leave the machine",
    ),
    "a missing certificate": (
        lambda: Path("keys/shanghai.pem").unlink(),
        "certificate of 'shanghai': keys/shanghai.pem: is missing",
    ),
    "another region's certificate": (
        lambda: (shutil.copy("keys/shenzhen.pem", "keys/shanghai.pem"), shutil.copy("keys/shenzhen.key", "keys/shanghai.key")),
        "is a certificate of isthmus://region/shenzhen, expected isthmus://region/shanghai",
    ),
    "a region without a route": (
        lambda: _edit("fabric.yaml", "wan:\n  - {", "wan: [] #"),
        "no link joins the region 'shanghai' to 'shenzhen'",
    ),
    "too few nodes": (
        lambda: _edit("sites.yaml", "      - {name: shenzhen-1, address: 10.1.0.1}\n", ""),
        "1 nodes, but the fabric gives 'shenzhen' 2",
    ),
    "one address twice": (
        lambda: _edit("sites.yaml", "10.1.0.3}", "10.1.0.1}"),
        "10.1.0.1 is also the address of shenzhen-1 in shenzhen",
    ),
    "a region that the fabric lacks": (
        lambda: _edit("sites.yaml", "  shanghai:\n", "  shangai:\n"),
        "'shangai' is no region of fabric.yaml\n  hint: did you mean 'shanghai'?",
    ),
    "ports that clash": (
        lambda: _edit("sites.yaml", "    # rail_port: 29600 ", "    rail_port: 29398 #"),
        "rendezvous_port (29400 to 29401) clashes with rail_port (29398 to 29405)",
    ),
    "more ranks than GPUs": (
        lambda: _edit("sites.yaml", "    # ranks_per_node: 8 ", "    ranks_per_node: 9 #"),
        "is 9, but a node of 'shenzhen' has 8 GPUs",
    ),
    "a misspelt key": (
        lambda: _edit("sites.yaml", "    python:", "    pyton:"),
        "unknown key 'pyton'",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_refused_with_the_reason_and_writes_nothing(given: Path, isthmus: Isthmus, case: str) -> None:
    spoil, reason = MISUSE[case]
    spoil()
    code, out, errors = isthmus(*deploy_arguments("torchrun"))
    assert (code, out) == (2, "")
    assert reason in errors
    assert not (given / "bundle").exists()


def test_a_fabric_edited_since_its_plan_was_made_is_told_by_the_part_that_differs(given: Path, isthmus: Isthmus) -> None:
    _edit("fabric.yaml", "name:", "# a comment changes nothing\nname:")
    code, _, errors = isthmus(*deploy_arguments("torchrun"))
    assert (code, "edited" in errors) == (0, False)
    _edit("fabric.yaml", "rate: 100 Gb/s", "rate: 90 Gb/s")
    code, _, errors = isthmus(*deploy_arguments("torchrun"))
    assert code == 0
    assert "was edited, or with measured links: shanghai-shenzhen differ" in errors


def test_a_bundle_whose_documents_were_changed_is_refused_by_its_check(given: Path, isthmus: Isthmus) -> None:
    assert isthmus(*deploy_arguments("torchrun"))[0] == 0
    _edit("bundle/plan.yaml", "dp: 32", "dp: 16")
    code, out, _ = isthmus("deploy", "--check", "bundle")
    assert code == 2
    assert "error: bundle/plan.yaml: lays the model out on 16 GPUs, but bundle/fabric.yaml has 32" in out
    assert "warning: bundle/plan.yaml: was edited since it was written" in out
    Path("bundle/shenzhen/node.sh").unlink()
    code, out, _ = isthmus("deploy", "--check", "bundle", "--json")
    assert code == 2
    first = json.loads(out)["findings"][0]
    assert [first[key] for key in ("severity", "where", "found")] == ["error", "bundle/shenzhen/node.sh", "is missing"]


def test_a_script_that_bash_cannot_read_is_found(given: Path, isthmus: Isthmus) -> None:
    assert isthmus(*deploy_arguments("torchrun"))[0] == 0
    with open("bundle/shanghai/node.sh", "a") as stream:
        stream.write("if true\n")
    code, out, _ = isthmus("deploy", "--check", "bundle")
    assert code == 2
    assert "error: bundle/shanghai/node.sh: bash cannot read it" in out


def test_a_template_is_refused_until_it_is_filled_in(given: Path, isthmus: Isthmus) -> None:
    code, out, _ = isthmus("deploy", "--sites-template", "fabric.yaml")
    assert code == 0
    Path("sites.yaml").write_text(out)
    code, _, errors = isthmus(*deploy_arguments("torchrun"))
    assert code == 2
    assert "'FILL-IN:29700' is still to be filled in" in errors


def test_a_target_that_does_not_exist_is_named_with_the_nearest_one(given: Path, isthmus: Isthmus) -> None:
    code, _, errors = isthmus(*deploy_arguments("torchrn"))
    assert (code, errors) == (2, "error: --to: 'torchrn' is no target\n  hint: did you mean 'torchrun'?\n")


def test_the_reference_page_has_every_key_of_sites_with_its_meaning() -> None:
    page = (EXAMPLES.parent / "docs" / "reference" / "sites.md").read_text()
    for model in (SitesDocument, CoordinatorEntry, SiteEntry, NodeEntry, SlurmEntry, KubernetesEntry):
        for name, field in model.model_fields.items():
            assert f"| `{name}` | " in page
            assert (field.description or "") in page
