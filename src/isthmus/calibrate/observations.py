"""Runs as the model sees them: a group, a collective, sizes, and the times that were measured."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from isthmus.cost.collectives_constants import LARGE_BYTES, Constants
from isthmus.cost.collectives_curves import curves
from isthmus.cost.collectives_group import Group, GroupLevel
from isthmus.cost.collectives_time import seconds_of_ways
from isthmus.errors import InputError
from isthmus.formats.collective_runs import Row, Run

__all__ = ["Observed", "group_of", "observe"]


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One run, ready to be compared.

    Attributes:
        run: As it was read.
        group: What it ran over.
        sizes_bytes: Of its rows, shape [rows].
        log_seconds: Natural logarithm of the measured times, shape [rows].
        weights: Of its rows, shape [rows]; rows of one source and range of sizes share a source's weight.
    """

    run: Run
    group: Group
    sizes_bytes: NDArray[np.float64]
    log_seconds: NDArray[np.float64]
    weights: NDArray[np.float64]

    def residuals(self, constants: Constants, blur: float = 0.0) -> NDArray[np.float64]:
        """ln(predicted / measured) of every row.

        With `blur` > 0 the ways that are nearly as quick as the quickest count too, each with exp(-ln(t / t_min) / blur), so
        that a fit feels ways that it does not take yet.
        """
        assert self.run.collective is not None
        ways = curves(self.run.collective, self.group, self.run.algorithm, self.run.protocol, constants)
        log_seconds = np.log(seconds_of_ways(ways, self.sizes_bytes))
        best = np.min(log_seconds, axis=0)
        if blur:
            weights = np.exp((best - log_seconds) / blur)
            best = np.sum(weights * log_seconds, axis=0) / np.sum(weights, axis=0)
        launch_s = constants.launch_s * self.run.gpus_per_process  # a host that launches cannot time less
        return np.maximum(best, log(launch_s)) - self.log_seconds


def group_of(run: Run) -> Group:
    """The group that `run` describes.

    Raises:
        InputError: It does not say enough to be priced.
    """
    if run.ranks is None or run.collective is None:
        missing = "the number of ranks" if run.ranks is None else "the collective"
        raise InputError(run.where, f"{run.name}: {missing} is not known", "say it with --ranks or --collective")
    nodes = run.nodes or 1
    gpus = run.ranks // nodes
    levels: list[GroupLevel] = []
    if gpus > 1:
        if run.in_node is None:
            raise InputError(run.where, f"{run.name}: the wiring of the {gpus} GPUs of a node is not known", "name the fabric")
        inside = run.in_node
        level = GroupLevel(carrier=inside.carrier, members=gpus, rate_bytes_per_s=inside.rate_bytes_per_s, adds=inside.adds)
        levels.append(level)
    if nodes > 1:
        if run.network is None:
            raise InputError(run.where, f"{run.name}: the network between its {nodes} nodes is not known", "name the fabric")
        adapters = run.network
        levels.append(
            GroupLevel(carrier=adapters.carrier, members=nodes, rate_bytes_per_s=adapters.count * adapters.rate_bytes_per_s)
        )
    return tuple(levels)


def observe(runs: Iterable[tuple[Run, tuple[Row, ...]]]) -> tuple[Observed, ...]:
    """The runs with the rows that count of each; rows of one source weigh as much as those of any other."""
    pairs = [(run, rows) for run, rows in runs if rows]
    count = Counter((run.source, row.size_bytes >= LARGE_BYTES) for run, rows in pairs for row in rows)
    return tuple(
        Observed(
            run=run,
            group=group_of(run),
            sizes_bytes=np.array([row.size_bytes for row in rows], dtype=float),
            log_seconds=np.array([log(row.seconds) for row in rows]),
            weights=np.array([1 / count[run.source, row.size_bytes >= LARGE_BYTES] for row in rows]),
        )
        for run, rows in pairs
    )
