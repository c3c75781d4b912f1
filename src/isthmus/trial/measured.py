"""What the ranks wrote down, reduced to the figures a person compares.

The only statistics are medians over repeats: a block is one repeat, its step time is its wall time over its steps.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Measured", "combine_starts", "read_lines", "reduce_metrics"]

_NOTHING: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One strategy's run.

    Attributes:
        step_s: Median over on-blocks of the block's mean step time.
        step_s_repeats: One value an on-block.
        off_step_s_repeats: One value an off-block (inter-region communication off).
        tokens_per_s: Of all ranks, at `step_s`.
        utilisation: Median over repeats of off step time over on step time of neighbouring blocks.
        exposed_s: Median per step of the time in which training waited for communication.
        wan_bytes_per_step: Payload and frame bytes that left the busiest region, per on-step, as the ranks count them;
            None where none were sent.
        loss: (tokens, held-out loss) pairs.
        hashes: Final parameter hash of every rank that ended well.
        tokens_per_step: Of all ranks.
        parameters, gradient_bytes: Of the model that was trained.
        buckets: Bytes of each gradient bucket in the order they become ready; empty where none were recorded.
        backward_fraction: Median share of an off step between the start of the backward pass and its last bucket.
        straggler_s: Median over off steps of how much longer the slowest region took than the median off step: what
            regions that wait for each other every step pay, WAN or not.
        steps: Steps that every rank recorded.
    """

    step_s: float
    step_s_repeats: tuple[float, ...]
    off_step_s_repeats: tuple[float, ...]
    tokens_per_s: float
    utilisation: float | None
    exposed_s: float
    wan_bytes_per_step: float | None
    loss: tuple[tuple[int, float], ...]
    hashes: tuple[str, ...]
    tokens_per_step: float
    parameters: int
    gradient_bytes: int
    buckets: tuple[int, ...]
    backward_fraction: float
    straggler_s: float
    steps: int

    @property
    def off_step_s(self) -> float:
        """Median over off-blocks."""
        return median(self.off_step_s_repeats)


def read_lines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every rank's records, by file name; a last line cut short by a dying rank is left out."""
    ranks: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        records: list[dict[str, Any]] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        ranks[path.stem] = records
    return ranks


def reduce_metrics(ranks: dict[str, list[dict[str, Any]]]) -> Measured | None:
    """The figures of one run, or None where no block was completed by every rank."""
    blocks = _blocks(ranks)
    on = [block for block in blocks if block.mode == "on"]
    off = [block for block in blocks if block.mode == "off"]
    reference = on or off
    if not reference:
        return None
    step_s = median(block.step_s for block in reference)
    tokens = median(block.tokens for block in reference)
    records = [record for lines in ranks.values() for record in lines]
    start: dict[str, Any] = next((record for record in records if record["kind"] == "start"), _NOTHING)
    # The last record of the first rank: DDP fills its buckets anew after the first step.
    found: list[list[int]] = [r["bytes"] for lines in list(ranks.values())[:1] for r in lines if r["kind"] == "buckets"]
    buckets = found[-1] if found else list[int]()
    return Measured(
        step_s=step_s,
        step_s_repeats=tuple(block.step_s for block in on),
        off_step_s_repeats=tuple(block.step_s for block in off),
        tokens_per_s=tokens / step_s,
        utilisation=_utilisation(blocks),
        exposed_s=median(block.exposed_s for block in reference),
        wan_bytes_per_step=_wan_bytes(on),
        loss=tuple(sorted({(int(r["tokens"]), float(r["loss"])) for r in records if r["kind"] == "eval"})),
        hashes=tuple(str(r["hash"]) for r in records if r["kind"] == "end"),
        tokens_per_step=tokens,
        parameters=int(start.get("params", 0)),
        gradient_bytes=int(start.get("gradient_bytes", 0)),
        buckets=tuple(int(size) for size in buckets),
        backward_fraction=_backward_fraction(records),
        straggler_s=_straggler_s(ranks),
        steps=min(sum(record["kind"] == "step" for record in lines) for lines in ranks.values()),
    )


def combine_starts(starts: Sequence[Measured]) -> Measured:
    """Several starts of one calibration: blocks of all, medians of what a start has one of; losses and hashes are the first's."""
    first = starts[0]
    return replace(
        first,
        step_s=median(each.step_s for each in starts),
        step_s_repeats=tuple(seconds for each in starts for seconds in each.step_s_repeats),
        off_step_s_repeats=tuple(seconds for each in starts for seconds in each.off_step_s_repeats),
        tokens_per_s=median(each.tokens_per_s for each in starts),
        exposed_s=median(each.exposed_s for each in starts),
        backward_fraction=median(each.backward_fraction for each in starts),
        straggler_s=median(each.straggler_s for each in starts),
        steps=sum(each.steps for each in starts),
    )


def _backward_fraction(records: list[dict[str, Any]]) -> float:
    shares = [r["backward_s"] / r["seconds"] for r in records if r["kind"] == "step" and r["mode"] == "off" and "backward_s" in r]
    return median(shares) if shares else 2 / 3  # of forward and backward, backward is two thirds of the FLOPs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    index: int
    mode: str
    step_s: float
    exposed_s: float
    tokens: float
    wan_bytes: dict[str, float]


def _blocks(ranks: dict[str, list[dict[str, Any]]]) -> list[_Block]:
    by_rank: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for rank, records in ranks.items():
        by_rank[rank] = defaultdict(list)
        for record in records:
            if record["kind"] == "step":
                by_rank[rank][int(record["block"])].append(record)
    first = next(iter(by_rank.values()), dict[int, list[dict[str, Any]]]())
    complete = sorted(index for index in first if all(index in blocks for blocks in by_rank.values()))
    return [_block(index, by_rank) for index in complete if _mode(index, by_rank) != "warmup"]


def _mode(index: int, by_rank: dict[str, dict[int, list[dict[str, Any]]]]) -> str:
    return str(next(iter(by_rank.values()))[index][0]["mode"])


def _block(index: int, by_rank: dict[str, dict[int, list[dict[str, Any]]]]) -> _Block:
    steps = min(len(blocks[index]) for blocks in by_rank.values())
    region_bytes: dict[str, float] = defaultdict(float)
    for rank, blocks in by_rank.items():
        before = blocks.get(index - 1)
        first = float(before[-1]["wan_bytes"]) if before else 0.0
        region_bytes[rank.rpartition("-")[0]] += (float(blocks[index][-1]["wan_bytes"]) - first) / steps
    return _Block(
        index=index,
        mode=_mode(index, by_rank),
        step_s=median(_mean(r["seconds"] for r in blocks[index]) for blocks in by_rank.values()),
        exposed_s=median(_mean(r["exposed_s"] for r in blocks[index]) for blocks in by_rank.values()),
        tokens=sum(_mean(r["tokens"] for r in blocks[index]) for blocks in by_rank.values()),
        wan_bytes=dict(region_bytes),
    )


def _straggler_s(ranks: dict[str, list[dict[str, Any]]]) -> float:
    by_step: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, records in ranks.items():
        for record in records:
            if record["kind"] == "step" and record["mode"] == "off":
                by_step[int(record["step"])][rank.rpartition("-")[0]].append(float(record["seconds"]))
    # Ranks of a region meet in every step, so their mean is the region's time.
    regions = [[_mean(seconds) for seconds in step.values()] for step in by_step.values()]
    if not regions:
        return 0.0
    typical = median(seconds for step in regions for seconds in step)
    return max(0.0, median(max(step) for step in regions) - typical)


def _mean(values: Iterable[Any]) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers)


def _utilisation(blocks: list[_Block]) -> float | None:
    ratios: list[float] = []
    for block in blocks:
        if block.mode == "on":
            beside = [other.step_s for other in blocks if other.mode == "off" and abs(other.index - block.index) == 1]
            if beside:
                ratios.append(_mean(beside) / block.step_s)
    return median(ratios) if ratios else None


def _wan_bytes(on: list[_Block]) -> float | None:
    busiest = [max(block.wan_bytes.values()) for block in on]
    return median(busiest) if busiest and max(busiest) > 0 else None
