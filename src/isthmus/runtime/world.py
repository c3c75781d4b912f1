"""Process groups: one world per region (gloo, and NCCL where there are GPUs); for the flat strategy one over all regions.

A region world never spans regions, so a dead region cannot break another's groups. The communication thread has groups
of its own: two threads must not interleave their calls on one group.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from isthmus.errors import InputError
from isthmus.plan import RegionGroup
from isthmus.runtime.axis import open_axis
from isthmus.runtime.device import backends
from isthmus.runtime.environment import RankEnvironment, split_address
from isthmus.runtime.wan.streams import open_listener

COMM_PATIENCE = 10

__all__ = ["World", "gather_numbers", "open_store", "open_world"]


@dataclass(slots=True)
class World:
    """The groups of this rank; all None for a rank that runs alone.

    Attributes:
        region_group: The region world, for the training thread.
        comm_group: The same ranks, for the communication thread.
        flat_group: All ranks of all regions, for the training thread; only where the flat strategy spans regions. Not
            registered with `torch.distributed`, so it takes the group's own methods (`allreduce`, `broadcast`).
        flat_comm_group: The same ranks, for the communication thread.
        axis_group: Rank i of every region, for the communication thread, where the plan has a `region_group`; likewise not
            registered.
        owns_default: This module initialised `torch.distributed` and so must take it down.
    """

    region_group: dist.ProcessGroup | None = None
    comm_group: dist.ProcessGroup | None = None
    flat_group: dist.ProcessGroup | None = None
    flat_comm_group: dist.ProcessGroup | None = None
    axis_group: dist.ProcessGroup | None = None
    owns_default: bool = False

    def close(self) -> None:
        """Take the groups down without waiting for anyone: a peer may be dead."""
        self.region_group = self.comm_group = self.flat_group = self.flat_comm_group = self.axis_group = None
        if self.owns_default and dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self.owns_default = False


def open_world(environment: RankEnvironment, *, flat: bool, timeout_s: float, axis: RegionGroup | None = None) -> World:
    """Meet the other ranks of the region and, where `flat` or with an `axis` over regions, those of all regions.

    The stores that we serve listen on MASTER_ADDR and on `flat_master` only, see `open_store`. Under torchrun the region's
    store is its agent's, which listens on every interface; that is not ours to change.

    Raises:
        InputError: `flat` spans regions but members.json names no `flat_master`, or `torch.distributed` was
            initialised with another rank or size than the environment says.
    """
    if environment.master is None:
        return World()
    timeout = timedelta(seconds=timeout_s)
    world = World()
    if not dist.is_initialized():
        rank, size = environment.rank, environment.world_size
        serves = rank == 0 and not environment.agent_store
        store = open_store(environment.master, size, serves=serves, timeout=timeout)
        dist.init_process_group(backends(), store=store, rank=rank, world_size=size, timeout=timeout)
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
    # A script that has initialised torch.distributed by itself has chosen what its region's ranks talk through.
    group = dist.new_group(backend=backends() if world.owns_default else None, timeout=COMM_PATIENCE * timeout)
    assert isinstance(group, dist.ProcessGroup), group  # an int only for ranks outside the group
    world.comm_group = group
    if flat and environment.regions > 1:
        store = _store_of_all(environment, timeout, "the flat strategy")
        world.flat_group = _group_of_all(environment, store, "isthmus-gradients", timeout)
        world.flat_comm_group = _group_of_all(environment, store, "isthmus-control", timeout)
    elif axis is not None and environment.regions > 1:
        store = _store_of_all(environment, timeout, "a region_group")
        world.axis_group = open_axis(environment, axis, store, timeout)
        world.flat_comm_group = _group_of_all(environment, store, "isthmus-control", timeout)
    return world


def _store_of_all(environment: RankEnvironment, timeout: timedelta, who: str) -> c10d.TCPStore:
    assert environment.members is not None
    if environment.members.flat_master is None:
        raise InputError(
            "ISTHMUS_MEMBERS",
            f"has no 'flat_master', which {who} needs",
            'add "flat_master": "host:port" of the first rank of the first region',
        )
    address = split_address(environment.members.flat_master)
    return open_store(address, environment.global_size, serves=environment.global_rank == 0, timeout=timeout)


def _group_of_all(environment: RankEnvironment, store: c10d.TCPStore, name: str, timeout: timedelta) -> dist.ProcessGroup:
    # The constructor honours GLOO_SOCKET_IFNAME, as init_process_group does.
    rank, size = environment.global_rank, environment.global_size
    return cast(dist.ProcessGroup, c10d.ProcessGroupGloo(c10d.PrefixStore(name, store), rank, size, timeout))


def open_store(address: tuple[str, int], size: int, *, serves: bool, timeout: timedelta) -> c10d.TCPStore:
    """The key-value store through which `size` ranks find each other; one of them serves it, on `address` only.

    Torch by itself would listen on every interface. Where the address is none of this host's (it is translated on the
    way) there is no other choice; then stderr says so, and a firewall has to keep strangers out.

    Raises:
        OSError: The port is taken.
    """

    def store(listen_fd: int | None) -> c10d.TCPStore:
        host, port = address
        return c10d.TCPStore(
            host, port, size, serves, timeout=timeout, wait_for_workers=False, master_listen_fd=listen_fd
        )

    if not serves:
        return _patiently(store, timeout)
    try:
        listen_fd = open_listener(*address, backlog=max(128, size)).detach()
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
            raise
        return _on_every_interface(store, address, error)
    try:
        return store(listen_fd)
    except (RuntimeError, TypeError, ValueError) as error:
        with suppress(OSError):
            os.close(listen_fd)
        return _on_every_interface(store, address, error)


def _patiently(store: Callable[[int | None], c10d.TCPStore], timeout: timedelta) -> c10d.TCPStore:
    """A client's store: torch waits for a port that refuses, but gives up on one that resets while its server starts."""
    deadline_s = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            return store(None)
        except dist.DistNetworkError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def _on_every_interface(
    store: Callable[[int | None], c10d.TCPStore], address: tuple[str, int], error: Exception
) -> c10d.TCPStore:
    host, port = address
    print(
        f"isthmus: the store of {host}:{port} cannot listen there alone ({error}): it listens on EVERY interface, port {port}",
        file=sys.stderr,
        flush=True,
    )
    return store(None)


def gather_numbers(group: dist.ProcessGroup, number: int, size: int) -> list[int]:
    """One unsigned 64-bit number of every rank of `group`, in rank order."""
    mine = torch.tensor([number - (1 << 63)], dtype=torch.int64)  # torch has no unsigned 64-bit collectives
    everyone = [torch.empty_like(mine) for _ in range(size)]
    group.allgather([everyone], [mine]).wait()
    return [int(entry.item()) + (1 << 63) for entry in everyone]
