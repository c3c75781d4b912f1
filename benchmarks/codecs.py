"""B3: encode + decode of each codec on one core, as a share of a copy's speed, in one run: copy time / (encode + decode).

A copy moves 8 bytes an element; encode + decode move at least 8 + 2 x (coded bytes), so that the limit on a machine bound by
memory is 8 / (8 + 8 x ratio): 0.88 for int4. The copy and the codec alternate; medians of wall time, without error feedback
(the column EF is the encoding with it); `cpu` is the same share by the CPU time of the thread: where the two differ, the core
was not ours alone. 64 MiB of fp32 do not fit any cache; 4 MiB are a segment as the reducer cuts them.
    python benchmarks/codecs.py [names]        exit 1 where a floor is missed at either size
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes, per_vector, warm

FLOORS = {"int4": 0.20, "int8": 0.25, "topk": 0.15, "sign": 0.30}
ROUNDS = 15


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time."""
    cpu, begun = time.thread_time(), time.perf_counter()
    work()
    return time.perf_counter() - begun, time.thread_time() - cpu


def measure(codec: str, elements: int) -> dict[str, tuple[float, float]]:
    values, back, owed = torch.randn(elements), torch.empty(elements), torch.zeros(elements)
    data = torch.empty(encoded_bytes(codec, elements), dtype=torch.uint8)
    works = {
        "copy": lambda: back.copy_(values),
        "encode": lambda: encode(codec, values, data, 1),
        "decode": lambda: decode(codec, data, back),
        "feedback": lambda: encode(codec, values, data, 1, owed),
    }
    rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(ROUNDS + 1)][1:]
    return {name: (median(one[name][0] for one in rounds), median(one[name][1] for one in rounds)) for name in works}


def main() -> None:
    torch.set_num_threads(1)
    failed = []
    print(f"{'codec':14} {'MiB':>4} {'bytes':>7} {'copy':>6} {'encode':>6} {'decode':>6} {'EF':>6}  ns/element share   cpu floor")
    for codec in sys.argv[1:] or per_vector():
        warm(codec)
        for mebibytes in (4, 64):
            elements = mebibytes * 2**18
            one, floor = measure(codec, elements), FLOORS.get(codec)
            share, cpu = (one["copy"][clock] / (one["encode"][clock] + one["decode"][clock]) for clock in (0, 1))
            each = " ".join(f"{one[name][0] / elements * 1e9:6.2f}" for name in ("copy", "encode", "decode", "feedback"))
            ratio = encoded_bytes(codec, elements) / (4 * elements)
            print(f"{codec:14} {mebibytes:4} {ratio:7.4f} {each}             {share:5.2f} {cpu:5.2f} {floor or '-'}", flush=True)
            if floor and share < floor:
                failed.append(f"{codec} at {mebibytes} MiB: {share:.2f} of a copy, goal {floor}")
    for line in failed:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
