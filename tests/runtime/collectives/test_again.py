"""All-reduces of regions with unequal numbers of ranks, and repeated ones: real ranks on loopback, rails by generation."""

import json
import os
import subprocess
import sys

import pytest

from isthmus.runtime.loopback import free_ports

pytestmark = pytest.mark.tunnel

RANKS = """
import contextlib, json, os, sys, traceback
import torch
import torch.distributed as dist
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails, ReducerOptions
from isthmus.runtime.environment import Members
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.wan.frames import RailError
from isthmus.runtime.wan.rail import Rail

job = json.loads(sys.argv[1])
counts, size, total = job["counts"], job["size"], max(job["counts"])

def be(region, rank):
    torch.set_num_threads(1)
    ranks = counts[region]
    group = None
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['masters'][region]}", rank=rank, world_size=ranks)
        group = dist.new_group(list(range(ranks)))

    def values(round, region, rank):
        return torch.randn(size, generator=torch.Generator().manual_seed(100 * round + 10 * region + rank))

    def rails(generation):
        # Every rail of a generation has an address of its own here; in a run one door of a rank serves all of its rails.
        regions = job["generations"][generation]
        if region not in regions:
            sys.exit(0)
        here = regions.index(region)
        carried = {}
        for number in range(rank, total, ranks):
            ports = job["ports"][generation]
            listed = [{"name": f"r{r}", "rails": [f"127.0.0.1:{port}" for port in ports[r]]} for r in regions]
            if len(regions) > 1:
                carried[number] = Rail.open(Members.model_validate({"regions": listed}), here, number, 2, 20.0)
        return Rails(carried, total, tuple(counts[r] for r in regions))

    def reducer_of(generation):
        options = ReducerOptions(segment_bytes=1 << 14, retry=True)
        return HierarchicalReducer(group, rails(generation), job["codec"], options)

    def close(reducer):
        for rail in reducer.rails.carried.values():
            rail.close()

    def round_of(reducer, number, fail_into=None):
        tensors = [values(number, region, rank), values(number, region, rank)[: size // 3].clone()]
        under_way = [reducer.begin(tensor, tag, 10 * size * tag) for tag, tensor in enumerate(tensors)]
        if fail_into is not None:
            if job["dies"] == region:
                sys.exit(0)
            with contextlib.suppress(RailError):  # one part has come in when a region dies, or all drop what they have
                reducer.finish(under_way[0])
                if job["dies"] is not None:
                    reducer.finish(under_way[1])
            close(reducer)
            reducer.renew(rails(fail_into))
            for each in under_way:
                reducer.again(each)
            reducer.finish(under_way[0])
            reducer.finish(under_way[1])
        else:
            for each in under_way:
                reducer.finish(each)
        reducer.commit(under_way)
        return tensors

    line = {}
    reducer = reducer_of(0)
    unbroken = [fingerprint(round_of(reducer, number)) for number in range(3)]
    owed = reducer.state_dict()
    close(reducer)
    reducer = reducer_of(1)
    broken = [fingerprint(round_of(reducer, 0))]
    tensors = round_of(reducer, 1, fail_into=2)
    broken.append(fingerprint(tensors))
    regions = job["generations"][2]
    everyone = [(r, k) for r in regions for k in range(counts[r])]
    mean = sum(values(1, *who) for who in everyone) / len(everyone)
    line["error"] = float((tensors[0] - mean).abs().max())
    broken.append(fingerprint(round_of(reducer, 2)))
    again = reducer.state_dict()
    same = again["epochs"] == owed["epochs"] and fingerprint(again["feedback"].values()) == fingerprint(owed["feedback"].values())
    close(reducer)
    os.write(1, (json.dumps({**line, "unbroken": unbroken, "broken": broken, "same": same}) + "\\n").encode())

pids = {}
for region, ranks in enumerate(counts):
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            try:
                be(region, rank)
            except SystemExit:
                pass
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids[pid] = region, rank
failed = [pids[pid] for pid in pids if os.waitpid(pid, 0)[1]]
sys.exit(f"failed: {failed}" if failed else 0)
"""


def run(counts, generations, codec, dies=None, size=20_011):
    total = max(counts)
    found = iter(free_ports((len(generations) * total + 1) * len(counts)))
    ports = [[[next(found) for _ in range(total)] for _ in counts] for _ in generations]
    masters = list(found)
    job = {"counts": counts, "generations": generations, "codec": codec, "dies": dies, "size": size}
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", RANKS, json.dumps(job | {"ports": ports, "masters": masters})],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("counts", "codec"),
    [([2, 2], "none"), ([2, 2], "int4"), ([1, 3], "int8"), ([3, 2], "none"), ([2, 3], "int4"), ([1, 2, 1], "int8")],
)
def test_a_repeated_all_reduce_leaves_the_bits_and_the_debts_of_one_that_never_failed(counts, codec):
    everyone = list(range(len(counts)))
    lines = run(counts, [everyone, everyone, everyone], codec)
    assert len(lines) == sum(counts)
    assert len({tuple(line["unbroken"]) for line in lines}) == 1
    assert all(line["broken"] == line["unbroken"] and line["same"] for line in lines)
    # As in test_hierarchical.py, of sums of at most three ranks (largest value 4.5 sqrt(3), with what round 0 left owing).
    assert max(line["error"] for line in lines) < {"none": 1e-6, "int8": 0.2, "int4": 2.6}[codec]


@pytest.mark.parametrize(("counts", "survivors"), [([2, 1, 1], [0, 2]), ([2, 2], [0])])
def test_survivors_of_a_lost_region_get_the_mean_over_their_own_ranks(counts, survivors):
    everyone = list(range(len(counts)))
    lines = run(counts, [everyone, everyone, survivors], "none", dies=1)
    assert len(lines) == sum(counts[region] for region in survivors)
    assert max(line["error"] for line in lines) < 1e-6
    assert len({line["broken"][1] for line in lines}) == 1
    assert len({line["broken"][2] for line in lines}) == 1
