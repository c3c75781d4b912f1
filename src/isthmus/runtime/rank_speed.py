"""What one rank can do while its neighbours do the same: codec speed, reduce-scatter with all-gather in the region, and
the work of exchanging gradients with the other regions.

    python -m isthmus.runtime.rank_speed --bytes 3500000      # with the rank environment set; one JSON object on stdout

All ranks of a region measure at once, since in training they work at once; a figure from an idle machine would flatter.
The exchange is measured in seconds of CPU and not of time: how long the wire takes is for the prediction to say.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from isthmus.errors import InputError
from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes, per_vector
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import RankEnvironment, read_environment
from isthmus.runtime.wan.rail import Rail, RailOptions
from isthmus.runtime.world import World, open_world

__all__ = ["ExchangeAsk", "main", "measure_exchanges", "measure_rank"]

ROUNDS = 9
# An exchange over a slow link may take a second: enough rounds for a steady mean, few enough to be worth the wait.
EXCHANGE_ROUNDS = 6
Sync = Callable[[Sequence[torch.Tensor]], None]
_MATRIX = 256
"""Side of the square products that stand for training beside an exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeAsk:
    """What to exchange.

    Attributes:
        buckets: fp32 bytes of each gradient bucket.
        codecs: One measurement each.
        rate_bytes_per_s: The rank's share of the link's rate, to which its streams are paced; None: unlimited.
        compute_s: CPU seconds that the rank computes beside each exchange, as in training.
        flat: Measure all-reduces by gloo's rings over all ranks of all regions too.
    """

    buckets: tuple[int, ...]
    codecs: tuple[CodecName, ...]
    rate_bytes_per_s: float | None
    compute_s: float
    flat: bool = False


def measure_rank(size_bytes: int, group: dist.ProcessGroup | None) -> dict[str, object]:
    """Speeds in bytes of fp32 per second, medians of rounds, for a buffer of `size_bytes`; `group` None for one rank."""
    ranks = 1 if group is None else dist.get_world_size(group)
    shard = torch.randn(max(1, size_bytes // 4 // ranks))
    return {
        "bytes": size_bytes,
        "codecs": {codec: _codec(codec, shard, group) for codec in per_vector() if codec != "none"},
        "copy_bytes_per_s": _copy(torch.randn(size_bytes // 4), group),
    }


def measure_exchanges(environment: RankEnvironment, world: World, ask: ExchangeAsk) -> dict[str, object]:
    """By codec: CPU seconds of one exchange of all buckets, codec included, beyond what the same buckets cost inside the region;
    and under `flat` those of gloo's rings.

    Beside them, on the machine's monotonic clock, when the rounds began and ended, for whoever counts the link's own work.
    """
    assert environment.members is not None, "an exchange needs other regions"
    options = RailOptions(rate_bytes_per_s=ask.rate_bytes_per_s, insecure=environment.insecure)
    group = world.comm_group if environment.world_size > 1 else None
    courier = Courier()
    place = environment.members, environment.region_index, environment.rank
    with Rail.open(*place, 1, 60.0, options) as rail:
        found: dict[str, object] = {}

        def measure(name: str, across: Sync, inside: Sync) -> None:
            alone, (beside, (began_s, ended_s)) = _sync_work(courier, inside, ask)[0], _sync_work(courier, across, ask)
            cpu_s = max(0.0, beside.cpu_s - alone.cpu_s) + beside.lost_s(alone)
            found[name] = {"cpu_s": cpu_s, "began_s": began_s, "ended_s": ended_s, "rounds": EXCHANGE_ROUNDS}

        for codec in ask.codecs:
            reducer = HierarchicalReducer(group, rail, codec)
            measure(codec, partial(_exchange, reducer, True), partial(_exchange, reducer, False))
        if ask.flat:
            assert world.flat_comm_group is not None, "no group over all ranks"
            measure("flat", partial(_rings, world.flat_comm_group), partial(_exchange, HierarchicalReducer(group, rail), False))
        courier.close()
    return found


def _exchange(reducer: HierarchicalReducer, crossing: bool, buckets: Sequence[torch.Tensor]) -> None:
    """All out, then all in: the same order as a training step."""
    reducer.between_regions = crossing
    for under_way in [reducer.begin(bucket, tag) for tag, bucket in enumerate(buckets)]:
        reducer.finish(under_way)


def _rings(group: dist.ProcessGroup, buckets: Sequence[torch.Tensor]) -> None:
    for work in [group.allreduce([bucket]) for bucket in buckets]:
        work.wait()


@dataclass(frozen=True, slots=True)
class _Work:
    """CPU seconds a round of everything but the computing thread; and of that thread, with the products it made in them.

    Packets that arrive interrupt whatever runs: their work is done in the computing thread's time. It shows in how few products
    that thread gets done, as do the caches that it shares with an exchange.
    """

    cpu_s: float
    compute_s: float
    products: float

    def lost_s(self, alone: "_Work") -> float:
        """Seconds that the computing thread lost a round, by its speed in `alone`."""
        return self.compute_s * max(0.0, 1 - (self.products / self.compute_s) / (alone.products / alone.compute_s))


def _sync_work(courier: Courier, sync: Sync, ask: ExchangeAsk) -> tuple[_Work, tuple[float, float]]:
    """Means over rounds, and (begin, end) of the rounds that count."""
    buckets = [torch.randn(max(1, size // 4)) for size in ask.buckets]
    _beside_compute(courier, sync, buckets, ask.compute_s)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time() - time.thread_time()
    made = [_beside_compute(courier, sync, buckets, ask.compute_s) for _ in range(EXCHANGE_ROUNDS)]
    cpu_s = time.process_time() - time.thread_time() - begun_cpu_s
    products, compute_s = (sum(each) / EXCHANGE_ROUNDS for each in zip(*made, strict=True))
    return _Work(cpu_s / EXCHANGE_ROUNDS, compute_s, products), (begun_s, time.monotonic())


def _beside_compute(
    courier: Courier, sync: Sync, buckets: Sequence[torch.Tensor], compute_s: float
) -> tuple[int, float]:
    """One `sync` on the communication thread, while this thread computes: products made, and its seconds for them."""
    done = courier.submit(lambda: sync(buckets))
    matrix = torch.randn(_MATRIX, _MATRIX)
    begun_s, products = time.thread_time(), 0
    while (spent_s := time.thread_time() - begun_s) < compute_s or not products:
        torch.mm(matrix, matrix)
        products += 1
    done.result()
    return products, spent_s


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
    parser.add_argument("--exchange", help="JSON of buckets, codecs, rate_bytes_per_s, compute_s: measure exchanges too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        environment = read_environment()
        ask = json.loads(options.exchange) if options.exchange else None
        world = open_world(environment, flat=bool(ask and ask["flat"]), timeout_s=60.0)
        try:
            found = measure_rank(options.bytes, world.comm_group if environment.world_size > 1 else None)
            if ask:
                asked = ExchangeAsk(**ask | {"buckets": tuple(ask["buckets"]), "codecs": tuple(ask["codecs"])})
                found["exchanges"] = measure_exchanges(environment, world, asked)
            print(json.dumps(found), flush=True)
        finally:
            world.close()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
