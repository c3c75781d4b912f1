"""How `accuracy.py` scores: which rows count, what is held out together, which figures are printed. No model in here.

Frozen before any model was fitted (see this file's history): a change here is a change of the yardstick, and goes in a
commit of its own that says so.

Filter of runs   all runs of measured/collectives.yaml without `left_out` (reasons stand there and are printed).
Filter of rows   64 KB and larger. A row is dropped as an artefact of measuring (a cold first run, a hiccup) where some
                 message of the same run, at least twice as large, took less than 0.8 of its time.
Held out         all runs of one source together.
Class            (what joins GPUs in a node, what joins nodes). A run whose class no other source has is listed apart.
Score            each source counts once. Figure A: quantiles over sources of the source's median |error|. Figure B: quantiles
                 over rows, each weighted 1 / rows of its source. Both are printed, targets are asked of both.
Error            predicted / measured - 1.
Bands            share of rows inside p10-p90, and median of (p90 - p10) / 2 / predicted, both weighted as in B.
Floor            what the other sources' own measurement of the same system, collective and size would have predicted
                 (geometric mean), scored the same way over the rows where there is one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from isthmus.formats.collective_runs import Row, Run

SIZE_MIN_BYTES = 64_000
LARGE_BYTES = 8_000_000
Weighted = Sequence[tuple[float, float]]  # (value, weight)


@dataclass(frozen=True, slots=True)
class Scored:
    """One row that counts."""

    run: Run
    row: Row
    rows_of_source: int
    apart: bool

    @property
    def large(self) -> bool:
        return self.row.size_bytes >= LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row and what was predicted for it by a model that never saw its source."""

    scored: Scored
    seconds: float
    low_s: float = 0.0
    high_s: float = 0.0

    @property
    def error(self) -> float:
        return self.seconds / self.scored.row.seconds - 1


def fabric_class(run: Run) -> tuple[str, str]:
    alone = run.nodes is not None and run.ranks is not None and run.ranks == run.nodes
    return (
        "-" if run.in_node is None or alone else run.in_node.carrier,
        "-" if run.network is None or run.nodes == 1 else run.network.carrier,
    )


def kept_rows(run: Run) -> tuple[Row, ...]:
    """The rows of `run` that count."""
    return tuple(
        row
        for row in run.rows
        if row.size_bytes >= SIZE_MIN_BYTES
        and not any(other.size_bytes >= 2 * row.size_bytes and other.seconds < 0.8 * row.seconds for other in run.rows)
    )


def scored_rows(runs: Iterable[Run]) -> tuple[Scored, ...]:
    used = [run for run in runs if not run.left_out]
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    count: dict[tuple[str, bool], int] = defaultdict(int)
    for run in used:
        sources[fabric_class(run)].add(run.source)
        for row in kept_rows(run):
            count[run.source, row.size_bytes >= LARGE_BYTES] += 1
    return tuple(
        Scored(run, row, count[run.source, row.size_bytes >= LARGE_BYTES], len(sources[fabric_class(run)]) == 1)
        for run in used
        for row in kept_rows(run)
    )


def quantile(values: Weighted, share: float) -> float:
    """The least value with at least `share` of the weight at or below it."""
    if not values:
        return float("nan")
    ordered, total, passed = sorted(values), sum(weight for _, weight in values), 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= share * total * (1 - 1e-9):
            return value
    return ordered[-1][0]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is printed for one predictor and one range of sizes."""

    sources: int
    rows: int
    median_of_sources: float
    p90_of_sources: float
    median_of_rows: float
    p90_of_rows: float
    inside_band: float
    half_width: float


def figures(predicted: Iterable[Predicted], keep: Callable[[Scored], bool]) -> Figures:
    kept = [each for each in predicted if keep(each.scored)]
    by_source: dict[str, list[float]] = defaultdict(list)
    for each in kept:
        by_source[each.scored.run.source].append(abs(each.error))
    rows = [(abs(each.error), 1 / len(by_source[each.scored.run.source])) for each in kept]
    medians = [(quantile([(value, 1.0) for value in errors], 0.5), 1.0) for errors in by_source.values()]
    weight = sum(each for _, each in rows) or 1.0
    inside = sum(
        share for each, (_, share) in zip(kept, rows, strict=True) if each.low_s <= each.scored.row.seconds <= each.high_s
    )
    widths = [((each.high_s - each.low_s) / 2 / each.seconds, share) for each, (_, share) in zip(kept, rows, strict=True)]
    return Figures(
        sources=len(by_source),
        rows=len(kept),
        median_of_sources=quantile(medians, 0.5),
        p90_of_sources=quantile(medians, 0.9),
        median_of_rows=quantile(rows, 0.5),
        p90_of_rows=quantile(rows, 0.9),
        inside_band=inside / weight,
        half_width=quantile(widths, 0.5),
    )


def repeat_scatter(scored: Sequence[Scored]) -> tuple[Predicted, ...]:
    """Each row as the other sources' measurement of the same system, collective and size predicts it."""
    same: dict[tuple[object, ...], list[Scored]] = defaultdict(list)
    for each in scored:
        run = each.run
        same[
            run.in_node, run.network, run.nodes, run.ranks, run.collective, run.algorithm, run.protocol, each.row.size_bytes
        ].append(each)
    found: list[Predicted] = []
    for group in same.values():
        for each in group:
            others = [other.row.seconds for other in group if other.run.source != each.run.source]
            if others:
                found.append(Predicted(each, exp(sum(map(log, others)) / len(others))))
    return tuple(found)
