"""Run a plan: region worlds of torch.distributed, joined across regions by isthmus's own transport.

Training scripts need `join` only; `LocalSync`, `HookState` and `ddp_hook` are the parts for those who bring their own loop.
"""

from isthmus.runtime.cluster import Cluster, join
from isthmus.runtime.every_step.ddp import HookState, ddp_hook
from isthmus.runtime.local_steps.sync import LocalSync

__all__ = ["Cluster", "HookState", "LocalSync", "ddp_hook", "join"]
