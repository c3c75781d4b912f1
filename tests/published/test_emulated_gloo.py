"""gloo all-reduces measured over an emulated WAN (2 regions x 2 ranks, BBR, medians), against the played
ring.

Measured by this project on a 2-core EPYC VM, kernel 6.18, torch 2.13.0+cpu, userspace delay line; ms.
"""

import pytest

from isthmus.cost.gloo import RingShape, gloo_ring_all_reduce_s


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "rtt_s", "mebibytes", "measured_s"),
    [
        (12.5e6, 0.018, 1, 0.206),
        (12.5e6, 0.018, 4, 0.583),
        (12.5e6, 0.018, 16, 2.153),
        (12.5e6, 0.018, 64, 8.677),
        (125e6, 0.060, 64, 3.721),
    ],
)
def test_flat_ring_within_a_tenth_of_the_measurement(
    rate_bytes_per_s: float, rtt_s: float, mebibytes: int, measured_s: float
) -> None:
    ring = RingShape(
        regions=2,
        ranks_per_region=2,
        wan_bytes_per_s=rate_bytes_per_s * 1448 / 1500,
        wan_latency_s=rtt_s / 2,
        local_bytes_per_s=1e9,
    )
    assert gloo_ring_all_reduce_s(mebibytes * 2**20, ring) == pytest.approx(measured_s, rel=0.10)
