"""Process groups: one gloo world per region, and for the flat strategy one group over all ranks of all regions.

A region world never spans regions, so a dead region cannot break another's groups. The communication thread has groups
of its own: two threads must not interleave their calls on one group.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from isthmus.errors import InputError
from isthmus.runtime.environment import RankEnvironment, split_address

COMM_PATIENCE = 10

__all__ = ["World", "gather_numbers", "open_world"]


@dataclass(slots=True)
class World:
    """The groups of this rank; all None for a rank that runs alone.

    Attributes:
        region_group: The region world, for the training thread.
        comm_group: The same ranks, for the communication thread.
        flat_group: All ranks of all regions, for the training thread; only where the flat strategy spans regions. Not
            registered with `torch.distributed`, so it takes the group's own methods (`allreduce`, `broadcast`).
        flat_comm_group: The same ranks, for the communication thread.
        owns_default: This module initialised `torch.distributed` and so must take it down.
    """

    region_group: dist.ProcessGroup | None = None
    comm_group: dist.ProcessGroup | None = None
    flat_group: dist.ProcessGroup | None = None
    flat_comm_group: dist.ProcessGroup | None = None
    owns_default: bool = False

    def close(self) -> None:
        """Take the groups down without waiting for anyone: a peer may be dead."""
        self.region_group = self.comm_group = self.flat_group = self.flat_comm_group = None
        if self.owns_default and dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self.owns_default = False


def open_world(environment: RankEnvironment, *, flat: bool, timeout_s: float) -> World:
    """Meet the other ranks of the region and, where `flat`, those of all regions.

    Raises:
        InputError: `flat` spans regions but members.json names no `flat_master`, or `torch.distributed` was
            initialised with another rank or size than the environment says.
    """
    if environment.master is None:
        return World()
    timeout = timedelta(seconds=timeout_s)
    world = World()
    if not dist.is_initialized():
        # env:// and not tcp://: under torchrun the agent already serves the store at MASTER_PORT.
        dist.init_process_group("gloo", rank=environment.rank, world_size=environment.world_size, timeout=timeout)
        world.owns_default = True
    elif (dist.get_rank(), dist.get_world_size()) != (environment.rank, environment.world_size):
        raise InputError(
            "torch.distributed",
            f"is already initialised as rank {dist.get_rank()} of {dist.get_world_size()}, "
            f"the environment says {environment.rank} of {environment.world_size}",
            "let isthmus.join() initialise it",
        )
    world.region_group = dist.group.WORLD
    # Longer: a rank waits here for a neighbour whose rail waits for a slower region, and a neighbour that died is found by
    # its reset connections at once.
    group = dist.new_group(backend="gloo", timeout=COMM_PATIENCE * timeout)
    assert isinstance(group, dist.ProcessGroup), group  # an int only for ranks outside the group
    world.comm_group = group
    if flat and environment.regions > 1:
        world.flat_group, world.flat_comm_group = _flat_groups(environment, timeout)
    return world


def _flat_groups(environment: RankEnvironment, timeout: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    assert environment.members is not None
    if environment.members.flat_master is None:
        raise InputError(
            "ISTHMUS_MEMBERS",
            "has no 'flat_master', which the flat strategy needs",
            'add "flat_master": "host:port" of the first rank of the first region',
        )
    host, port = split_address(environment.members.flat_master)
    store = c10d.TCPStore(
        host,
        port,
        world_size=environment.global_size,
        is_master=environment.global_rank == 0,
        timeout=timeout,
        wait_for_workers=False,
    )
    # The constructor honours GLOO_SOCKET_IFNAME, as init_process_group does.
    rank, size = environment.global_rank, environment.global_size
    names = ("isthmus-gradients", "isthmus-control")
    gradients, control = (c10d.ProcessGroupGloo(c10d.PrefixStore(name, store), rank, size, timeout) for name in names)
    return cast(dist.ProcessGroup, gradients), cast(dist.ProcessGroup, control)


def gather_numbers(group: dist.ProcessGroup, number: int, size: int) -> list[int]:
    """One unsigned 64-bit number of every rank of `group`, in rank order."""
    mine = torch.tensor([number - (1 << 63)], dtype=torch.int64)  # torch has no unsigned 64-bit collectives
    everyone = [torch.empty_like(mine) for _ in range(size)]
    group.allgather([everyone], [mine]).wait()
    return [int(entry.item()) + (1 << 63) for entry in everyone]
