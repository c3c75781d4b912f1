"""The hierarchical all-reduce with real ranks on loopback, and what happens when one of them dies, freezes or disagrees."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from isthmus.runtime.loopback import free_ports

pytestmark = pytest.mark.tunnel

RANK = """
import json, sys, time
import torch
import torch.distributed as dist
from isthmus.runtime.environment import Members
from isthmus.runtime.wan.frames import RailError
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, ReducerOptions
from isthmus.runtime.wan.rail import Rail, RailOptions

torch.set_num_threads(1)
job = json.loads(sys.argv[1])
region, rank, ranks, size = job["region"], job["rank"], job["ranks"], job["size"]
members = Members.model_validate(job["members"])
group = None
if ranks > 1:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job['master']}", rank=rank, world_size=ranks)
    group = dist.new_group(list(range(ranks)))

def values(region, rank):
    return torch.randn(size, generator=torch.Generator().manual_seed(10 * region + rank))

def say(**line):
    print(json.dumps(line), flush=True)

regions = len(members.regions)
rail = Rail.open(members, region, rank, 3, job["timeout_s"], RailOptions(rate_bytes_per_s=job.get("rate")))
reducer = HierarchicalReducer(group, rail, job["codec"], ReducerOptions(segment_bytes=job.get("segment_bytes")))
if job.get("fault"):
    tensor = values(region, rank)
    say(ready=True)
    started = time.monotonic()
    try:
        reducer.all_reduce_(tensor, 1)
    except RailError as error:
        say(error=type(error).__name__, text=str(error), seconds=time.monotonic() - started)
        sys.exit(0)
    sys.exit("the all-reduce succeeded")
hashes = []
for round in range(3):
    tensors = [values(region, rank), values(region, rank)[: size // 3].clone()]
    if round < 2:
        for tag, tensor in enumerate(tensors):
            reducer.all_reduce_(tensor, tag)
    else:
        under_way = [reducer.begin(tensor, tag) for tag, tensor in enumerate(tensors)]
        for each in under_way:
            reducer.finish(each)
    hashes.append(fingerprint(tensors))
    if round == 0:
        mean = sum(values(r, k) for r in range(regions) for k in range(ranks)) / (regions * ranks)
        error = float((tensors[0] - mean).abs().max())
# Undoing: from the same state the same bits, codec noise and residuals included.
state = reducer.state_dict()
first = values(region, rank)
reducer.all_reduce_(first, 0)
rail.flush()
meeting = values(region, rank)
reducer.all_reduce_(meeting, 2)
reducer.load_state_dict(state)
second = values(region, rank)
reducer.all_reduce_(second, 0)
reducer.between_regions = False
inside = values(region, rank)
reducer.all_reduce_(inside, 0)
own = sum(values(region, k) for k in range(ranks)) / ranks
undone, inside = fingerprint([first]) == fingerprint([second]), float((inside - own).abs().max())
say(hashes=hashes, error=error, undone=undone, inside=inside)
rail.close()
"""


class Ranks:
    """Real processes, one a rank; `lines` reads what they said."""

    def __init__(self, regions, ranks, **job):
        ports = free_ports(regions * (ranks + 1))
        listed = [{"name": f"r{region}", "rails": [f"127.0.0.1:{ports[region * ranks + rank]}" for rank in range(ranks)]}
                  for region in range(regions)]
        job = {"members": {"regions": listed}, "ranks": ranks, "timeout_s": 60.0, "codec": "none"} | job
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-W", "error::FutureWarning", "-c", RANK,
                 json.dumps(job | {"region": region, "rank": rank, "master": ports[regions * ranks + region]})],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
            for region in range(regions) for rank in range(ranks)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def line(self, number):
        line = self.processes[number].stdout.readline()
        assert line, self.processes[number].stderr.read()
        return json.loads(line)


@pytest.mark.parametrize(
    ("regions", "ranks", "codec", "size"),
    [(2, 2, "none", 300_001), (2, 2, "int4", 300_001), (2, 1, "bf16", 70_000), (3, 2, "int8", 100_003), (2, 3, "none", 50_000),
     (2, 2, "none", 1)],
)
def test_all_ranks_of_all_regions_end_with_the_same_bits_near_the_mean(regions, ranks, codec, size):
    with Ranks(regions, ranks, codec=codec, size=size, segment_bytes=1 << 16) as run:
        lines = [run.line(number) for number in range(regions * ranks)]
        codes = [process.wait(30) for process in run.processes]
    assert codes == [0] * (regions * ranks)
    assert len({tuple(line["hashes"]) for line in lines}) == 1
    assert all(line["undone"] for line in lines)
    # Values reach 4.5; a step is their region's mean's largest over 7 (int4) or half over 127, on each of at most two encodings.
    assert max(line["error"] for line in lines) < {"none": 1e-6, "bf16": 0.05, "int8": 0.1, "int4": 1.3}[codec]
    assert max(line["inside"] for line in lines) < 1e-6


def lost(action, timeout_s):
    """What region 0's rank says when, in the middle of 20 MB at 4 MB/s, `action` befalls region 1's."""
    with Ranks(2, 1, size=5_000_000, timeout_s=timeout_s, fault=True, rate=4e6) as run:
        for number in range(2):
            assert run.line(number)["ready"]
        time.sleep(1.0)
        begun_s = time.monotonic()
        run.processes[1].send_signal(action)
        line = run.line(0)
        assert run.processes[0].wait(30) == 0
        return line, time.monotonic() - begun_s


def test_a_peer_killed_in_the_middle_is_named_at_once():
    line, seconds = lost(signal.SIGKILL, timeout_s=60.0)
    assert line["error"] == "PeerLostError"
    assert line["text"].startswith("rail r0/0 to r1/0")
    assert seconds < 10.0


def test_a_frozen_peer_is_lost_after_the_time_out():
    line, seconds = lost(signal.SIGSTOP, timeout_s=4.0)
    assert line["error"] == "PeerLostError"
    assert "silent for 4 s" in line["text"] or "broke" in line["text"]
    assert 3.0 < seconds < 15.0
