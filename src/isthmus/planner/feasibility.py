"""Memory decides what can run at all."""

from dataclasses import replace

from isthmus.errors import InfeasibleError
from isthmus.plan import Strategy
from isthmus.planner.candidates import whole_batch
from isthmus.planner.setting import Setting
from isthmus.planner.ways import over_all
from isthmus.planner.words import counted
from isthmus.units import show_bytes
from isthmus.workload import Axes, activation_bytes, gpu_memory

__all__ = ["added_memory_bytes", "bind_of", "check_fabric", "replica_memory_bytes"]


def replica_memory_bytes(setting: Setting, axes: Axes, over_all: bool) -> float:
    """Bytes of state and activations on the fullest GPU, before what a strategy adds.

    Where regions hold a replica each (not `over_all`), ZeRO shards over the smallest region's ranks only;
    micro-batches of one replica, and with them the activations in flight, stay those of the whole batch.
    """
    batch = whole_batch(setting.workload, axes)
    if over_all:
        return gpu_memory(batch, axes).total
    dp = min(setting.region_gpus) // (axes.tp * axes.pp * axes.cp)
    share = replace(batch, sequences_per_step=batch.sequences_per_step // axes.dp * dp)
    return gpu_memory(share, replace(axes, dp=dp)).total


def added_memory_bytes(setting: Setting, axes: Axes, in_flight_extra: int) -> float:
    """Bytes of activations that `in_flight_extra` micro-batches more keep on one stage of a pipeline."""
    one = activation_bytes(
        setting.workload.shape,
        setting.workload.sequence_length,
        axes.micro_batch,
        axes.tp,
        recompute=axes.recompute,
        element_bytes=4 if setting.workload.precision == "fp32" else 2,
    )
    return in_flight_extra * one / axes.pp


def check_fabric(setting: Setting) -> None:
    """Refuse a model whose training state exceeds the memory of all GPUs together.

    Raises:
        InfeasibleError: Names the two figures.
    """
    have = setting.gpus * setting.gpu_memory_bytes
    if setting.state_bytes > have:
        raise InfeasibleError(
            f"{setting.workload.name} does not fit {setting.fabric.name}: {setting.gpus} x "
            f"{show_bytes(setting.gpu_memory_bytes)} cannot hold the training state of "
            f"{setting.parameters / 1e9:.3g} billion parameters",
            f"memory: {_state_words(setting)} > {setting.gpus} x {show_bytes(setting.gpu_memory_bytes)} = "
            f"{show_bytes(have)} "
            "over all regions, before any activation",
        )


def bind_of(setting: Setting, strategy: Strategy, leanest: tuple[float, Axes] | None) -> str:
    """Why no layout of `strategy` can run; `leanest` is the one that needs the least memory, with what it
    needs.
    """
    scope = setting.gpus if over_all(strategy) else min(setting.region_gpus)
    have = scope * setting.gpu_memory_bytes
    if not over_all(strategy) and setting.state_bytes > have:
        region = min(setting.fabric.regions, key=lambda each: each.gpus)
        return (
            f"keeps a full replica in one region: {_state_words(setting)} > {scope} x "
            f"{show_bytes(setting.gpu_memory_bytes)} = {show_bytes(have)} in {region.name}"
        )
    if leanest is None:
        if strategy.kind == "pipeline" and len(set(setting.region_gpus)) > 1:
            counts = " and ".join(str(gpus) for gpus in setting.region_gpus)
            return f"stages of equal size need regions of equal size; these have {counts} GPUs"
        return (
            f"no layout divides {counted(setting.gpus, 'GPU')}, {counted(setting.workload.shape.layers, 'layer')}, "
            f"{counted(setting.workload.shape.heads, 'head')} and "
            f"{counted(setting.workload.sequences_per_step, 'sequence')}"
        )
    need, axes = leanest
    return (
        f"memory per GPU: the leanest layout (tp {axes.tp}, pp {axes.pp}, dp {axes.dp}, ZeRO {axes.zero}, "
        "micro-batch "
        f"{axes.micro_batch}, recompute {axes.recompute}) needs {show_bytes(need)} > "
        f"{show_bytes(setting.usable_memory_bytes)}"
    )


def _state_words(setting: Setting) -> str:
    state, each = setting.state_bytes, setting.state_bytes / setting.parameters
    return f"{show_bytes(state)} of weights, gradients and Adam state ({each:.0f} bytes a parameter)"
