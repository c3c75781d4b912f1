"""Logs of nccl-tests and rccl-tests as they come: every layout and prefix gives the same rows. All figures are made up."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.formats.collective_runs import COLLECTIVES, Collective, bus_factor
from isthmus.formats.nccl_tests import read_nccl_tests
from isthmus.formats.torch_bench import read_torch_bench

PROGRAMS: dict[Collective, str] = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all-to-all": "alltoall_perf",
    "send-recv": "sendrecv_perf",
}
NEW = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4011 on  green01 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4012 on  green01 device  1 [0000:2c:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   7720 on  green02 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   7721 on  green02 device  1 [0000:2c:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     9.87    0.00    0.00       0     9.85    0.00    0.00       0
        4096          1024     float     sum      -1    24.10    0.17    0.25       0    23.90    0.17    0.26       0
     4194304       1048576     float     sum      -1    80.00   52.43   78.64       0    79.00   53.09   79.64     N/A
     8388608       2097152     float     sum      -1   120.00   69.91  104.86       0   121.00   69.33  103.99       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 45.9
"""
OLD = """\
# nThread 1 nGpus 8 minBytes 4194304 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     4194304       1048576   float     sum    80.00   52.43   91.75  5e-07    79.00   53.09   92.91  5e-07
     8388608       2097152   float     sum    120.0   69.91  122.33  5e-07    121.0   69.33  121.32  5e-07
"""


def test_a_new_log_gives_collective_ranks_hosts_devices_and_version() -> None:
    (table,) = read_nccl_tests(NEW)
    assert (table.collective, table.ranks, table.hosts) == ("all-reduce", 4, 2)
    assert table.devices == ("NVIDIA H100 80GB HBM3",)
    assert table.nccl_version == "2.28.3"
    assert [row.size_bytes for row in table.out_of_place()] == [4096, 4194304, 8388608]
    assert table.out_of_place()[-1].seconds == pytest.approx(120e-6)
    assert table.rows[2].in_place_s == pytest.approx(79e-6)


def test_an_old_log_without_devices_gives_both_from_its_bandwidths() -> None:
    # 122.33 / 69.91 = 1.75 = 2 x 7 / 8.
    (table,) = read_nccl_tests(OLD)
    assert (table.collective, table.ranks, len(table.rows)) == ("all-reduce", 8, 2)


PREFIXES = {
    "mpirun": "[1,0]<stdout>:",
    "srun": "0: ",
    "kubectl": "[pod/nccl-test-launcher-x7k2p/main] ",
    "time stamp": "2026-03-01T10:20:30.123456789Z ",
    "pod": "nccl-test-launcher-0: ",
    "compose": "worker-0  | ",
    "time and pod and mpirun": "2026-03-01T10:20:30Z launcher-0: [1,0]<stdout>:",
    "colour": "\x1b[32m",
    "indent": "        ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("log", [NEW, OLD], ids=["new", "old"])
def test_whatever_carried_a_log_here_changes_no_row(prefix: str, log: str) -> None:
    carried = "".join(f"{prefix}{line}\n" for line in log.splitlines())
    assert read_nccl_tests(carried) == read_nccl_tests(log)


def test_a_rank_that_tags_the_ends_of_its_prints_changes_no_row() -> None:
    tagged = NEW.replace("      -1  ", "      -1[0]").replace("\n  ", "\n[0]")
    assert [row.size_bytes for row in read_nccl_tests(tagged)[0].rows] == [row.size_bytes for row in read_nccl_tests(NEW)[0].rows]


def test_one_text_may_hold_many_tests() -> None:
    both = NEW + "mpirun -np 8 ./build/all_gather_perf -b 4M -e 8M\n" + OLD.replace("sum", "none")
    first, second = read_nccl_tests(both)
    assert (first.collective, len(first.rows), second.collective, len(second.rows)) == ("all-reduce", 4, "all-gather", 2)


def test_an_excerpt_of_the_device_list_still_tells_the_ranks() -> None:
    log = NEW.splitlines(keepends=True)
    kept = "".join(line for line in log if "Rank" not in line or "Rank  3" in line)
    assert (read_nccl_tests(kept)[0].ranks, read_nccl_tests(kept)[0].hosts) == (4, 0)


def test_a_line_whose_figures_contradict_each_other_is_no_row() -> None:
    assert [len(table.rows) for table in read_nccl_tests(NEW.replace("   52.43 ", "   25.43 "))] == [3]


@pytest.mark.parametrize("text", ["", "no table here", "# size count type", "8 2 float sum", "1 2 float a b c d e f"])
def test_text_without_a_table_gives_none(text: str) -> None:
    assert read_nccl_tests(text) == ()


@settings(max_examples=60, deadline=None)
@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(2, 64),
    sizes=st.lists(st.integers(4, 2**33), min_size=1, max_size=6, unique=True),
    layout=st.sampled_from(["redop root wrong", "redop wrong", "root wrong", "plain", "no check"]),
    seed=st.integers(0, 2**20),
)
def test_every_layout_printed_is_read_back(collective: Collective, ranks: int, sizes: list[int], layout: str, seed: int) -> None:
    draw = random.Random(seed)
    lines = [f"# Collective test starting: {PROGRAMS[collective]}"]
    lines += [f"#  Rank {rank:2} Group  0 Pid 1 on host{rank // 8} device {rank % 8} [0x07] Some GPU" for rank in range(ranks)]
    lines.append("#       size         count      type   time")
    times: dict[int, float] = {}
    for size in sorted(sizes):
        halves: list[str] = []
        for half in range(2):
            micros = round(draw.uniform(10, 1e5), 2)
            algbw = size / micros / 1e3
            times.setdefault(size, micros)
            check = {"no check": ""}.get(layout, " N/A" if half and draw.random() < 0.3 else " 0")
            halves.append(f"{micros:8.2f} {algbw:7.2f} {algbw * bus_factor(collective, ranks):7.2f}{check}")
        words = [str(size), str(size // 4), "float", *["sum"] * ("redop" in layout), *["-1"] * ("root" in layout)]
        lines.append("  ".join([*words, *halves]))
    (table,) = read_nccl_tests("\n".join(lines))
    assert (table.collective, table.ranks, table.hosts) == (collective, ranks, -(-ranks // 8))
    assert {row.size_bytes: row.seconds for row in table.out_of_place()} == pytest.approx(
        {size: micros * 1e-6 for size, micros in times.items()}
    )


def test_a_torch_table_is_read_where_its_two_decimals_say_enough() -> None:
    text = """\
The average bandwidth of all_reduce over 32 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.04GBps |   0.02GBps |
|    1MiB |  19.38GBps |  10.00GBps |
|    1GiB | 193.75GBps | 100.00GBps |
"""
    (table,) = read_torch_bench(text)
    assert (table.collective, table.ranks) == ("all-reduce", 32)
    # 1 MiB at 10 GB/s and 1 GiB at 100.
    assert [(row.size_bytes, row.seconds) for row in table.out_of_place()] == [
        (2**20, pytest.approx(2**20 / 10e9)),
        (2**30, pytest.approx(2**30 / 100e9)),
    ]
