"""The files of `--to slurm`: what sbatch will make of them, known without a cluster."""

from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from isthmus.deploy.sites import read_sites
from isthmus.deploy.slurm import SBATCH_OPTIONS
from isthmus.deploy.slurm_names import expanded, hostlist, topology_conf, topology_yaml

from .conftest import Isthmus, deploy_arguments

NAMES = st.lists(st.from_regex(r"[a-z]{1,3}(-[a-z])?[0-9]{0,3}", fullmatch=True), min_size=1, max_size=40, unique=True)


@for_all(NAMES)
def test_a_host_list_names_the_same_nodes_in_the_same_order(names: list[str]) -> None:
    assert expanded(hostlist(names)) == names


def test_host_lists_are_written_as_slurm_writes_them() -> None:
    names = [f"gpu-{n:02d}" for n in (1, 2, 3, 7, 9, 10)] + ["login", "rack1-n5"]
    assert hostlist(names) == "gpu-[01-03,07,09-10],login,rack1-n5"
    assert expanded("a[1,03-04],b") == ["a1", "a03", "a04", "b"]
    for text in ("a[1-", "a[x]", "a[1]]", "[1-2]"):
        assert expanded(text) is None


def _options(job: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in Path(job).read_text().splitlines() if line.startswith("#SBATCH")]
    return dict((line.split("=", 1) if "=" in line else (line, "")) for line in lines)


def _edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text, f"{path} holds no {old!r}"
    Path(path).write_text(text.replace(old, new, 1))


def test_a_job_has_what_restarting_needs_and_the_sites_options(given: Path, isthmus: Isthmus) -> None:
    given_options = ["account: ml", "time: '1-00:00:00'", "switches: 1", "extra: [--reservation=x]"]
    _edit("sites.yaml", "      # account: project", "\n".join(f"      {option}" for option in given_options))
    assert isthmus(*deploy_arguments("slurm"))[0] == 0
    options = _options("bundle/shenzhen/job.sbatch")
    assert set(options) <= SBATCH_OPTIONS
    expected = {
        "nodelist": "shenzhen-[1-2]", "nodes": "2", "ntasks-per-node": "1", "gres": "gpu:8", "mem": "0", "requeue": "",
        "open-mode": "append", "signal": "B:USR1@300", "account": "ml", "partition": "gpu", "time": "1-00:00:00",
        "switches": "1@12:00:00", "reservation": "x",
    }  # fmt: skip
    assert options.items() >= expected.items()
    assert "account" not in _options("bundle/shanghai/job.sbatch")


def test_a_fabrics_title_stays_a_comment_whatever_it_holds(given: Path, isthmus: Isthmus) -> None:
    title = '"Two lines:\\ntouch /tmp/owned; `id` $(id)"'
    _edit("fabric.yaml", "name: Shenzhen - Shanghai", f"name: {title}")
    _edit("plan.yaml", "fabric: Shenzhen - Shanghai", f"fabric: {title}")
    assert isthmus(*deploy_arguments("slurm"))[0] == 0
    for script in ("job.sbatch", "node.sh", "env.sh"):
        lines = Path("bundle/shenzhen", script).read_text().splitlines()
        assert not [line for line in lines if "owned" in line and not line.startswith("# ")]


def test_topology_files_join_the_leaves_that_sites_names(given: Path) -> None:
    text = Path("sites.yaml").read_text()
    for number, leaf in ((1, "leaf-a"), (2, "leaf-b")):
        text = text.replace(f"10.1.0.{number}}}", f"10.1.0.{number}, switch: {leaf}}}")
    Path("sites.yaml").write_text(text)
    shenzhen, shanghai = read_sites(Path("sites.yaml")).sites
    assert (topology_conf(shenzhen) or "").splitlines()[1:] == [
        "SwitchName=leaf-a Nodes=shenzhen-1",
        "SwitchName=leaf-b Nodes=shenzhen-2",
        "SwitchName=shenzhen-spine Switches=leaf-a,leaf-b",
    ]
    assert (topology_conf(shanghai) or "").splitlines()[1:] == ["SwitchName=shanghai-leaf Nodes=shanghai-[1-2]"]
    import yaml

    (tree,) = yaml.safe_load(topology_yaml(shenzhen) or "")
    assert tree == {
        "topology": "shenzhen",
        "cluster_default": True,
        "tree": {
            "switches": [
                {"switch": "leaf-a", "nodes": "shenzhen-1"},
                {"switch": "leaf-b", "nodes": "shenzhen-2"},
                {"switch": "shenzhen-spine", "children": "leaf-a,leaf-b"},
            ]
        },
    }


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("extra: [--reservaton=x]", "sbatch has no option --reservaton\n  hint: did you mean 'reservation'?"),
        ("extra: [--nodes=3]", "'--nodes=3' would change what the job file needs"),
        ("time: '5'", "time 5 is not longer than warn, 300 s before it"),
        ("time: soon", "time: found 'soon'"),
    ],
)
def test_options_that_sbatch_or_the_job_would_not_survive_are_refused(
    given: Path, isthmus: Isthmus, option: str, reason: str
) -> None:
    _edit("sites.yaml", "      # account: project", f"      {option}")
    code, _, errors = isthmus(*deploy_arguments("slurm"))
    assert code == 2
    assert reason in errors
    assert errors.startswith("error: sites.yaml:")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("--mem=0", "--memory=0", "sbatch has no option '--memory'"),
        ("set -euo pipefail", "set -euo pipefail\n#SBATCH --time=10", "sbatch does not read this line"),
        ("--nodelist=shenzhen-[1-2]", "--nodelist=shenzhen-[1-3]", "sites.yaml lists shenzhen-[1-2]"),
        ("--nodes=2\n", "--nodes=4\n", "--nodes is 4, members.json is of 2"),
    ],
)
def test_an_edited_job_that_no_longer_fits_is_found(given: Path, isthmus: Isthmus, old: str, new: str, reason: str) -> None:
    assert isthmus(*deploy_arguments("slurm"))[0] == 0
    _edit("bundle/shenzhen/job.sbatch", old, new)
    code, out, _ = isthmus("deploy", "--check", "bundle")
    assert code == 2
    assert reason in out
