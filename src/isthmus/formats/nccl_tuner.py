"""The configuration file of NCCL's example tuner plugin: which algorithm and protocol to use from which size.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff

-1 leaves a choice to NCCL, or matches anything. The plugin skips lines that begin with `#`.
Source: NVIDIA/nccl plugins/tuner/example (README.md, plugin.c), which names the columns in this order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["COLUMNS", "TunerRow", "tuner_csv"]

COLUMNS = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

TunerCollective = Literal["broadcast", "reduce", "allgather", "reducescatter", "allreduce"]
TunerAlgorithm = Literal["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerRow:
    """One line: sizes from `min_bytes` to `max_bytes`, both included, on so many nodes and ranks."""

    collective: TunerCollective
    min_bytes: int
    max_bytes: int
    algorithm: TunerAlgorithm
    protocol: Literal["ll", "ll128", "simple"]
    nodes: int
    ranks: int


def tuner_csv(rows: Sequence[TunerRow], comment: str = "") -> str:
    """The file's text; channels, pipelined operations and registered buffers are left to NCCL."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"# {COLUMNS}"]
    lines += [
        f"{row.collective},{row.min_bytes},{row.max_bytes},{row.algorithm},{row.protocol},-1,{row.nodes},{row.ranks},-1,-1"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
