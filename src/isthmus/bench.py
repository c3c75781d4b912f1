"""Measure what the wind tunnel's predictions start from: codec speed and in-region copy speed of this machine's ranks."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.emulate import EmulatedLink, Tunnel, open_tunnel
from isthmus.errors import InfeasibleError

__all__ = [
    "CodecSpeed",
    "Exchange",
    "ExchangeWork",
    "SpeedRow",
    "Speeds",
    "bench_speeds",
    "combine_ranks",
    "rank_environment",
    "speeds_in",
]

_PORT, _RAIL_PORT, _FLAT_PORT = 29500, 29600, 29400
_LIMIT_S = 180.0
_SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The exchange between regions whose work is to be measured.

    Attributes:
        buckets: fp32 bytes of each gradient bucket.
        codecs: Names; one measurement each.
        rate_bytes_per_s: One rank's share of the link, to which it paces; None: as fast as it can.
        compute_s: CPU seconds that each rank computes beside an exchange.
        flat: Measure gloo's rings over all ranks too, under the name `flat`.
    """

    buckets: tuple[int, ...]
    codecs: tuple[str, ...]
    rate_bytes_per_s: float | None
    compute_s: float
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWork:
    """CPU seconds of one exchange of all buckets, beyond those of the same buckets inside the regions: frames, threads,
    checksums, the codec and what the computing threads beside it lose to packets' interrupts (`ranks_cpu_s`, all ranks together),
    and the emulated link itself (`line_cpu_s`).
    """

    ranks_cpu_s: float
    line_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSpeed:
    """Bytes of fp32 a rank encodes or decodes per second, while all ranks do."""

    encode_bytes_per_s: float
    decode_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One line of the table."""

    name: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Medians over ranks.

    Attributes:
        buffer_bytes: Size of the fp32 buffer all ranks of a region worked on; the codecs saw a rank's shard of it.
        codecs: By codec name.
        copy_bytes_per_s: Buffer bytes per second of a reduce-scatter and an all-gather in the region together.
        exchanged_bytes: fp32 bytes of all buckets of an exchange.
        exchanges: Work of one exchange, by codec name.
    """

    buffer_bytes: int
    codecs: dict[str, CodecSpeed]
    copy_bytes_per_s: float
    exchanged_bytes: int = 0
    exchanges: dict[str, ExchangeWork] = field(default_factory=dict[str, ExchangeWork])

    def rows(self) -> list[SpeedRow]:
        """For tables and results.json."""
        rows = [SpeedRow(name="reduce-scatter + all-gather in the region", bytes_per_s=self.copy_bytes_per_s)]
        for name, speed in self.codecs.items():
            rows.append(SpeedRow(name=f"{name} encode", bytes_per_s=speed.encode_bytes_per_s))
            rows.append(SpeedRow(name=f"{name} decode", bytes_per_s=speed.decode_bytes_per_s))
        for name, work in self.exchanges.items():
            core_s = max(work.ranks_cpu_s + work.line_cpu_s, 1e-9)
            rows.append(SpeedRow(name=f"{name} exchange, per core", bytes_per_s=self.exchanged_bytes / core_s))
        return rows


def bench_speeds(regions: int, ranks_per_region: int, buffer_bytes: int) -> Speeds:
    """Open a tunnel of its own, with links of no limit, and measure in it; exchanges go in buckets of 1 MiB.

    Raises:
        InputError: This machine cannot hold a tunnel.
        InfeasibleError: A rank failed.
    """
    names = [f"region-{number}" for number in range(regions)]
    links = [EmulatedLink(between=(names[0], name), rate_bytes_per_s=None, rtt_s=0.0) for name in names[1:]]
    with open_tunnel(nodes=dict.fromkeys(names, ranks_per_region), links=links) as tunnel:
        buckets = tuple(min(1 << 20, buffer_bytes - begin) for begin in range(0, buffer_bytes, 1 << 20))
        exchange = Exchange(buckets=buckets, codecs=("none", "bf16", "int8", "int4"), rate_bytes_per_s=None, compute_s=0.1)
        return speeds_in(tunnel, dict.fromkeys(names, ranks_per_region), buffer_bytes, exchange)


def speeds_in(tunnel: Tunnel, nodes: dict[str, int], buffer_bytes: int, exchange: Exchange | None = None) -> Speeds:
    """Measure on all ranks of an open tunnel at once; exchanges cross its links as they are."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        argv = [sys.executable, "-m", "isthmus.runtime.rank_speed", "--bytes", str(buffer_bytes)]
        if exchange is not None:
            argv += ["--exchange", json.dumps(asdict(exchange))]
        members = _members_file(tunnel, nodes, Path(folder))
        outputs: dict[str, Path] = {}
        processes: dict[str, subprocess.Popen[Any]] = {}
        for region, count in nodes.items():
            for rank in range(count):
                name = f"{region}-{rank}"
                outputs[name] = Path(folder) / f"{name}.json"
                with open(outputs[name], "wb") as out, open(f"{outputs[name]}.log", "wb") as log:
                    processes[name] = tunnel.start(
                        region, rank, argv, stdout=out, stderr=log,
                        env=rank_environment(tunnel, region, rank, count)
                        | {"ISTHMUS_REGION": region, "ISTHMUS_MEMBERS": members, "ISTHMUS_INSECURE": "1"},
                    )
        line = _watch_line(tunnel, list(processes.values())) if exchange is not None else []
        found = [_result(name, process, outputs[name]) for name, process in processes.items()]
    return combine_ranks(buffer_bytes, found, sum(exchange.buckets) if exchange else 0, line)


def _members_file(tunnel: Tunnel, nodes: dict[str, int], folder: Path) -> str:
    regions = [
        {"name": region, "rails": [f"{tunnel.address(region, rank)}:{_RAIL_PORT}" for rank in range(count)]}
        for region, count in nodes.items()
    ]
    path = folder / "members.json"
    flat_master = f"{tunnel.address(next(iter(nodes)), 0)}:{_FLAT_PORT}"
    path.write_text(json.dumps({"regions": regions, "flat_master": flat_master}), encoding="utf-8")
    return str(path)


def _watch_line(tunnel: Tunnel, processes: list[subprocess.Popen[Any]]) -> list[tuple[float, float]]:
    """(monotonic time, CPU seconds so far) of the delay line, until the first rank ends."""
    samples: list[tuple[float, float]] = []
    deadline = time.monotonic() + _LIMIT_S
    while all(process.poll() is None for process in processes) and time.monotonic() < deadline:
        samples.append((time.monotonic(), tunnel.line().cpu_s))
        time.sleep(_SAMPLE_S)
    return samples


def rank_environment(tunnel: Tunnel, region: str, rank: int, count: int) -> dict[str, str]:
    """The region world's part of the rank environment; what the user set for isthmus elsewhere stays out."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")},
        # Ranks share a few cores: one thread each, or they fight over every operator.
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": tunnel.address(region, 0),
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONUNBUFFERED": "1",
    }


def _result(name: str, process: subprocess.Popen[Any], output: Path) -> dict[str, Any]:
    try:
        code = process.wait(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise InfeasibleError(f"the speed measurement of {name} did not end within {_LIMIT_S:.0f} s", "see its output") from None
    if code != 0:
        lines = Path(f"{output}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        raise InfeasibleError(f"the speed measurement of {name} failed with exit code {code}", "\n    ".join(lines))
    return json.loads(output.read_text(encoding="utf-8"))


def combine_ranks(
    buffer_bytes: int, found: list[dict[str, Any]], exchanged_bytes: int, line: list[tuple[float, float]]
) -> Speeds:
    """Medians of the ranks' speeds, sums of their work, and the delay line's share of it.

    Args:
        buffer_bytes: What the ranks worked on.
        found: What each rank printed, see `runtime/rank_speed.py`.
        exchanged_bytes: fp32 bytes of an exchange; 0 where none was asked for.
        line: (monotonic time, CPU seconds so far) of the delay line.
    """
    codecs = {
        name: CodecSpeed(
            encode_bytes_per_s=median(one["codecs"][name]["encode_bytes_per_s"] for one in found),
            decode_bytes_per_s=median(one["codecs"][name]["decode_bytes_per_s"] for one in found),
        )
        for name in found[0]["codecs"]
    }
    exchanges = {
        name: ExchangeWork(
            ranks_cpu_s=sum(one["exchanges"][name]["cpu_s"] for one in found),
            line_cpu_s=(_cpu_at(line, last["ended_s"]) - _cpu_at(line, last["began_s"])) / last["rounds"],
        )
        for name, last in found[0].get("exchanges", {}).items()
    }
    return Speeds(
        buffer_bytes=buffer_bytes,
        codecs=codecs,
        copy_bytes_per_s=median(one["copy_bytes_per_s"] for one in found),
        exchanged_bytes=exchanged_bytes,
        exchanges=exchanges,
    )


def _cpu_at(samples: list[tuple[float, float]], when_s: float) -> float:
    """CPU seconds at `when_s`, on the straight line between the samples beside it."""
    for (before_s, before), (after_s, after) in pairwise(samples):
        if before_s <= when_s <= after_s:
            return before + (after - before) * (when_s - before_s) / (after_s - before_s)
    return samples[-1][1]
