"""What the bench makes of its ranks' answers; and, in a real tunnel, that an exchange is more work than none."""

import pytest

from isthmus.bench import Exchange, combine_ranks, speeds_in
from isthmus.emulate import EmulatedLink, open_tunnel


def _rank(cpu_s: float, began_s: float, speed: float = 1e9) -> dict[str, object]:
    return {
        "codecs": {"int4": {"encode_bytes_per_s": speed, "decode_bytes_per_s": 2 * speed}},
        "copy_bytes_per_s": speed,
        "exchanges": {"none": {"cpu_s": cpu_s, "began_s": began_s, "ended_s": began_s + 4.0, "rounds": 4}},
    }


def test_work_is_summed_over_ranks_speeds_are_medians_and_the_line_counts_between_the_rounds_alone() -> None:
    # The line is idle until t = 12, then busy for a half of the time; the rounds last from 11 to 15: 1.5 s in 4 rounds.
    line = [(10.0, 0.25), (12.0, 0.25), (13.0, 0.75), (20.0, 4.25)]
    speeds = combine_ranks(4_000_000, [_rank(0.01, 11.0), _rank(0.03, 11.0, 3e9), _rank(0.02, 11.0, 2e9)], 3_000_000, line)
    work = speeds.exchanges["none"]
    assert work.ranks_cpu_s == pytest.approx(0.06)
    assert work.line_cpu_s == pytest.approx(1.5 / 4)
    assert speeds.copy_bytes_per_s == 2e9
    assert speeds.codecs["int4"].decode_bytes_per_s == 4e9
    row = next(row for row in speeds.rows() if row.name.startswith("none exchange"))
    assert row.bytes_per_s == pytest.approx(3_000_000 / (0.06 + 0.375))


@pytest.mark.tunnel
def test_exchanges_in_a_real_tunnel_cost_their_ranks_and_the_line_cpu_and_int4_costs_less_than_fp32() -> None:
    nodes = {"west": 1, "east": 1}
    links = [EmulatedLink(between=("west", "east"), rate_bytes_per_s=25e6, rtt_s=0.002)]
    exchange = Exchange(buckets=(1 << 20, 1 << 19), codecs=("none", "int4"), rate_bytes_per_s=25e6, compute_s=0.01, flat=True)
    with open_tunnel(nodes=nodes, links=links) as tunnel:
        found = speeds_in(tunnel, nodes, 1 << 20, exchange).exchanges
    whole, coded = found["none"], found["int4"]
    assert 0 < coded.line_cpu_s < whole.line_cpu_s  # an eighth of the packets
    assert 0 < whole.ranks_cpu_s < 1
    assert 0 < found["flat"].ranks_cpu_s < 1  # gloo's rings over all ranks
    assert coded.line_cpu_s < found["flat"].line_cpu_s
