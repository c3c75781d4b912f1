"""B3: encode + decode of each codec on one core, as a share of a copy's speed, in one run: copy time / (encode + decode).

A copy moves 8 bytes an element; encode + decode move at least 8 + 2 x (coded bytes), so that the limit on a machine bound by
memory is 8 / (8 + 8 x ratio): 0.88 for int4. The copy and the codec alternate; medians of the CPU time of one thread, which is
wall time where the core is ours alone; without error feedback (the column EF is the encoding with it). 64 MiB of fp32 do not
fit any cache; 4 MiB are a segment as the reducer cuts them.
    python benchmarks/codecs.py        exit 1 where a floor is missed at 64 MiB
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes, per_vector, warm

FLOORS = {"int4": 0.20, "int8": 0.25, "topk": 0.15, "sign": 0.30}
ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def measure(codec: str, elements: int) -> dict[str, float]:
    values, back, owed = torch.randn(elements), torch.empty(elements), torch.zeros(elements)
    data = torch.empty(encoded_bytes(codec, elements), dtype=torch.uint8)
    works = {
        "copy": lambda: back.copy_(values),
        "encode": lambda: encode(codec, values, data, 1),
        "decode": lambda: decode(codec, data, back),
        "feedback": lambda: encode(codec, values, data, 1, owed),
    }
    rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(ROUNDS + 1)][1:]
    found = {name: median(one[name] for one in rounds) for name in works}
    return {**found, "ratio": data.numel() / values.nbytes}


def main() -> None:
    torch.set_num_threads(1)
    failed = []
    print(f"{'codec':14} {'MiB':>4} {'bytes':>7} {'copy':>6} {'encode':>6} {'decode':>6} {'EF':>6}  ns/element  share  floor")
    for codec in per_vector():
        warm(codec)
        for mebibytes in (4, 64):
            elements = mebibytes * 2**18
            one = measure(codec, elements)
            share, floor = one["copy"] / (one["encode"] + one["decode"]), FLOORS.get(codec)
            each = " ".join(f"{one[name] / elements * 1e9:6.2f}" for name in ("copy", "encode", "decode", "feedback"))
            print(f"{codec:14} {mebibytes:4} {one['ratio']:7.4f} {each}             {share:5.2f}  {floor or '-'}", flush=True)
            if floor and mebibytes == 64 and share < floor:
                failed.append(f"{codec}: {share:.2f} of a copy, goal {floor}")
    for line in failed:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
