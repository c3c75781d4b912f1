"""What every candidate is weighed against: the fabric and workload, boiled down once."""

from dataclasses import dataclass, replace

from isthmus.cost.codecs import Matrices
from isthmus.cost.collectives_constants import Constants, default_constants
from isthmus.cost.collectives_group import Group, sites_group
from isthmus.cost.efficiency import MEMORY_RESERVE, PCIE_EFFICIENCY
from isthmus.cost.machine import Machine
from isthmus.cost.paths import Wan, wan_pipe
from isthmus.cost.step_rates import machine_of, shipped_rates
from isthmus.errors import InfeasibleError
from isthmus.fabric import Fabric, pcie_rate_bytes_per_s
from isthmus.workload import Workload, mtp_parameter_count, parameter_count, state_bytes
from isthmus.workload.matrices import weight_matrices

__all__ = ["STACK", "Setting", "make_setting"]

STACK = "megatron-2023"
"""Training software inside a region, where the workload states no MFU (`cost/step_rates.yaml`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One question to the planner.

    Attributes:
        gpus: Of all regions.
        region_gpus: Of each region, in the fabric's order.
        node_gpus: GPUs that share the quickest wiring; bounds tensor parallelism.
        gpu_memory_bytes: Of the smallest GPU.
        gpu_memory_bytes_per_s: Of the slowest memory; codecs pass over it.
        host_bytes_per_s: From one GPU to its host, of the slowest slot.
        dense_flop_per_s: Of the slowest GPU, in the workload's precision.
        mfu: Model FLOP utilisation inside one region where the workload states it, in place of the step model.
        machine: One region as the step model sees it: the slowest GPU, the least memory.
        parameters: Trained parameters.
        kept_bytes: What a checkpoint of the whole model holds: weights, master weights and optimizer.
        matrices: Those that are matrices, by shape: what low-rank codecs see.
        group: One region's GPUs and the links between them.
        wan: Between regions; None for one region.
        constants: What collectives on these links reach: of a calibration, else those that isthmus ships.
        only_runnable: Only what `isthmus run` trains whole is weighed (`isthmus.planner.ways.runs`).
    """

    fabric: Fabric
    workload: Workload
    gpus: int
    region_gpus: tuple[int, ...]
    node_gpus: int
    gpu_memory_bytes: float
    gpu_memory_bytes_per_s: float
    host_bytes_per_s: float
    dense_flop_per_s: float
    mfu: float | None
    machine: Machine
    parameters: int
    kept_bytes: float
    matrices: tuple[Matrices, ...]
    group: Group
    wan: Wan | None
    constants: Constants
    only_runnable: bool = False

    @property
    def regions(self) -> int:
        """Number of regions."""
        return len(self.region_gpus)

    @property
    def calibrated(self) -> bool:
        """Whether the fabric's own measurements moved the constants."""
        return self.constants is not default_constants()

    @property
    def usable_memory_bytes(self) -> float:
        """What one GPU has for state and activations."""
        return self.gpu_memory_bytes - MEMORY_RESERVE.value

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer of the whole model, once."""
        return state_bytes(self.workload.shape, self.workload.precision, self.workload.gradient_bytes).total


def make_setting(
    fabric: Fabric, workload: Workload, constants: Constants | None = None, *, only_runnable: bool = False
) -> Setting:
    """Boil down `fabric` and `workload`.

    A synchronous step is paced by its slowest GPU, so mixed GPUs count with the least memory and the least
    speed.

    Raises:
        InfeasibleError: A GPU has no peak in the workload's precision.
    """
    groups = [group for region in fabric.regions for group in region.groups]
    for group in groups:
        if workload.precision not in group.gpu.dense_flop_per_s:
            known = ", ".join(group.gpu.dense_flop_per_s) or "none"
            raise InfeasibleError(
                f"{group.gpu.kind} has no {workload.precision} rate, which {workload.name} trains in",
                f"precision: {group.gpu.kind} has {known}",
            )
    slowest = min((group.gpu for group in groups), key=lambda each: each.dense_flop_per_s[workload.precision])
    memory_bytes = min(group.gpu.memory_bytes for group in groups)
    state = state_bytes(workload.shape, workload.precision, workload.gradient_bytes)
    known = constants or default_constants()
    site = sites_group(fabric, known)
    memory_rate = min(group.gpu.memory_bandwidth_bytes_per_s for group in groups)
    return Setting(
        fabric=fabric,
        workload=workload,
        gpus=fabric.gpus,
        region_gpus=tuple(region.gpus for region in fabric.regions),
        node_gpus=min(min(group.gpus, group.in_node.domain) for group in groups),
        gpu_memory_bytes=memory_bytes,
        gpu_memory_bytes_per_s=memory_rate,
        host_bytes_per_s=min(pcie_rate_bytes_per_s(group.gpu.pcie) for group in groups) * PCIE_EFFICIENCY.value,
        dense_flop_per_s=slowest.dense_flop_per_s[workload.precision],
        mfu=workload.mfu,
        machine=replace(
            machine_of(slowest, workload.precision, STACK, (site, known), shipped_rates()),
            memory_bytes=memory_bytes - MEMORY_RESERVE.value,
            memory_rate_bytes_per_s=memory_rate,
            node_gpus=min(min(group.gpus, group.in_node.domain) for group in groups),
        ),
        parameters=parameter_count(workload.shape) + mtp_parameter_count(workload.shape),
        kept_bytes=state.total - state.gradients,
        matrices=tuple(Matrices(rows=rows, columns=width, count=count) for rows, width, count in weight_matrices(workload.shape)),
        group=site,
        wan=wan_pipe(fabric),
        constants=known,
        only_runnable=only_runnable,
    )
