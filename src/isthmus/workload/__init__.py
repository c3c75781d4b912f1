"""What is trained: a model's shape and one step's batch, and the parameters, operations and bytes they mean."""

from isthmus.workload.document import WorkloadDocument
from isthmus.workload.flops import AttentionCount, Recompute, flop_per_token, forward_flop_per_token
from isthmus.workload.huggingface import read_config
from isthmus.workload.model import ModelShape, Workload
from isthmus.workload.parameters import active_parameter_count, mtp_parameter_count, parameter_count
from isthmus.workload.read import preset_names, read_workload

__all__ = [
    "AttentionCount", "ModelShape", "Recompute", "Workload", "WorkloadDocument", "active_parameter_count",
    "flop_per_token", "forward_flop_per_token", "mtp_parameter_count", "parameter_count", "preset_names",
    "read_config", "read_workload",
]
