"""What GPUs and training software reach in a step: `step_rates.yaml`, read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.collectives_group import Group
from isthmus.cost.machine import GpuRates, Machine, Stack
from isthmus.errors import InfeasibleError, InputError, nearest
from isthmus.fabric import Gpu
from isthmus.workload.model import Precision

__all__ = ["HOST_OF", "StepRates", "machine_of", "make_stack", "shipped_rates"]

HOST_OF = {"megatron-deepspeed-blocking": "megatron-deepspeed", "megatron-2022": "megatron-2021", "fsdp-compiled": "fsdp"}
"""Stacks that share another's fitted host time, because the same code launches their kernels."""

_FAMILIES = {"a100": ("a100", "a800", "a30"), "h100": ("h100", "h800", "h200", "h20", "gh200")}
"""Fitted type -> GPUs of its architecture; their data sheets differ, the shares reached are taken to be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """All constants of the step model.

    Attributes:
        gpus: Shares by fitted GPU type: matrix, matrix_fp8, attention, memory, contention.
        host_s: Host time of a block by stack.
        stacks: Facts of the software by name.
        fitted_to: What the shares were fitted to, in words.
        band: p10 and p90 of measured / predicted steps of sources that were not fitted.
    """

    gpus: Mapping[str, Mapping[str, float]]
    host_s: Mapping[str, float]
    stacks: Mapping[str, Mapping[str, Any]]
    fitted_to: str
    band: tuple[float, float]

    def gpu(self, kind: str, precision: Precision) -> GpuRates:
        """The shares of `kind` (a catalogue name); of an architecture that was not fitted those of the H100, and it says so."""
        family = next((name for name, kinds in _FAMILIES.items() if kind.partition("-")[0] in kinds), None)
        shares = self.gpus[family or "h100"]
        source = f"fitted to {self.fitted_to}"
        if family is None:
            source = f"judgement: {kind} has no public steps here, so the H100's shares, {source}"
        return GpuRates(
            matrix=shares["matrix_fp8"] if precision == "fp8" else shares["matrix"],
            attention=shares["attention"],
            memory=shares["memory"],
            contention=shares["contention"],
            source=source,
        )

    def stack(self, name: str) -> Stack:
        """The stack `name`.

        Raises:
            InputError: There is none of that name.
        """
        if name not in self.stacks:
            raise InputError("stack", f"found {name!r}, expected one of {', '.join(self.stacks)}", nearest(name, self.stacks))
        return make_stack(self.stacks, name, self.host_s[HOST_OF.get(name, name)])


def make_stack(stacks: Mapping[str, Mapping[str, Any]], name: str, host_s: float) -> Stack:
    """The stack `name` of the file's `stacks`, where one may be `like` another."""
    stated = dict(stacks[name])
    if "like" in stated:
        stated = {**stacks[stated.pop("like")], **stated}
    return Stack(name=name, host_s=host_s, **stated)


def machine_of(gpu: Gpu, precision: Precision, stack: str, links: tuple[Group, Constants], rates: StepRates) -> Machine:
    """One site of `gpu`s running `stack`; `links` = (what joins them, what collectives on it reach).

    Raises:
        InfeasibleError: The GPU has no peak in `precision`.
        InputError: There is no such stack.
    """
    peaks = gpu.dense_flop_per_s
    if precision not in peaks:
        raise InfeasibleError(f"{gpu.kind} has no {precision} rate", f"precision: {gpu.kind} has {', '.join(peaks) or 'none'}")
    group, constants = links
    return Machine(
        dense_flop_per_s=peaks[precision],
        dense_16_flop_per_s=peaks["fp32"] if precision == "fp32" else peaks.get("bf16", peaks.get("fp16", peaks[precision])),
        memory_bytes=gpu.memory_bytes,
        memory_rate_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        node_gpus=group[0].members if group else 1,
        group=group,
        constants=constants,
        rates=rates.gpu(gpu.kind, precision),
        band=rates.band,
        stack=rates.stack(stack),
    )


@cache
def shipped_rates() -> StepRates:
    """The constants that isthmus ships."""
    data: Any = yaml.safe_load(files("isthmus.cost").joinpath("step_rates.yaml").read_text(encoding="utf-8"))
    fitted = data["fitted"]
    return StepRates(
        gpus=fitted["gpus"],
        host_s=fitted["host_s"],
        stacks=data["stacks"],
        fitted_to=fitted["fitted_to"],
        band=(fitted["band"][0], fitted["band"][1]),
    )
