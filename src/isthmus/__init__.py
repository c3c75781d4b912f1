"""isthmus: train one model on GPU clusters that stand in several regions.

The top package holds the version and, on first use, the names a training script needs
(`join`, `LocalSync`, `ddp_hook`, `attach_fsdp` ...); importing it imports no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_RUNTIME_NAMES = ("join", "LocalSync", "ddp_hook", "attach_fsdp", "accumulating", "clip_grad_norm_")

__all__ = ["LocalSync", "__version__", "accumulating", "attach_fsdp", "clip_grad_norm_", "ddp_hook", "join"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load the runtime's names on first use (PEP 562), so that `import isthmus` needs no torch."""
    if name in _RUNTIME_NAMES:
        return getattr(import_module("isthmus.runtime"), name)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")
