"""What is trained: a model's shape and one step's batch; the parameters, operations and bytes they mean."""

from isthmus.workload.activations import AttentionKernel, activation_bytes
from isthmus.workload.axes import Axes, check_axes, micro_batches
from isthmus.workload.document import WorkloadDocument
from isthmus.workload.flops import AttentionCount, Recompute, flop_per_token, forward_flop_per_token
from isthmus.workload.huggingface import read_config
from isthmus.workload.layout_memory import LayoutMemory, layout_memory
from isthmus.workload.layouts import Layouts
from isthmus.workload.memory import (
    GpuMemory,
    StateBytes,
    gpu_memory,
    memory_bytes_per_gpu,
    parameters_per_gpu,
    state_bytes,
)
from isthmus.workload.model import ModelShape, Workload
from isthmus.workload.parameters import active_parameter_count, mtp_parameter_count, parameter_count
from isthmus.workload.read import preset_names, read_workload
from isthmus.workload.traffic import Traffic, sent_bytes, traffic

__all__ = [
    "AttentionCount",
    "AttentionKernel",
    "Axes",
    "GpuMemory",
    "LayoutMemory",
    "Layouts",
    "ModelShape",
    "Recompute",
    "StateBytes",
    "Traffic",
    "Workload",
    "WorkloadDocument",
    "activation_bytes",
    "active_parameter_count",
    "check_axes",
    "flop_per_token",
    "forward_flop_per_token",
    "gpu_memory",
    "layout_memory",
    "memory_bytes_per_gpu",
    "micro_batches",
    "mtp_parameter_count",
    "parameter_count",
    "parameters_per_gpu",
    "preset_names",
    "read_config",
    "read_workload",
    "sent_bytes",
    "state_bytes",
    "traffic",
]
