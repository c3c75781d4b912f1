"""`measured/steps`: public steps, read into workloads, layouts and machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from isthmus.cost.collectives_constants import default_constants
from isthmus.cost.collectives_group import Group, GroupLevel
from isthmus.cost.step_rates import StepRates, machine_of
from isthmus.cost.step_times import StepTimes, step_times
from isthmus.fabric.carriers import Carrier
from isthmus.fabric.entries import gpu
from isthmus.units import BYTES_PER_SECOND, quantity
from isthmus.workload import Layouts, ModelShape, Workload
from isthmus.workload.layouts import RECOMPUTE, TP_OVERLAP, TP_WAY

__all__ = ["FOLDER", "Record", "load_records", "measured_s", "predict_s", "times_of"]

FOLDER = Path(__file__).parents[1] / "measured" / "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run: `file` is what its file says of all rows, `row` what the row does."""

    name: str
    file: dict[str, Any]
    row: dict[str, Any]

    def get(self, key: str, default: Any = 1) -> Any:
        """The row's `key`, else the file's, else `default`."""
        return self.row.get(key, self.file.get(key, default))

    @property
    def configuration(self) -> str:
        """Everything but micro-batch and batch: rows that differ in these only are not independent."""
        return "/".join(str(self.get(key)) for key in ("layers", "hidden", "heads", "tp", "pp", "dp", "cp"))


def load_records(*names: str) -> list[Record]:
    """All rows of the files `names`."""
    found: list[Record] = []
    for name in names:
        file: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        found += [Record(name=name, file=file, row=dict(zip(file["columns"], row, strict=True))) for row in file["rows"]]
    return found


def measured_s(records: list[Record]) -> NDArray[np.float64]:
    """Seconds of each run."""
    return np.array([each.row["step_s"] for each in records])


def predict_s(records: list[Record], rates: StepRates) -> NDArray[np.float64]:
    """Predicted seconds of each run."""
    seconds = np.zeros(len(records))
    for rows, times in times_of(records, rates):
        seconds[rows] = times.total
    return seconds


def times_of(records: list[Record], rates: StepRates) -> list[tuple[list[int], StepTimes]]:
    """(rows, their steps) of every set of rows that share model and machine."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, each in enumerate(records):
        key = (each.name, *(each.get(name, 0) for name in ("layers", "hidden", "heads", "seq", "gpus")))
        groups.setdefault(key, []).append(index)
    return [(rows, _times([records[row] for row in rows], rates)) for rows in groups.values()]


def _times(same: list[Record], rates: StepRates) -> StepTimes:
    first = same[0]
    system, stack = first.file["system"], rates.stack(first.file["stack"])
    width = system["gpus_per_node"]
    card = gpu(system["gpu"])
    inside: Carrier = "nvlink4" if card.fabric_generation == 4 else "nvlink3"
    switched = card.fabric_generation == 4  # the switches of Hopper's boards add; those of Ampere's do not
    links: Group = (
        GroupLevel(
            carrier=inside, members=min(width, first.get("gpus")), rate_bytes_per_s=card.fabric_bytes_per_s, adds=switched
        ),
    )
    if first.get("gpus") > width:
        adapters = system["nics"] * quantity(system["nic"], BYTES_PER_SECOND)
        network: Carrier = system.get("network", "infiniband")
        links += (GroupLevel(carrier=network, members=first.get("gpus") // width, rate_bytes_per_s=adapters),)
    workload = Workload(
        name=first.name,
        shape=_shape(first),
        sequence_length=first.get("seq"),
        sequences_per_step=first.get("gbs"),
        precision=first.get("precision"),
        gradient_bytes=first.get("gradient_bytes", stack.gradient_bytes),
        mfu=None,
        source=first.name,
    )
    layouts = Layouts.make(
        rounds=[-(-each.get("gbs") // (each.get("dp") * each.get("mbs"))) for each in same],
        micro_batch=[each.get("mbs") for each in same],
        zero=[each.get("zero", 0) for each in same],
        recompute=[RECOMPUTE.index(each.get("recompute", "none")) for each in same],
        virtual_stages=[each.get("vp") for each in same],
        tp_way=[TP_WAY.index(each.get("tp_way", stack.tp_way)) for each in same],
        tp_overlap=[TP_OVERLAP.index(each.get("tp_overlap", "none")) for each in same],
        dp_overlap=stack.dp_overlap,
        **{axis: [each.get(axis) for each in same] for axis in ("dp", "tp", "pp", "cp", "ep")},
    )
    return step_times(workload, layouts, machine_of(card, workload.precision, stack.name, (links, default_constants()), rates))


def _shape(record: Record) -> ModelShape:
    model, hidden, heads = record.file["model"], record.get("hidden"), record.get("heads")
    gpt = model["family"] == "gpt"
    return ModelShape(
        name=record.name,
        layers=record.get("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=record.get("kv_heads", heads),
        head_dim=hidden // heads,
        ffn=record.get("ffn", 4 * hidden),
        gated=not gpt,
        vocabulary=model["vocabulary"],
        tied=model.get("tied", gpt),
        positions=record.get("seq") if gpt else 0,
        biases=model.get("biases", gpt),
        norm_tensors=2 if gpt else 1,
        dropout=model.get("dropout", gpt),
    )
