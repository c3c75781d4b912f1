"""How fast this machine encodes, decodes and copies: what a prediction needs to know about the ranks' processors."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from isthmus.plan import CodecName
from isthmus.runtime.codecs import decode, encode, encoded_bytes

__all__ = ["CodecSpeed", "measure_codec", "measure_copy", "measure_region_copy"]

REPEATS = 7


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """Bytes of float32 per second, one thread. Encoding includes error feedback, where the codec loses anything."""

    encode_bytes_per_s: float
    decode_bytes_per_s: float


def measure_codec(codec: CodecName, elements: int = 1 << 21) -> CodecSpeed:
    """Time `codec` on one thread over `elements` normal values; medians. Takes a fraction of a second."""
    values, out = torch.randn(elements), torch.empty(elements)
    data = torch.empty(encoded_bytes(codec, elements), dtype=torch.uint8)
    residual = None if codec == "none" else torch.zeros(elements)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        encoding_s = _median_s(lambda: encode(codec, values, data, 1, residual))
        decoding_s = _median_s(lambda: decode(codec, data, out))
    finally:
        torch.set_num_threads(threads)
    return CodecSpeed(values.nbytes / encoding_s, values.nbytes / decoding_s)


def measure_copy(size_bytes: int = 1 << 24) -> float:
    """Bytes/s of copying `size_bytes` from one buffer to another on one thread."""
    source, target = torch.zeros(size_bytes, dtype=torch.uint8), torch.zeros(size_bytes, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return size_bytes / _median_s(lambda: target.copy_(source))
    finally:
        torch.set_num_threads(threads)


def measure_region_copy(group: dist.ProcessGroup, size_bytes: int = 1 << 22) -> float:
    """Bytes/s at which a rank sends to its region while all ranks of `group` do; all of them must call this.

    Measured on the all-to-all that the hierarchical all-reduce uses: each of n ranks sends (n - 1) / n of `size_bytes`.
    """
    ranks = dist.get_world_size(group)
    source = torch.zeros(size_bytes // 4 // ranks * ranks)
    target = torch.empty_like(source)

    def swap() -> None:
        dist.all_to_all_single(target, source, group=group)

    seconds = _median_s(swap)
    return source.nbytes * (ranks - 1) / ranks / seconds


def _median_s(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)
