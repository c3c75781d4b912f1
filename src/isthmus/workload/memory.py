"""Bytes: what a parameter costs in training, and what one GPU must hold."""

from dataclasses import dataclass
from typing import Literal

from isthmus.workload.axes import Axes, check_axes, micro_batches
from isthmus.workload.layout_memory import layout_memory, stage_parameters, weight_bytes_per_parameter
from isthmus.workload.layouts import Layouts
from isthmus.workload.model import ModelShape, Precision, Workload
from isthmus.workload.parameters import mtp_parameter_count, parameter_count

__all__ = [
    "GpuMemory",
    "StateBytes",
    "gpu_memory",
    "memory_bytes_per_gpu",
    "parameters_per_gpu",
    "state_bytes",
    "weight_bytes_per_parameter",
]

AttentionKernel = Literal["fused", "unfused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of everything that outlives a step. `master` is the fp32 copy that mixed precision needs."""

    weights: float
    gradients: float
    master: float
    optimizer: float

    @property
    def total(self) -> float:
        """All four together."""
        return self.weights + self.gradients + self.master + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Bytes on the fullest GPU, and which pipeline stage (`first` or `last`) that one belongs to."""

    state: StateBytes
    activations: float
    stage: Literal["first", "last"]

    @property
    def total(self) -> float:
        """State and activations."""
        return self.state.total + self.activations


def state_bytes(shape: ModelShape, precision: Precision = "bf16", gradient_bytes: int = 2) -> StateBytes:
    """State of the whole model under Adam, in bytes.

    Mixed precision: 2 (weight) + `gradient_bytes` + 4 (fp32 master) + 8 (two fp32 moments) a parameter: 16
    with bf16 gradients, 18 with fp32 ones. fp32: 4 + `gradient_bytes` + 0 + 8. Multi-token-prediction blocks
    count, since they are trained.

    Source: Rajbhandari et al., arXiv 1910.02054, section 3.1.
    """
    return _state(parameter_count(shape) + mtp_parameter_count(shape), precision, gradient_bytes)


def parameters_per_gpu(shape: ModelShape, axes: Axes, last: bool) -> tuple[float, float]:
    """(parameters outside routed experts, in routed experts) on a GPU of the first or the last stage.

    ZeRO is not applied. Norms and biases are divided by tp like the matrices (they are replicated: below
    0.1%).
    """
    shared, routed = stage_parameters(shape, Layouts.of([axes], 1), last)
    return float(shared[0]), float(routed[0])


def gpu_memory(workload: Workload, axes: Axes) -> GpuMemory:
    """Memory of the fullest GPU: the larger of a first-stage and a last-stage one.

    The first of p stages holds the activations of min(p, micro-batches) micro-batches at once (1F1B), the
    last of one, and with it the fp32 logits: 4 s b h (1 + V/h) / t bytes (arXiv 2205.05198, section 4.3).
    Leaves out communication buffers, the allocator, and the CUDA context (1-2 GB).

    Raises:
        InfeasibleError: The axes do not fit the workload.
    """
    check_axes(workload, axes)
    columns = layout_memory(workload, Layouts.of([axes], micro_batches(workload, axes)))
    return GpuMemory(
        state=StateBytes(
            weights=float(columns.weights[0]),
            gradients=float(columns.gradients[0]),
            master=float(columns.master[0]),
            optimizer=float(columns.optimizer[0]),
        ),
        activations=float(columns.activations[0]),
        stage="last" if columns.last[0] else "first",
    )


def memory_bytes_per_gpu(workload: Workload, axes: Axes) -> float:
    """Total of `gpu_memory`."""
    return gpu_memory(workload, axes).total


def _state(parameters: float, precision: Precision, gradient_bytes: int) -> StateBytes:
    return StateBytes(
        weights=weight_bytes_per_parameter(precision) * parameters,
        gradients=gradient_bytes * parameters,
        master=(0 if precision == "fp32" else 4) * parameters,
        optimizer=8 * parameters,
    )
