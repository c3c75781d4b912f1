"""Run a plan: region worlds of torch.distributed, joined across regions by isthmus's own transport.

Training scripts need `join` only; `LocalSync`, `HookState`, `ddp_hook`, `attach_fsdp`, `accumulating`, `clip_grad_norm_` are the
parts for those who bring their own loop.
The names load torch on first use: the coordinator and the launchers in this room need none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.runtime.cluster import Cluster, join
    from isthmus.runtime.every_step.clipping import accumulating, clip_grad_norm_
    from isthmus.runtime.every_step.ddp import HookState, ddp_hook
    from isthmus.runtime.every_step.fsdp import attach_fsdp
    from isthmus.runtime.local_steps.sync import LocalSync

_HOMES = {
    "Cluster": "isthmus.runtime.cluster",
    "HookState": "isthmus.runtime.every_step.ddp",
    "LocalSync": "isthmus.runtime.local_steps.sync",
    "accumulating": "isthmus.runtime.every_step.clipping",
    "attach_fsdp": "isthmus.runtime.every_step.fsdp",
    "clip_grad_norm_": "isthmus.runtime.every_step.clipping",
    "ddp_hook": "isthmus.runtime.every_step.ddp",
    "join": "isthmus.runtime.cluster",
}

__all__ = [
    "Cluster",
    "HookState",
    "LocalSync",
    "accumulating",
    "attach_fsdp",
    "clip_grad_norm_",
    "ddp_hook",
    "join",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'isthmus.runtime' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
