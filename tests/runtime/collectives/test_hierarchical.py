"""The hierarchical all-reduce with real ranks on loopback, and what happens when one of them dies, freezes or disagrees."""

from typing import Any

import pytest

from isthmus.plan import CodecName, Strategy

pytestmark = pytest.mark.tunnel


def run(nursery: Any, regions: int, ranks: int, codec: CodecName = "none", **options: Any) -> Any:
    strategy = Strategy(name="test", kind="hierarchical", codec=codec)
    return nursery.run(strategy, regions={f"r{number}": ranks for number in range(regions)}, **options)


@pytest.mark.parametrize(
    ("regions", "ranks", "codec", "size"),
    [(2, 2, "int4", 300_001), (2, 1, "bf16", 70_000), (3, 2, "int8", 100_003), (2, 3, "none", 50_000), (2, 2, "none", 1)],
)
def test_all_ranks_of_all_regions_end_with_the_same_bits_near_the_mean(
    regions: int, ranks: int, codec: CodecName, size: int, nursery: Any
) -> None:
    lines = run(nursery, regions, ranks, codec, scenario="all_reduce", size=size).succeeded().said()
    assert len(lines) == regions * ranks
    assert len({tuple(line["hashes"]) for line in lines}) == 1
    assert all(line["undone"] for line in lines)
    # Values reach 4.5; a step is their region's mean's largest over 7 (int4) or half over 127, on each of at most two encodings.
    assert max(line["error"] for line in lines) < {"none": 1e-6, "bf16": 0.05, "int8": 0.1, "int4": 1.3}[codec]
    assert max(line["inside"] for line in lines) < 1e-6


@pytest.mark.parametrize(("ranks", "codec", "size"), [(2, "int4", 100_003), (1, "none", 50_000)])
def test_a_region_whose_tensors_are_staged_as_a_gpus_ends_with_the_bits_of_the_others(
    ranks: int, codec: CodecName, size: int, nursery: Any
) -> None:
    plain = run(nursery, 2, ranks, codec, scenario="all_reduce", size=size).succeeded().said()
    staged = run(nursery, 2, ranks, codec, scenario="all_reduce", size=size, staged=[0]).succeeded().said()
    assert [line["hashes"] for line in staged] == [line["hashes"] for line in plain]
    assert all(line["undone"] and line["inside"] < 1e-6 for line in staged)


@pytest.mark.parametrize(("ranks", "size"), [(2, 100_000), (3, 50_001)])
def test_ranks_that_read_each_others_memory_come_to_the_bits_of_those_that_send(ranks: int, size: int, nursery: Any) -> None:
    read, sent = (run(nursery, 2, ranks, scenario="all_reduce", size=size, far=far).succeeded().said() for far in (False, True))
    assert [line["hashes"] for line in read] == [line["hashes"] for line in sent]


def test_a_rank_gets_its_tensor_back_only_when_the_others_have_read_it(nursery: Any) -> None:
    lines = run(nursery, 2, 3, scenario="hasty", size=60_000).succeeded().said()
    if not all(line["near"] for line in lines):
        pytest.skip("processes may not read each other's memory here (ptrace_scope, seccomp)")
    assert len({tuple(line["hashes"]) for line in lines}) == 1
    assert len(set(lines[0]["hashes"])) == 3


def test_a_peer_killed_in_the_middle_is_named_at_once(nursery: Any) -> None:
    outcome = run(nursery, 2, 1, scenario="lose", signal="SIGKILL")
    assert outcome.codes == [0, -9], outcome.logs
    (line,) = outcome.said()
    assert line["error"] == "PeerLostError"
    assert line["text"].startswith("rail r0/0 to r1/0")
    assert line["seconds"] < 10.0


def test_a_frozen_peer_is_lost_after_the_time_out(nursery: Any) -> None:
    outcome = run(nursery, 2, 1, scenario="lose", signal="SIGSTOP", silence_s=4.0)
    assert outcome.codes == [0, -19], outcome.logs
    (line,) = outcome.said()
    assert line["error"] == "PeerLostError"
    assert "silent for 4 s" in line["text"] or "broke" in line["text"]
    assert 3.0 < line["seconds"] < 15.0
