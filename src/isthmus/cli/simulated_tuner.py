"""`isthmus simulate --tuner-csv`: the algorithms and protocols that the collective model chooses, for NCCL's example tuner."""

from pathlib import Path

from isthmus.cost.collectives_group import region_group
from isthmus.cost.collectives_time import collective_time
from isthmus.errors import InfeasibleError
from isthmus.fabric import Fabric, Region
from isthmus.formats.collective_runs import Collective
from isthmus.formats.nccl_tuner import TunerAlgorithm, TunerCollective, TunerRow, tuner_csv

__all__ = ["tuner_rows", "write_tuner"]

_COLLECTIVES: dict[Collective, TunerCollective] = {
    "all-reduce": "allreduce", "all-gather": "allgather", "reduce-scatter": "reducescatter", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip
_ALGORITHMS: dict[str, TunerAlgorithm] = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvls-tree": "nvls_tree", "collnet": "collnet_direct", "pat": "pat",
}  # fmt: skip
_SMALLEST, _STEPS_A_DOUBLING, _MOST = 1024, 4, 4_294_967_295
"""The plugin's README covers all sizes with 0 to 4,294,967,295."""


def tuner_rows(fabric: Fabric) -> list[TunerRow]:
    """For every region, by collective, the ranges of sizes on which one algorithm and protocol are quickest.

    Regions of as many nodes and GPUs match the same rules; where their rules differ, the plugin takes the first.
    """
    rows = [row for region in fabric.regions for name in _COLLECTIVES for row in _rows(fabric, region, name)]
    return list(dict.fromkeys(rows))


def _rows(fabric: Fabric, region: Region, collective: Collective) -> list[TunerRow]:
    group = region_group(fabric, region.name)
    sizes = [round(_SMALLEST * 2 ** (step / _STEPS_A_DOUBLING)) for step in range(22 * _STEPS_A_DOUBLING + 1)]
    ranges: list[tuple[int, str, str]] = []  # from this size on
    for size in sizes:
        try:
            found = collective_time(collective, float(size), group)
        except InfeasibleError:
            return []
        if not ranges or ranges[-1][1:] != (found.algorithm, found.protocol):
            ranges.append((size if ranges else 0, found.algorithm, found.protocol))
    ends = [begin - 1 for begin, _, _ in ranges[1:]] + [_MOST]
    rows: list[TunerRow] = []
    for (begin, algorithm, protocol), end in zip(ranges, ends, strict=True):
        if algorithm in _ALGORITHMS and protocol != "auto":
            rows.append(
                TunerRow(
                    collective=_COLLECTIVES[collective],
                    min_bytes=begin,
                    max_bytes=end,
                    algorithm=_ALGORITHMS[algorithm],
                    protocol=protocol,  # type: ignore[arg-type]
                    nodes=region.nodes,
                    ranks=region.gpus,
                )
            )
    return rows


def write_tuner(fabric: Fabric, path: Path) -> int:
    """Write the file; the number of its rules."""
    rows = tuner_rows(fabric)
    told = f"isthmus, for {fabric.name}: NCCL_TUNER_PLUGIN=example NCCL_TUNER_CONFIG_FILE={path.name}"
    path.write_text(tuner_csv(rows, told), encoding="utf-8")
    return len(rows)
