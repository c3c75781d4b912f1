"""The regions as one axis of torch.distributed: rank i of every region in a process group of its own, with its own options.

The two axes, ("region", "node"), are two groups: the region world and this one. (One DeviceMesh over both would need a default
group over all regions, which a lost region breaks for good; the region world stays whole.)
"""

from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from isthmus.errors import InputError
from isthmus.plan import RegionGroup
from isthmus.runtime.environment import RankEnvironment

__all__ = ["nccl_options", "open_axis", "require_nccl"]

# Of the plan, and of ncclConfig_t as torch names it.
_CONFIG = {
    "net_name": "net_name",
    "traffic_class": "traffic_class",
    "min_channels": "min_ctas",
    "max_channels": "max_ctas",
}


def open_axis(environment: RankEnvironment, axis: RegionGroup, store: c10d.Store, timeout: timedelta) -> dist.ProcessGroup:
    """This rank's group over the regions; not registered with `torch.distributed`, so it takes the group's own methods.

    Raises:
        InputError: This torch has no such backend, or its NCCL no such option.
    """
    mine = c10d.PrefixStore(f"isthmus-axis-{environment.rank}", store)
    rank, size = environment.region_index, environment.regions
    if axis.backend == "gloo":
        return cast(dist.ProcessGroup, c10d.ProcessGroupGloo(mine, rank, size, timeout))
    nccl = require_nccl()
    return cast(dist.ProcessGroup, nccl(mine, rank, size, nccl_options(axis, nccl, timeout)))


def require_nccl() -> Any:
    """torch's ProcessGroupNCCL.

    Raises:
        InputError: This torch was built without NCCL.
    """
    found = getattr(c10d, "ProcessGroupNCCL", None)
    if found is None:
        raise InputError(
            "plan",
            f"strategy.region_group.backend: 'nccl', but torch {torch.__version__} was built without NCCL",
            "install a CUDA build of torch on every rank, or write backend: gloo",
        )
    return found


def nccl_options(axis: RegionGroup, nccl: Any, timeout: timedelta) -> Any:
    """Options of one group of class `nccl` (torch's ProcessGroupNCCL), with what `axis` says and NCCL's defaults elsewhere.

    Raises:
        InputError: The NCCL that torch was built with has no such option.
    """
    options = nccl.Options()
    options._timeout = timeout
    for name, native in _CONFIG.items():
        value = getattr(axis, name)
        if value is None:
            continue
        if not hasattr(options.config, native):
            raise InputError(
                "plan",
                f"strategy.region_group.{name}: the NCCL of torch {torch.__version__} has no {native}",
                "leave it out, or use a torch with a newer NCCL",
            )
        setattr(options.config, native, value)
    return options
