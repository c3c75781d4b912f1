"""What one rank can do while its neighbours do the same: codec speed, and reduce-scatter with all-gather in the region.

    python -m isthmus.runtime.rank_speed --bytes 3500000      # with the rank environment set; one JSON object on stdout

All ranks of a region measure at once, since in training they work at once; a figure from an idle machine would flatter.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import get_args

import torch
import torch.distributed as dist

from isthmus.errors import InputError
from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer
from isthmus.runtime.environment import read_environment
from isthmus.runtime.world import open_world

__all__ = ["main", "measure_rank"]

ROUNDS = 9


def measure_rank(size_bytes: int, group: dist.ProcessGroup | None) -> dict[str, object]:
    """Speeds in bytes of fp32 per second, medians of rounds, for a buffer of `size_bytes`; `group` None for one rank."""
    ranks = 1 if group is None else dist.get_world_size(group)
    shard = torch.randn(max(1, size_bytes // 4 // ranks))
    return {
        "bytes": size_bytes,
        "codecs": {codec: _codec(codec, shard, group) for codec in get_args(CodecName) if codec != "none"},
        "copy_bytes_per_s": _copy(torch.randn(size_bytes // 4), group),
    }


def _codec(codec: CodecName, values: torch.Tensor, group: dist.ProcessGroup | None) -> dict[str, float]:
    data = torch.empty(encoded_bytes(codec, values.numel()), dtype=torch.uint8)
    residual, back = torch.zeros_like(values), torch.empty_like(values)
    return {
        "encode_bytes_per_s": values.nbytes / _seconds(lambda: encode(codec, values, data, 1, residual), group),
        "decode_bytes_per_s": values.nbytes / _seconds(lambda: decode(codec, data, back), group),
    }


def _copy(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    reducer = HierarchicalReducer(group, None)
    return tensor.nbytes / _seconds(lambda: reducer.all_reduce_(tensor, 0), group)


def _seconds(work: Callable[[], None], group: dist.ProcessGroup | None) -> float:
    """Median time of `work`, all ranks starting together; the first two rounds warm up."""
    times: list[float] = []
    for _ in range(ROUNDS + 2):
        if group is not None:
            dist.barrier(group)
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return median(times[2:])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.runtime.rank_speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=4_000_000, help="size of the whole buffer, fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        environment = read_environment()
        world = open_world(environment, flat=False, timeout_s=60.0)
        try:
            group = world.comm_group if environment.world_size > 1 else None
            print(json.dumps(measure_rank(options.bytes, group)), flush=True)
        finally:
            world.close()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
