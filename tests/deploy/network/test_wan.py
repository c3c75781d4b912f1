"""TCP between regions, and why a WAN is never lossless."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.transport import tcp_buffer_bytes
from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.wan import Flows, flows_of, sysctl_settings, sysctl_text, wan_words
from isthmus.fabric import parse_fabric, read_fabric
from isthmus.plan import Plan

G = 1e9 / 8
EXAMPLES = Path(__file__).parents[3] / "examples"
# kernel Documentation/networking/ip-sysctl.rst and admin-guide/sysctl/net.rst: names and what they take.
FORMS = {
    "net.core.rmem_max": r"\d+",
    "net.core.wmem_max": r"\d+",
    "net.ipv4.tcp_rmem": r"\d+ \d+ \d+",
    "net.ipv4.tcp_wmem": r"\d+ \d+ \d+",
    "net.core.default_qdisc": r"fq",
    "net.ipv4.tcp_congestion_control": r"bbr",
    "net.ipv4.tcp_slow_start_after_idle": r"[01]",
    "net.ipv4.tcp_mtu_probing": r"[012]",
}


def flows(gbit: float = 10, rtt_s: float = 0.08, rails: int = 1, streams: int = 1, loss: float = 0.0) -> Flows:
    return Flows(to="west", rate_bytes_per_s=gbit * G, rtt_s=rtt_s, rails=rails, streams=streams, loss=loss)


def test_one_stream_of_10_gbit_over_80_ms_needs_200_mb_at_least() -> None:
    # 10 Gb/s x 80 ms = 100 MB in flight; half of a buffer is window, so 200 MB; we allow for twice the window.
    reason = sysctl_settings(flows())[0].reason
    assert "10 Gb/s x 80 ms = 100 MB in flight" in reason
    assert "so at least 200 MB" in reason
    assert tcp_buffer_bytes(10 * G, 0.08, 1) == 400_000_000


def test_the_kernels_own_most_is_never_lowered() -> None:
    values = {each.name: each.value for each in sysctl_settings(flows(gbit=1, rtt_s=0.001, rails=8))}
    assert values["net.core.rmem_max"] == str(6 * 2**20)


def test_no_value_is_more_than_the_kernel_takes() -> None:
    values = {each.name: each.value for each in sysctl_settings(flows(gbit=400, rtt_s=0.3))}
    assert values["net.core.rmem_max"] == str(2**31 - 1)


@given(gbit=st.floats(0.1, 400), rtt_s=st.floats(1e-4, 0.5), rails=st.integers(1, 512), streams=st.integers(1, 16))
def test_all_streams_together_hold_twice_what_is_in_flight(gbit: float, rtt_s: float, rails: int, streams: int) -> None:
    asked = flows(gbit, rtt_s, rails, streams)
    size = int(next(each.value for each in sysctl_settings(asked) if each.name == "net.core.rmem_max"))
    assert size == 2**31 - 1 or size / 2 * asked.count >= 2 * gbit * G * rtt_s * (1 - 1e-9)


def test_bbr_is_explained_by_what_cubic_would_do_at_this_loss() -> None:
    reasons = [next(each.reason for each in sysctl_settings(asked) if each.value == "bbr")
               for asked in (flows(loss=1e-4), flows(loss=1e-12), flows())]  # fmt: skip
    assert "1 CUBIC streams stop at" in reasons[0]
    assert "would fill the line" in reasons[1]
    assert "states no loss" in reasons[2]


@pytest.mark.parametrize("example", ["shenzhen-shanghai", "beijing-shenzhen-shanghai", "singapore-tokyo"])
def test_every_line_is_a_comment_or_a_name_the_kernel_knows_with_a_value_it_takes(
    example: str, make_plan: Callable[..., Plan]
) -> None:
    fabric = read_fabric(EXAMPLES / f"{example}.yaml")
    for region in fabric.regions:
        found = flows_of(region.name, fabric, make_plan())
        assert found is not None
        lines = [line for line in sysctl_text(region.name, found).splitlines() if line and not line.startswith("#")]
        seen = [line.partition(" = ") for line in lines]
        assert [name for name, _, _ in seen] == list(FORMS)
        assert all(re.fullmatch(FORMS[name], value) for name, _, value in seen)


def test_the_route_that_needs_most_sets_the_buffers(make_plan: Callable[..., Plan]) -> None:
    fabric = read_fabric(EXAMPLES / "beijing-shenzhen-shanghai.yaml")
    found = flows_of("shanghai", fabric, make_plan())
    assert found is not None
    assert (found.to, found.rtt_s, found.rails) == ("shenzhen", 0.027, 32)


def test_a_fabric_of_one_region_has_no_route(make_plan: Callable[..., Plan]) -> None:
    assert flows_of("lab", read_fabric(EXAMPLES / "one-node.yaml"), make_plan()) is None


def test_400_gbit_over_a_thousand_km_would_need_505_mb_on_the_wire(make_roce: Callable[..., Roce]) -> None:
    # 2 x 1e6 m x 50 GB/s / 1.98e8 m/s = 505 MB.
    text = """name: two
regions:
  east: {nodes: [{count: 2, kind: hgx-h100}], network: {kind: roce, rate: 400 Gb/s, switch: sn5600}}
  west: {nodes: [{count: 2, kind: hgx-h100}], network: {kind: roce, rate: 400 Gb/s, switch: sn5600}}
wan: [{between: [east, west], rate: 400 Gb/s, rtt: 12 ms, distance: 1000 km, transport: rdma}]
"""
    words = wan_words(parse_fabric(text, "fabric.yaml").wan[0], [make_roce("rate: 400 Gb/s, switch: sn5600")])
    assert "no PFC on this link" in words
    assert "it would need 505 MB per port and priority" in words
    assert "sn5600 has 158 MB in all" in words
    # K = C RTT / 7: 50 GB/s x 12 ms / 7 = 85.7 MB (DCTCP, SIGCOMM 2010).
    assert "from 85.7 MB to 343 MB (K = C RTT / 7, DCTCP (SIGCOMM 2010))" in words
    assert "RoCE under DCQCN: its loop of microseconds acts 12 ms late" in words
