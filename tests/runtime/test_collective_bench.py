"""`isthmus bench collectives` under torchrun: our reader and the columns of nccl-tests say the same as the measurements."""

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli import main
from isthmus.emulate import EmulatedLink, open_tunnel
from isthmus.formats.collective_runs import bus_factor
from isthmus.formats.measurements import read_measured_runs
from isthmus.formats.nccl_table import Measured, Place, table_foot, table_head, table_row
from isthmus.formats.nccl_tests import PROGRAMS, read_nccl_tests
from isthmus.runtime.loopback import free_ports

# size count type redop root, then time algbw busbw #wrong, twice: doc/PERFORMANCE.md and the head of nccl-tests' own tables.
COLUMNS = re.compile(
    r"^\s+(\d+)\s+(\d+)\s+float\s+(sum|none)\s+(-1|0)" + 2 * r"\s+(\d+(?:\.\d+)?)\s+(\d+\.\d\d)\s+(\d+\.\d\d)\s+(\d+)" + "$"
)


@pytest.mark.tunnel
def test_what_torchrun_measured_is_read_back_by_both_readers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    names = ",".join(PROGRAMS.values())
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(port), "-m", "isthmus",
        "bench", "collectives", "--collective", names, "--from", "48 kB", "--to", "800 kB", "--factor", "4", "-n", "3", "-w",
        "1", "-o", "measurements.jsonl",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    measured = [json.loads(line) for line in (tmp_path / "measurements.jsonl").read_text().splitlines()]
    assert {(row["collective"], row["ranks"], row["nodes"]) for row in measured} == {(name, 3, 1) for name in PROGRAMS.values()}
    rows = [match for line in done.stdout.splitlines() if (match := COLUMNS.match(line))]
    assert len(rows) == len(measured) == 3 * len(PROGRAMS)
    for match, row in zip(rows, measured, strict=True):
        seconds = row["seconds"]
        assert int(match[1]) == row["size_bytes"]
        assert float(match[5]) == pytest.approx(seconds * 1e6, rel=1e-2)
        factor = bus_factor(row["collective"], 3)
        assert float(match[7]) == pytest.approx(factor * row["size_bytes"] / seconds / 1e9, abs=6e-3)
        assert (match[8], match[12]) == ("0", "0"), "a result was wrong"
    (tmp_path / "bench.log").write_text(done.stdout)
    from_table, from_lines = read_measured_runs(tmp_path / "bench.log"), read_measured_runs(tmp_path / "measurements.jsonl")
    assert [(run.collective, run.ranks, run.nodes) for run in from_table] == [(name, 3, 1) for name in PROGRAMS.values()]
    for ours, theirs in zip(from_table, from_lines, strict=True):
        assert [row.size_bytes for row in ours.rows] == [row.size_bytes for row in theirs.rows]
        assert [row.seconds for row in ours.rows] == pytest.approx([row.seconds for row in theirs.rows], rel=1e-2)


def test_a_table_of_four_nodes_is_read_as_one() -> None:
    places = [
        Place(rank=rank, pid=100 + rank, host=f"gpu-{rank // 8}", device=rank % 8, bus="0000:1b:00", name="NVIDIA H100")
        for rank in range(32)
    ]
    sizes = 2**20, 2**30, 2**33
    rows = [Measured(size_bytes=size, seconds=size / 300e9, in_place_s=size / 290e9, wrong=0) for size in sizes]
    lines = [table_head("all-reduce", places, [row.size_bytes for row in rows], warmup=5, iters=20)]
    lines += [table_row("all-reduce", 32, row) for row in rows] + [table_foot("all-reduce", 32, rows)]
    (table,) = read_nccl_tests("\n".join(lines))
    assert (table.collective, table.ranks, table.hosts, table.devices) == ("all-reduce", 32, 4, ("NVIDIA H100",))
    assert [row.size_bytes for row in table.rows] == [*sizes]
    assert [row.seconds for row in table.rows] == pytest.approx([row.seconds for row in rows], rel=2e-3)
    assert table.rows[1].busbw_bytes_per_s == pytest.approx(300e9 * 2 * 31 / 32, rel=1e-3)


def test_outside_torchrun_it_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("sys.argv", ["isthmus", "bench", "collectives"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "torchrun --nproc-per-node 8 -m isthmus bench collectives" in capsys.readouterr().err


FABRIC = """
name: Two nodes
regions:
  here:
    nodes: [{count: 2, kind: hgx-h100, gpus: 1, nics: {count: 1, kind: connectx-7}}]
    network: {kind: ethernet, rate: 100 Mb/s}
"""


def in_the_tunnel(folder: Path, output: str) -> list[dict[str, Any]]:
    """All-reduces of two ranks, each in a node of its own, over 100 Mb/s and 4 ms; what was measured."""
    link = EmulatedLink(between=("a", "b"), rate_bytes_per_s=12.5e6, rtt_s=0.004)
    with open_tunnel({"a": 1, "b": 1}, [link], seed=1) as tunnel:
        command = [sys.executable, "-m", "isthmus", "bench", "collectives", "-b", "64 kB", "-e", "2 MB", "-n", "3", "-w", "1"]
        world = {
            "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": tunnel.address("a", 0), "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        ranks = [
            tunnel.start(
                region, 0, [*command, "-o", output], cwd=str(folder), env=os.environ | world | {"RANK": str(rank)},
                stdout=subprocess.DEVNULL,
            )
            for rank, region in enumerate("ab")
        ]  # fmt: skip
        assert [rank.wait(90) for rank in ranks] == [0, 0]
    rows = [json.loads(line) | {"nodes": 2} for line in (folder / output).read_text().splitlines()]  # one machine plays both
    (folder / output).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return rows


@pytest.mark.tunnel
def test_a_calibration_on_one_run_makes_the_prediction_of_the_next_better(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    in_the_tunnel(tmp_path, "one.jsonl")
    later = in_the_tunnel(tmp_path, "two.jsonl")
    isthmus = [sys.executable, "-m", "isthmus"]
    fit = ["calibrate", "one.jsonl", "--fabric", "fabric.yaml", "-o", "calibration.yaml"]
    subprocess.run([*isthmus, *fit], cwd=tmp_path, check=True, capture_output=True)
    sizes = [word for row in later for word in ("--size", f"{row['size_bytes']} B")]
    errors: list[float] = []
    for more in ([], ["--calibration", "calibration.yaml"]):
        command = [*isthmus, "collective", "all-reduce", "fabric.yaml", *sizes, *more, "--json"]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        rows = json.loads(done.stdout)
        errors.append(statistics.median(abs(row["seconds"] / said["seconds"] - 1) for row, said in zip(rows, later, strict=True)))
    print(f"median error of the next run: {errors[0]:.1%} as shipped, {errors[1]:.1%} calibrated")
    assert errors[1] < errors[0]
    assert errors[1] < 0.25
