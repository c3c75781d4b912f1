"""Measure what the wind tunnel's predictions start from: codec speed and in-region copy speed of this machine's ranks."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.emulate import EmulatedLink, Tunnel, open_tunnel
from isthmus.errors import InfeasibleError

__all__ = ["CodecSpeed", "SpeedRow", "Speeds", "bench_speeds", "rank_environment", "speeds_in"]

_PORT = 29500
_LIMIT_S = 180.0


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
    """

    buffer_bytes: int
    codecs: dict[str, CodecSpeed]
    copy_bytes_per_s: float

    def rows(self) -> list[SpeedRow]:
        """For tables and results.json."""
        rows = [SpeedRow(name="reduce-scatter + all-gather in the region", bytes_per_s=self.copy_bytes_per_s)]
        for name, speed in self.codecs.items():
            rows.append(SpeedRow(name=f"{name} encode", bytes_per_s=speed.encode_bytes_per_s))
            rows.append(SpeedRow(name=f"{name} decode", bytes_per_s=speed.decode_bytes_per_s))
        return rows


def bench_speeds(regions: int, ranks_per_region: int, buffer_bytes: int) -> Speeds:
    """Open a tunnel of its own and measure in it.

    Raises:
        InputError: This machine cannot hold a tunnel.
        InfeasibleError: A rank failed.
    """
    names = [f"region-{number}" for number in range(regions)]
    links = [EmulatedLink(between=(names[0], name), rate_bytes_per_s=None, rtt_s=0.0) for name in names[1:]]
    with open_tunnel(nodes=dict.fromkeys(names, ranks_per_region), links=links) as tunnel:
        return speeds_in(tunnel, dict.fromkeys(names, ranks_per_region), buffer_bytes)


def speeds_in(tunnel: Tunnel, nodes: dict[str, int], buffer_bytes: int) -> Speeds:
    """Measure on all ranks of an open tunnel at once."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        outputs: dict[str, Path] = {}
        processes: dict[str, subprocess.Popen[Any]] = {}
        for region, count in nodes.items():
            for rank in range(count):
                name = f"{region}-{rank}"
                outputs[name] = Path(folder) / f"{name}.json"
                with open(outputs[name], "wb") as out, open(f"{outputs[name]}.log", "wb") as log:
                    processes[name] = tunnel.start(
                        region, rank, [sys.executable, "-m", "isthmus.runtime.rank_speed", "--bytes", str(buffer_bytes)],
                        env=rank_environment(tunnel, region, rank, count), stdout=out, stderr=log,
                    )
        found = [_result(name, process, outputs[name]) for name, process in processes.items()]
    return _combine(buffer_bytes, found)


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


def _combine(buffer_bytes: int, found: list[dict[str, Any]]) -> Speeds:
    codecs = {
        name: CodecSpeed(
            encode_bytes_per_s=median(one["codecs"][name]["encode_bytes_per_s"] for one in found),
            decode_bytes_per_s=median(one["codecs"][name]["decode_bytes_per_s"] for one in found),
        )
        for name in found[0]["codecs"]
    }
    return Speeds(buffer_bytes=buffer_bytes, codecs=codecs, copy_bytes_per_s=median(one["copy_bytes_per_s"] for one in found))
