"""Bundles, prefixes, roots, machine-readable reports, routes and topology files."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.cli import main
from isthmus.doctor.commands import collect_script
from isthmus.doctor.described import expected_of, node_topology
from isthmus.doctor.judge import Report, diagnose
from isthmus.doctor.machine import as_json, as_sarif
from isthmus.doctor.page import as_html
from isthmus.doctor.routes import Route, find_deadlock, parse_routes
from isthmus.doctor.show import report_lines
from isthmus.doctor.sources import documents
from isthmus.doctor.text import count, decimal, document
from isthmus.errors import InputError
from isthmus.fabric import read_fabric
from isthmus.formats.nccl_table import Measured, Place, table_head, table_row
from isthmus.formats.nccl_topology import draw, find_all, parse_elements, read_topology, write_elements

FABRIC = Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml"
LINKS = "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>\n"
XID = "[  100.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
AFTER = "[  101.0] NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=python, Ch 00000001\n"
CLOSED = "w1:7:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer w2<4>\n"


def judged(text: str) -> Report:
    return diagnose([document(text, "paste")])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: "".join(f"[1,{n}]<stdout>:{line}\n" for n, line in enumerate(t.splitlines())),
        lambda t: "".join(f"3: {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"[pod/train-0/main] {line}\n" for line in t.splitlines()),
        lambda t: t.replace("GPU 3", "\x1b[4mGPU 3\x1b[0m").replace("25.781", "25,781"),
        lambda t: "Dear all,\nhere is what I see:\n" + t + "\nThanks\n",
        lambda t: t.encode("utf-16").decode("utf-16"),
    ],
)
def test_what_launchers_and_mail_do_to_a_paste_changes_nothing(spoil: object) -> None:
    found = judged(spoil(LINKS)).findings  # type: ignore[operator]
    assert [(f.rule, f.subject) for f in found] == [("NVL-01", "3")]


def test_several_outputs_in_one_paste_are_taken_apart() -> None:
    report = judged(LINKS + "\n" + XID + CLOSED + "NCCL_P2P_DISABLE=true\n")
    assert {f.rule for f in report.findings} >= {"NVL-01", "PCI-06", "LOG-16", "ENV-03"}


def test_the_root_stands_first_and_names_its_consequences() -> None:
    report = judged(XID + AFTER + CLOSED)
    root = report.findings[0]
    assert (root.rule, root.cause) == ("PCI-06", "")
    told = {f.rule: f.cause for f in report.findings[1:]}
    assert told == {"GPU-02": root.key, "LOG-16": root.key}
    text = "\n".join(line for _, line in report_lines(report))
    assert text.count("GPU has fallen off the bus") >= 1
    assert "\n  then      " in text


def test_a_cause_that_came_later_explains_nothing() -> None:
    report = judged(AFTER.replace("101.0", "1.0") + XID.replace("100.5", "90000.0"))
    assert [f.cause for f in report.findings if f.rule == "GPU-02"] == [""]


def bundle(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_bundle_tells_its_nodes_from_folders_and_finds_the_odd_one(tmp_path: Path) -> None:
    listed = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(8))
    short = "\n".join(listed.splitlines()[:7]) + "\n"
    files = {f"x/isthmus-n{k}/smi.txt": short if k == 2 else listed for k in range(4)}
    report = diagnose(documents([str(bundle(tmp_path / "b.tar.gz", files))], io.BytesIO()))
    assert report.hosts == ("n0", "n1", "n2", "n3")
    assert [(f.rule, f.host) for f in report.findings] == [("GPU-01", "n2")]
    files = {name.replace("isthmus-", ""): text for name, text in files.items()}
    report = diagnose(documents([str(bundle(tmp_path / "c.tar.gz", files))], io.BytesIO()))
    assert [(f.rule, f.host) for f in report.findings] == [("GPU-01", "n2")]


def test_a_damaged_bundle_and_a_missing_file_are_refused_by_name(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar.gz", {"isthmus-a/x.txt": "x" * 100_000})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="damaged"):
        list(documents([str(path)], io.BytesIO()))
    with pytest.raises(InputError, match="no such file"):
        list(documents([str(tmp_path / "none")], io.BytesIO()))


def test_every_form_of_the_report_carries_every_finding() -> None:
    report = judged(LINKS + XID + AFTER)
    plain, sarif, page = as_json(report), as_sarif(report, "1"), as_html(report, "1")
    assert json.loads(json.dumps(plain))["findings"][0]["rule"] == report.findings[0].rule
    results = sarif["runs"][0]["results"]
    assert [r["ruleId"] for r in results] == [f.rule for f in report.findings]
    assert all(r["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1 for r in results)
    assert all(f.rule in page for f in report.findings)
    assert "<script" not in page
    assert "http" not in page.replace("https://json", "")


def test_markup_in_an_input_stays_text_in_the_page() -> None:
    page = as_html(judged(LINKS.replace("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-<b>32</b>")), "1")
    assert "<b>32" not in page


def test_a_fabric_says_how_many_gpus_a_node_has() -> None:
    expected = expected_of(read_fabric(FABRIC), "fabric.yaml", None)
    listed = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(7))
    report = diagnose([document(listed, "smi")], expected)
    assert [f.rule for f in report.findings] == ["GPU-01"]
    assert "describes 8" in report.findings[0].what


@pytest.mark.parametrize(
    ("hosts", "busbw", "said"),
    [
        (1, 180.0, "NVLinks or switches missing"),
        (1, 370.0, "the switch does not add"),
        (1, 465.0, ""),
        (2, 180.0, "one rail, socket or port of two missing"),
        (2, 345.0, ""),
    ],
)
def test_a_table_is_held_against_what_the_described_fabric_should_give(
    hosts: int, busbw: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = 8 * hosts
    places = [
        Place(rank=rank, pid=9, host=f"gpu{rank // 8}", device=rank % 8, bus="0000:1b:00", name="NVIDIA H100 80GB HBM3")
        for rank in range(ranks)
    ]
    size = 2**33
    seconds = 2 * (ranks - 1) / ranks * size / busbw / 1e9
    row = Measured(size_bytes=size, seconds=seconds, in_place_s=seconds, wrong=0)
    lines = table_head("all-reduce", places, [size], warmup=5, iters=20), table_row("all-reduce", ranks, row)
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("sys.argv", ["isthmus", "doctor", str(tmp_path / "run.log"), "--fabric", str(FABRIC)])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert (said in out) if said else ("BW-01" not in out), out


def test_a_described_node_written_and_read_back_is_the_same_graph() -> None:
    system = node_topology(read_fabric(FABRIC), None)
    text = write_elements([system])
    again = read_topology(text, "topo.xml")
    assert again == system
    assert write_elements([again]) == text
    assert len([p for p in find_all([again], "pci") if p.attributes["class"] == "0x030200"]) == 8
    assert "NUMA node 1" in draw([again])
    assert not judged(text).findings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system version=\"2\"></system>", "version is '2'"),
        ("<system version=\"1\"><cpu numaid=\"0\">", "is never closed"),
        ("<system version=\"1\"><cpu numaid=0/></system>", "has 'numaid=0'"),
        ("<system version=\"1\"><gpus/></system>", "unknown element <gpus>"),
        ("<system version=\"1\"><pci busid=\"19:00.0\"/></system>", "busid is '19:00.0'"),
    ],
)
def test_a_topology_file_that_nccl_would_not_read_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"topo\.xml:1") as caught:
        read_topology(text, "topo.xml")
    assert message in str(caught.value)


def up_down(leaf: int, other: int) -> Route:
    return Route((f"h{leaf}", f"leaf{leaf}", f"spine{(leaf + other) % 2}", f"leaf{other}", f"h{other}"), "x")


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=30))
def test_routes_that_only_go_up_and_then_down_never_deadlock(pairs: set[tuple[int, int]]) -> None:
    assert find_deadlock([up_down(a, b) for a, b in pairs]) is None


@given(st.integers(3, 9))
def test_routes_two_hops_around_a_ring_deadlock_in_a_circle_of_all_its_links(size: int) -> None:
    routes = [Route((f"h{n}", f"s{n}", f"s{(n + 1) % size}", f"s{(n + 2) % size}", f"t{n}"), "x") for n in range(size)]
    found = find_deadlock(routes)
    assert found is not None
    assert len(found.links) == size
    assert find_deadlock(routes[:-1]) is None


def test_a_route_that_comes_back_is_refused() -> None:
    with pytest.raises(InputError, match=r"r\.txt:2: the route passes s1 twice"):
        parse_routes("h1 -> s1 -> h2\nh1 -> s1 -> s2 -> s1 -> h2\n", "r.txt")


def test_the_collect_script_only_reads_and_leaves_secrets_out() -> None:
    script = collect_script()
    assert "timeout 30" in script
    asked = [line for line in script.splitlines() if line.startswith("ask ")]
    assert len(asked) > 30
    changing = ("nvidia-smi -r", "setpci", "rm ", " set ", "systemctl re", "modprobe", "--gpu-reset", "> /sys")
    assert not [line for line in asked if any(word in line for word in changing)]
    assert "token|secret|passw" in script


@given(st.integers(0, 10**12))
def test_counts_are_read_with_the_separators_of_any_country(number: int) -> None:
    grouped = f"{number:,}"
    assert count(grouped) == count(grouped.replace(",", ".")) == count(grouped.replace(",", " ")) == number


@given(st.floats(0, 1e6).map(lambda x: round(x, 3)))
def test_decimals_are_read_with_point_and_comma(number: float) -> None:
    assert decimal(f"{number:.3f}") == decimal(f"{number:.3f}".replace(".", ",")) == pytest.approx(number)


PIECES = [*LINKS.splitlines(), *XID.split(" "), "| a | b |", "{", "GPU0 X"]


@example("#  size  count  type  redop  root  time  algbw  busbw #wrong\n 1048576 262144 float sum -1 71.18 14.73 25.78 0\u2076\n")
@given(st.text(max_size=400) | st.lists(st.sampled_from(PIECES)).map("\n".join))
def test_any_text_ends_in_a_report(text: str) -> None:
    assert parse_elements("", "x") == ()
    assert list(report_lines(judged(text), everything=True))
