"""`isthmus bench wan`: links of the wind tunnel are measured as they are, and predictions made from that are nearer."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.cli import main
from isthmus.cost.collectives_calibration import link_changes, read_measured_links
from isthmus.cost.transport import payload_fraction
from isthmus.emulate import EmulatedLink, open_tunnel
from isthmus.errors import InputError
from isthmus.fabric import read_fabric
from isthmus.formats.nccl_tests import read_nccl_tests
from isthmus.formats.wan_measurements import Goodput, RoundTrip, WanExchange, read_wan_lines, wan_line
from isthmus.keys import make_keys
from isthmus.report.wan_table import Driven, predicted_exchanges, remarks

FABRIC = """
name: West - East
regions:
  west:
    nodes: [{count: 2, kind: hgx-h100, nics: {count: 1, kind: connectx-7}}]
    network: {kind: infiniband, rate: 400 Gb/s}
  east:
    nodes: [{count: 2, kind: hgx-h100, nics: {count: 1, kind: connectx-7}}]
    network: {kind: infiniband, rate: 400 Gb/s}
wan:
  - {between: [east, west], rate: 250 Mb/s, rtt: 4 ms, transport: tcp}
"""
RATE_BYTES_PER_S, RTT_S = 10e6, 0.012
RANKS = {"west": 2, "east": 1}
OPTIONS = ("--streams", "1,2", "--seconds", "0.4", "--repeats", "1", "--from", "500 kB", "--to", "2 MB", "--iters", "2")


def rows(rate: float = 12e6, rtt: float = 0.02, over: float = 1.1) -> list[Goodput | RoundTrip | WanExchange]:
    """What a bench of two regions might write: the way to the west is slower, and one stream carries a half."""
    ways = [("west", "east", 1.0), ("east", "west", 0.9)]
    found: list[Goodput | RoundTrip | WanExchange] = [
        Goodput(between=("west", "east"), sender=a, receiver=b, streams=streams, both_ways=both, retransmits=3, source="bench",
                bytes_per_s=rate * share * min(streams, 2) / 2 * (0.5 if both else 1))
        for streams in (1, 2, 4) for a, b, share in ways for both in (False, True)
    ]  # fmt: skip
    found.append(RoundTrip(between=("west", "east"), rtt_s=rtt, rtt_min_s=0.99 * rtt, rtt_p99_s=1.2 * rtt, source="bench"))
    limit = 4e6 / (0.9 * rate) + rtt / 2
    found.append(WanExchange(regions=("west", "east"), size_bytes=4_000_000, seconds=over * limit, streams=2, source="bench"))
    return found


def written(folder: Path, found: list[Goodput | RoundTrip | WanExchange]) -> Path:
    path = folder / "wan.jsonl"
    path.write_text("".join(f"{wan_line(row)}\n" for row in found))
    (folder / "fabric.yaml").write_text(FABRIC)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["isthmus", *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        if ended.code != 0:
            raise


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert list(read_wan_lines(written(tmp_path, rows()))) == rows()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"wan": ["a", "b"], "rtt": 1, "source": ""}', "unknown key 'rtt'"),
        ('{"wan": ["a", "b"], "rtt_s": 1, "source": ""}', "has the keys rtt_s, source, wan"),
        ('{"wan": ["a", "b"], "rtt_s": -1, "rtt_min_s": 1, "rtt_p99_s": 1, "source": ""}', "rtt_s is -1.* not a number above 0"),
        ('{"wan": ["a"], "rtt_s": 1, "rtt_min_s": 1, "rtt_p99_s": 1, "source": ""}', "not enough values"),
        ('{"wan": ["a", "b"], "rtt_s"', "is not JSON"),
        (wan_line(rows()[0]).replace('"from": "west"', '"from": "south"'), "from south to east is no way over the link"),
    ],
)
def test_a_line_that_is_not_ours_is_named_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "wan.jsonl"
    path.write_text(f"{wan_line(rows()[0])}\n{line}\n")
    with pytest.raises(InputError, match=rf"wan\.jsonl:2.*{said}"):
        read_wan_lines(path)


def test_calibrate_takes_the_slower_way_of_the_fewest_streams_that_fill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, rows())
    run(monkeypatch, "calibrate", path, "--fabric", tmp_path / "fabric.yaml", "-o", tmp_path / "calibration.yaml")
    assert "East" not in capsys.readouterr().err
    found = read_measured_links(tmp_path / "calibration.yaml")
    link = found.wan["east-west"]  # as the fabric calls it
    assert link.streams == 2
    assert link.rate_bytes_per_s == pytest.approx(0.9 * 12e6 / payload_fraction(), rel=1e-3)
    assert link.rate_high_bytes_per_s == pytest.approx(12e6 / payload_fraction(), rel=1e-3)
    assert (link.rtt_s, found.exchange) == (pytest.approx(0.02), pytest.approx(1.1, rel=1e-3))
    assert set(link_changes(found.wan)) == {"wan.east-west.rate", "wan.east-west.rtt"}


def test_a_plan_with_that_calibration_is_made_for_the_measured_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plans = written(tmp_path, rows()), []
    run(monkeypatch, "calibrate", path, "--fabric", tmp_path / "fabric.yaml", "-o", tmp_path / "calibration.yaml")
    slow = FABRIC.replace("250 Mb/s, rtt: 4 ms", f"{0.9 * 12e6 / payload_fraction() * 8 / 1e6:.6g} Mb/s, rtt: 20 ms")
    (tmp_path / "slow.yaml").write_text(slow)
    for fabric, more in (
        ("fabric.yaml", ()),
        ("fabric.yaml", ("--calibration", tmp_path / "calibration.yaml")),
        ("slow.yaml", ()),
    ):
        capsys.readouterr()
        run(monkeypatch, "plan", tmp_path / fabric, "llama-3-8b", *more, "--json")
        plans.append(json.loads(capsys.readouterr().out))
    stated, measured, described = plans
    steps = [
        {each["strategy"]["name"]: each["prediction"]["step_s"] for each in plan["alternatives"] if each["prediction"]}
        for plan in (stated, measured, described)
    ]
    assert steps[1] == pytest.approx(steps[2], rel=2e-3)
    slower = [steps[1][name] > 1.5 * step for name, step in steps[0].items() if name == "flat"]
    assert slower == [True]
    names = {each["name"]: each for each in measured["assumptions"]}
    assert "the fabric states 250 Mb/s" in names["rate of east-west"]["source"]
    assert names["round trip of east-west"]["value"] == pytest.approx(0.02)


def test_a_link_that_the_fabric_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, rows())
    (tmp_path / "fabric.yaml").write_text(FABRIC.replace("west", "north"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "calibrate", path, "--fabric", tmp_path / "fabric.yaml")
    assert ended.value.code == 2


def test_a_link_below_what_the_fabric_states_and_small_buffers_are_said(tmp_path: Path) -> None:
    written(tmp_path, rows())
    ways = [
        Driven(sender=a, receiver=b, streams=2, congestion="cubic", window_limit_bytes=10_000)
        for a, b in (("west", "east"), ("east", "west"))
    ]
    said = "\n".join(remarks(rows(), read_fabric(tmp_path / "fabric.yaml"), ways))
    assert "below the fabric's 250 Mb/s" in said
    assert "round trip longer than the fabric's 4 ms" in said
    assert "tcp_wmem" in said
    as_stated = "\n".join(
        remarks(rows(rate=250e6 / 8 * payload_fraction() / 0.9, rtt=0.004), read_fabric(tmp_path / "fabric.yaml"), ways)
    )
    assert "below" not in as_stated
    assert "longer" not in as_stated


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a link needs two"),
        (("--here", "a=1,b=1", "--keys", "k"), "leave out --members, --region, --keys"),
        (("--here", "a=1"), "has one region: a link needs two"),
        (("--here", "a=1,b=1", "--fabric", "examples/shenzhen-shanghai.yaml"), "has no link between a and b"),
        (("--streams", "1,x"), "'x' is not a number of 1 to 64"),
        (("--codec", "int5"), "unknown codec 'int5'"),
        (("--calibration", "c.yaml"), "give --fabric too"),
        (("-o", "nowhere/wan.jsonl"), "no such folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    for name in ("ISTHMUS_MEMBERS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "bench", "wan", *arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def measured_in_the_tunnel(folder: Path, output: str, *more: str) -> str:
    """Two ranks in the west and one in the east, inside TLS, over 80 Mb/s and 12 ms; what the first rank printed."""
    link = EmulatedLink(between=("west", "east"), rate_bytes_per_s=RATE_BYTES_PER_S, rtt_s=RTT_S)
    with open_tunnel(RANKS, [link], seed=1) as tunnel:
        members = [
            {"name": name, "rails": [f"{tunnel.address(name, rank)}:29600" for rank in range(n)]} for name, n in RANKS.items()
        ]
        (folder / "members.json").write_text(json.dumps({"regions": members}))
        ranks: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        for region, count in RANKS.items():
            for rank in range(count):
                command = [sys.executable, "-m", "isthmus", "bench", "wan", "--members", "members.json", "--region", region]
                command += ["--keys", "keys", "--fabric", "fabric.yaml", "-o", output, *OPTIONS, *more]
                world = {
                    "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MASTER_ADDR": tunnel.address(region, 0),
                    "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                with open(folder / f"{region}-{rank}.log", "wb") as log:
                    ranks[region, rank] = tunnel.start(
                        region, rank, command, cwd=str(folder), env=os.environ | world, stdout=log, stderr=subprocess.STDOUT
                    )  # fmt: skip
        codes = [rank.wait(100) for rank in ranks.values()]
        logs = {key: (folder / f"{key[0]}-{key[1]}.log").read_text() for key in ranks}
        assert codes == [0, 0, 0], logs
    return logs["west", 0]


@pytest.mark.tunnel
def test_links_are_measured_as_they_are_and_the_next_prediction_is_nearer(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    make_keys(["west", "east"], tmp_path / "keys")
    printed = measured_in_the_tunnel(tmp_path, "one.jsonl")
    assert "below the fabric's 250 Mb/s" in printed
    fit = ["calibrate", "one.jsonl", "--fabric", "fabric.yaml", "-o", "calibration.yaml"]
    subprocess.run([sys.executable, "-m", "isthmus", *fit], cwd=tmp_path, check=True, capture_output=True)
    calibration = read_measured_links(tmp_path / "calibration.yaml")
    link = calibration.wan["east-west"]
    assert link.rate_bytes_per_s == pytest.approx(RATE_BYTES_PER_S, rel=0.1)
    assert RTT_S <= link.rtt_low_s < 2 * RTT_S
    assert read_nccl_tests(printed)[0].ranks == 3
    assert [row.size_bytes for row in read_nccl_tests(printed)[0].rows] == [500_000, 2_000_000]
    measured_in_the_tunnel(tmp_path, "two.jsonl", "--calibration", "calibration.yaml")
    later, fabric = read_wan_lines(tmp_path / "two.jsonl"), read_fabric(tmp_path / "fabric.yaml")
    errors = [
        statistics.median(abs(1 / each.ratio - 1) for each in predicted_exchanges(later, fabric, by))
        for by in (None, calibration)
    ]
    print(f"median error of the next run's all-reduces: {errors[0]:.0%} as stated, {errors[1]:.0%} calibrated")
    assert errors[1] < errors[0]
    assert errors[1] < 0.3
