"""Ranks on one host: each reads what it needs from the others' memory, in one copy and without a socket (process_vm_readv).

The kernel lets a process read another's memory where it might trace it: the same user, and no policy against it (Yama's
`ptrace_scope`, a container's seccomp profile). Whether it does is tried once, by all ranks together; where one cannot read
another, none does, and what they say goes over the group. Ranks in network namespaces of their own are taken for ranks on
different hosts, which is what somebody means by putting them there.
"""

import ctypes
import os
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

__all__ = ["Near"]


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _readv() -> Any:
    found = ctypes.CDLL(None, use_errno=True).process_vm_readv
    found.restype = ctypes.c_ssize_t
    found.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Vector), ctypes.c_ulong) * 2, ctypes.c_ulong)
    return found


class Near:
    """The processes of a region's ranks, which all can read each other."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._pids = pids

    @classmethod
    def find(cls, group: dist.ProcessGroup) -> "Near | None":
        """All ranks of `group` call this together, and all get one or none does."""
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        nonce = torch.tensor([secrets.randbits(62)])
        everyone = _gathered(group, [_host(), os.getpid(), nonce.data_ptr(), int(nonce)])
        near = cls(tuple(each[1] for each in everyone))
        readable = len({each[0] for each in everyone}) == 1
        for other in range(ranks) if readable else ():
            found = torch.zeros_like(nonce)
            if other != rank:
                try:
                    near.read(other, everyone[other][2], found)
                except RuntimeError:
                    readable = False
                readable = readable and int(found) == everyone[other][3]
        return near if min(each[0] for each in _gathered(group, [int(readable)])) else None

    def read(self, rank: int, address: int, into: torch.Tensor) -> None:
        """Fill `into` (contiguous, on the CPU) from `address` in the memory of `rank`, which leaves it as it is meanwhile.

        Raises:
            RuntimeError: That process is gone, or may not be read.
        """
        done, size = 0, into.nbytes
        while done < size:
            own, theirs = _Vector(into.data_ptr() + done, size - done), _Vector(address + done, size - done)
            count = _readv()(self._pids[rank], ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0)
            if count <= 0:
                why = os.strerror(ctypes.get_errno()) if count < 0 else "nothing came"
                raise RuntimeError(f"the memory of the region's rank {rank} (process {self._pids[rank]}) cannot be read: {why}")
            done += count


def _gathered(group: dist.ProcessGroup, numbers: list[int]) -> list[list[int]]:
    mine = torch.tensor(numbers)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return [[int(number) for number in each] for each in everyone]


def _host() -> int:
    """Which kernel and which namespaces this process lives in: a number that two processes share only on one host."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return secrets.randbits(62)
    spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid")]
    return xxhash.xxh3_64_intdigest(repr((boot.read_text(), *spaces)).encode()) >> 2
