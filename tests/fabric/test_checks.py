"""Every check of `isthmus check`: its severity, its line and, for the finding meant, its whole text."""

from math import sqrt

import pytest

from isthmus.fabric import check_fabric, check_text
from isthmus.fabric.checks_wan import mathis_bytes_per_s

GOOD = """\
name: Two
regions:
  west:
    city: Shenzhen
    nodes: [{count: 2, kind: hgx-h100}]
    network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}
  east:
    city: Shanghai
    nodes: [{count: 2, kind: hgx-h100}]
    network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}
wan:
  - {between: [west, east], rate: 100 Gb/s, rtt: 18 ms}
"""

NDR = "kind: infiniband, rate: 400 Gb/s, switch: qm9700"
ROCE = "kind: roce, rate: 400 Gb/s, switch: sn5600"

# Told about every damaged file, and not what the case is about.
BESIDE = {"shape", "rtt-low"}


def edit(old: str, new: str, count: int = 1, text: str = GOOD) -> str:
    assert old in text, old
    return text.replace(old, new, count)


def wan(new: str, text: str = GOOD) -> str:
    return edit("rtt: 18 ms", new, 1, text)


def both(old: str, new: str, text: str = GOOD) -> str:
    return edit(old, new, -1, text)


# name, file, findings in order, whole reason of the finding meant
CASES: list[tuple[str, str, list[tuple[str, str, int]], str]] = [
    (
        "a passive copper cable of 5 m at 400G",
        edit("switch: qm9700", "switch: qm9700, cables: [{kind: passive-copper, length: 5 m}]"),
        [("error", "cable-reach", 6)],
        "passive-copper reaches 3 m at 400 Gb/s (100G lane), 5 m asked; active-copper reaches 5 m",
    ),
    (
        "an active copper cable of 5 m at 400G reaches",
        edit("switch: qm9700", "switch: qm9700, cables: [{kind: active-copper, length: 5 m}]"),
        [],
        "",
    ),
    (
        "a passive copper cable of 5 m at 100G reaches",
        edit("rate: 400 Gb/s, switch: qm9700", "rate: 100 Gb/s, switch: qm9700, cables: [{kind: passive-copper, length: 5 m}]"),
        [],
        "",
    ),
    (
        "copper of 2.5 m at 800G InfiniBand",
        edit(
            f"kind: hgx-h100}}]\n    network: {{{NDR}}}",
            "kind: hgx-b300}]\n    network: {kind: infiniband, rate: 800 Gb/s, switch: q3400, cables: [{kind: "
            "passive-copper, length: 2.5 m}]}",
        ),
        [("error", "cable-reach", 6), ("warning", "unlike-regions", 2)],
        "passive-copper reaches 2 m at 800 Gb/s (200G lane), 2.5 m asked; active-copper reaches 5 m",
    ),
    (
        "a cable no optics reach",
        edit("switch: qm9700", "switch: qm9700, cables: [{kind: er, length: 50 km}]"),
        [("error", "cable-reach", 6)],
        "er reaches 40000 m at 400 Gb/s (port), 50000 m asked",
    ),
    (
        "an NVLink cable between nodes",
        edit("switch: qm9700", "switch: qm9700, cables: [{kind: nvlink-copper, length: 1 m}]"),
        [("error", "nvlink-cable", 6)],
        "NVLink cables join GPUs inside a rack, never nodes of a network and never regions",
    ),
    (
        "a 400G adapter in a Gen4 x8 slot",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {slot: 4.0 x8}"),
        [("error", "nic-slot", 5)],
        "connectx-7 at 400 Gb/s needs 50 GB/s per direction, a PCIe 4.0 x8 slot carries 15.75 GB/s",
    ),
    (
        "a 400G adapter in the slot of an A100 node",
        edit("kind: hgx-h100", "kind: hgx-a100-80, nics: {kind: connectx-7}"),
        [("error", "nic-slot", 5), ("warning", "unlike-regions", 2)],
        "connectx-7 at 400 Gb/s needs 50 GB/s per direction, a PCIe 4.0 x16 slot carries 31.51 GB/s",
    ),
    (
        "InfiniBand over an IP network",
        wan("rtt: 18 ms, transport: rdma, class: mpls"),
        [("error", "infiniband-over-ip", 12)],
        "InfiniBand does not ride an IP network (mpls); it needs dark fibre or a wave with long-haul gear, up to 40 km; use tcp",
    ),
    (
        "InfiniBand over a long wave",
        wan("rtt: 18 ms, transport: rdma, class: leased-wave"),
        [("error", "infiniband-reach", 12)],
        "InfiniBand long-haul gear reaches 40 km, the route is 1213 km; use tcp",
    ),
    (
        "InfiniBand over 30 km of dark fibre",
        both(
            "city: Shenzhen",
            "",
            both("city: Shanghai", "", wan("rtt: 1 ms, transport: rdma, class: dark-fibre, distance: 30 km")),
        ),
        [],
        "",
    ),
    (
        "RoCE over an IP network",
        both(
            NDR,
            ROCE,
            wan("rtt: 18 ms, transport: rdma, class: vpc"),
        ),
        [("warning", "roce-over-ip", 12)],
        "RoCE v2 wants a loss-free path and vpc promises none: one lost packet sends a whole window again; prefer tcp",
    ),
    (
        "RDMA between unlike networks",
        edit(NDR, ROCE).replace("rtt: 18 ms", "rtt: 18 ms, transport: rdma"),
        [("error", "rdma-kinds", 12)],
        "RDMA cannot cross from infiniband to roce; use tcp",
    ),
    (
        "RDMA over plain Ethernet",
        both(
            NDR,
            "kind: ethernet, rate: 400 Gb/s, switch: sn5600",
            wan("rtt: 18 ms, transport: rdma"),
        ),
        [("error", "rdma-kinds", 12)],
        "ethernet carries no RDMA between regions; use tcp",
    ),
    (
        "RDMA with loss",
        both(
            NDR,
            ROCE,
            wan("rtt: 18 ms, transport: rdma, loss: 1e-6"),
        ),
        [("warning", "rdma-loss", 12)],
        "RDMA with 1e-06 loss: every lost packet sends the rest of its window again (go-back-N)",
    ),
    (
        "a round trip below the floor of its cities",
        wan("rtt: 11 ms"),
        [("error", "rtt-floor", 12)],
        "RTT 11 ms is less than light needs in fibre between Shenzhen and Shanghai (1213 km, 11.9 ms)",
    ),
    (
        "a round trip below the floor of its route",
        wan("rtt: 18 ms, distance: 2000 km"),
        [("error", "rtt-floor", 12)],
        "RTT 18 ms is less than light needs in 2000 km of fibre (19.6 ms)",
    ),
    (
        "a route shorter than the great circle",
        wan("rtt: 18 ms, distance: 1000 km"),
        [("error", "distance", 12)],
        "a route of 1000 km is shorter than the great circle between Shenzhen and Shanghai (1213 km)",
    ),
    (
        "a round trip far above the usual",
        wan("rtt: 80 ms"),
        [("warning", "rtt-high", 12)],
        "RTT 80 ms is more than twice the 22 - 32 ms usual for this pair: a detour, a queue that was full when "
        "measured, or a wrong unit",
    ),
    (
        "a round trip far above its route",
        both("city: Shenzhen", "", both("city: Shanghai", "", wan("rtt: 100 ms, distance: 1000 km"))),
        [("warning", "rtt-high", 12)],
        "RTT 100 ms is more than twice the 9.79 ms of a route of 1000 km: a detour, a full queue, or a wrong unit",
    ),
    (
        "a round trip far above cities without a table",
        edit("city: Shenzhen", "city: Hohhot").replace("rtt: 18 ms", "rtt: 90 ms"),
        [("warning", "rtt-high", 12)],
        "RTT 90 ms is more than twice the 20.3 ms of a route of 1379 km: a detour, a full queue, or a wrong unit",
    ),
    (
        "loss that stops a single stream",
        wan("rtt: 30 ms, loss: 0.1%"),
        [("warning", "tcp-loss", 12)],
        "at 0.001 loss and 30 ms one TCP stream keeps about 15 Mb/s (Mathis): 6455 streams would fill 100 "
        "Gb/s; a single stream is useless here: use BBR, or get the loss repaired",
    ),
    (
        "loss that wants some streams",
        wan("rtt: 30 ms, loss: 1e-7"),
        [("info", "tcp-loss", 12)],
        "at 1e-07 loss and 30 ms one TCP stream keeps about 1.5 Gb/s (Mathis): 65 streams would fill 100 Gb/s",
    ),
    (
        "jitter above the one-way delay",
        wan("rtt: 30 ms, jitter: 16 ms"),
        [("error", "jitter", 12)],
        "jitter 16 ms exceeds the one-way delay (15 ms): no packet can be that early",
    ),
    (
        "mixed GPUs in a region",
        edit("[{count: 2, kind: hgx-h100}]", "[{count: 1, kind: hgx-h100}, {count: 1, kind: hgx-h200}]"),
        [("warning", "unlike-regions", 2), ("warning", "mixed-gpus", 5)],
        "west mixes h100-sxm5, h200-sxm5 in one data-parallel group: they compute alike, and h100-sxm5 with 80 "
        "GB limits what fits; give each kind its own region entry, or split the batch by speed",
    ),
    (
        "mixed GPUs across regions",
        edit("kind: hgx-h100", "kind: hgx-b200"),
        [("warning", "unlike-regions", 2)],
        "regions hold different GPUs (b200-sxm, h100-sxm5): with equal shares every step waits for h100-sxm5 "
        "(989.4 TFLOP/s); split the batch by speed",
    ),
    (
        "mixed vendors in a region",
        edit("[{count: 2, kind: hgx-h100}]", "[{count: 1, kind: hgx-h100}, {count: 1, kind: mi300x-8}]"),
        [("error", "mixed-gpus", 5), ("warning", "unlike-regions", 2), ("warning", "mixed-vendors", 5)],
        "west mixes h100-sxm5, mi300x in one data-parallel group: every step waits for h100-sxm5 (989.4 "
        "TFLOP/s); give each kind its own region entry, or split the batch by speed",
    ),
    (
        "mixed vendors across regions",
        edit("kind: hgx-h100", "kind: mi300x-8"),
        [("warning", "unlike-regions", 2), ("warning", "mixed-vendors", 2)],
        "regions hold GPUs of AMD and NVIDIA: traffic between them is relayed by the hosts, never GPU to GPU",
    ),
    (
        "an adapter faster than its port",
        edit("rate: 400 Gb/s, switch: qm9700", "rate: 200 Gb/s, switch: qm8700"),
        [("warning", "nic-faster-than-port", 6)],
        "adapters of 400 Gb/s on ports of 200 Gb/s: the rest of the adapter is paid for and unused",
    ),
    (
        "a network faster than its ports",
        edit("switch: qm9700", "switch: qm8700"),
        [("error", "switch-rate", 6), ("warning", "nic-faster-than-port", 6)],
        "the network runs at 400 Gb/s, a port of qm8700 at 200 Gb/s",
    ),
    (
        "a network faster than its adapters",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {kind: connectx-6}"),
        [("error", "nic-rate", 6)],
        "the network runs at 400 Gb/s, a port of connectx-6 at most at 200 Gb/s",
    ),
    (
        "ConnectX-8 at 800 Gb/s on Ethernet",
        edit(
            f"kind: hgx-h100}}]\n    network: {{{NDR}}}",
            "kind: hgx-b300}]\n    network: {kind: roce, rate: 800 Gb/s, switch: sn5600}",
        ),
        [("error", "nic-rate", 6), ("warning", "unlike-regions", 2)],
        "the network runs at 800 Gb/s, a port of connectx-8 at most at 400 Gb/s",
    ),
    (
        "an adapter that does not speak the network",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {kind: bcm57608}"),
        [("error", "nic-network", 5)],
        "bcm57608 speaks roce, ethernet, not infiniband",
    ),
    (
        "a switch that does not carry the network",
        edit("switch: qm9700", "switch: sn5600"),
        [("error", "switch-network", 6)],
        "sn5600 carries ethernet, roce, not infiniband",
    ),
    (
        "an operating system that InfiniBand switches do not run",
        edit("switch: qm9700", "switch: qm9700, system: sonic"),
        [("error", "switch-system", 6)],
        "sonic runs on Ethernet switches, the network is infiniband",
    ),
    (
        "an operating system that the switch does not run",
        both(NDR, "kind: roce, rate: 400 Gb/s, switch: sn5600, system: eos"),
        [("error", "switch-system", 6), ("error", "switch-system", 10)],
        "sn5600 runs sonic or cumulus",
    ),
    (
        "more adapters than ports",
        edit("count: 2", "count: 9").replace("switch: qm9700", "switch: qm9700, shape: single-switch", 1),
        [("error", "switch-ports", 6), ("warning", "unequal-rails", 2)],
        "single-switch of 64-port switches joins at most 64 adapters, 72 are needed (switch ports (9 nodes x 8 adapters))",
    ),
    (
        "adapters that GPUs share unevenly",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {count: 3}"),
        [("warning", "uneven-rails", 5)],
        "8 GPUs share 3 adapters unevenly: the busiest adapter sets the pace",
    ),
    (
        "regions of unequal size",
        edit("count: 2", "count: 3"),
        [("warning", "unequal-rails", 2)],
        "regions have unequal numbers of GPUs (west 24, east 16): rail i of one region has no partner in another",
    ),
    (
        "a switch for one node",
        both("count: 2", "count: 1"),
        [("info", "idle-switch", 6), ("info", "idle-switch", 10)],
        "west has one node: its switch qm9700 carries no traffic between nodes",
    ),
    (
        "racks cut in half",
        both("count: 2, kind: hgx-h100", "count: 9, kind: gb200-nvl72"),
        [("warning", "partial-rack", 5), ("warning", "partial-rack", 9), ("info", "nvlink-ends", 12)],
        "9 nodes of 4 GPUs do not fill NVLink domains of 72: NVLink ends at the rack and never joins regions, "
        "so the rest meets over the network",
    ),
    (
        "an A100 on the switches of an H100 board",
        edit("kind: hgx-h100", "kind: hgx-h100, gpu: a100-80-sxm4"),
        [("error", "nvswitch-generation", 5), ("warning", "unlike-regions", 2)],
        "the NVSwitch of hgx-h100 (gen3) speaks NVLink 4, a100-80-sxm4 nvlink 3",
    ),
    (
        "bridges between an odd number of cards",
        edit("kind: hgx-h100", "kind: h100-pcie-8, gpus: 7"),
        [
            ("error", "wiring", 5),
            ("warning", "unlike-regions", 2),
            ("warning", "unequal-rails", 2),
            ("warning", "uneven-rails", 5),
        ],
        "bridges join cards in pairs; 7 cards leave one alone",
    ),
    (
        "adapters slower together than the link",
        edit("rate: 100 Gb/s", "rate: 10 Tb/s"),
        [("warning", "wan-rate", 12), ("warning", "wan-rate", 12)],
        "the adapters of west carry 6.4 Tb/s together, less than this link (10 Tb/s)",
    ),
    (
        "tiers that are not needed",
        edit("switch: qm9700", "switch: qm9700, shape: clos-3"),
        [("info", "shape", 6), ("info", "shape", 10)],
        "single-switch of qm9700 would join these 16 adapters too; clos-3 takes 8 leaf, 8 spine switches",
    ),
    (
        "an oversubscribed leaf",
        edit("count: 2", "count: 100").replace("switch: qm9700", "switch: qm9700, oversubscription: 3", 1),
        [("warning", "unequal-rails", 2), ("info", "oversubscription", 6)],
        "groups of 48 nodes share 1/3 of their rate with the other groups",
    ),
    (
        "dark fibre beyond a span",
        wan("rtt: 18 ms, class: dark-fibre"),
        [("info", "dark-fibre-reach", 12)],
        "1213 km of dark fibre is beyond one span of 400ZR (120 km): a line system with amplifiers has to be bought",
    ),
    (
        "a chain of three regions",
        GOOD.replace(
            "wan:", "  north:\n    nodes: [{count: 2, kind: hgx-h100}]\n    network: {kind: infiniband, switch: qm9700}\nwan:"
        )
        + "  - {between: [east, north], rate: 100 Gb/s, rtt: 5 ms}\n",
        [("info", "relay", 14)],
        "no link joins west and north: their traffic crosses 2 links (23 ms RTT)",
    ),
]


@pytest.mark.parametrize(("text", "expected", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_fabric_with_a_fault_is_told_so(text: str, expected: list[tuple[str, str, int]], reason: str) -> None:
    findings = check_text(text, "f.yaml")
    meant = {rule for _, rule, _ in expected}
    told = [each for each in findings if each.rule in meant or each.rule not in BESIDE]
    assert [(each.severity, each.rule, int(each.where.removeprefix("f.yaml:"))) for each in told] == expected
    assert not expected or reason in [each.reason for each in told]
    assert all(each.source for each in findings)


def test_a_sound_fabric_has_notes_only() -> None:
    assert {each.severity for each in check_text(GOOD, "f.yaml")} == {"info"}


@pytest.mark.parametrize(
    "name", ["shenzhen-shanghai", "shenzhen-shanghai-8", "beijing-shenzhen-shanghai", "singapore-tokyo", "clos-1024", "one-node"]
)
def test_the_examples_have_notes_only(name: str) -> None:
    from pathlib import Path

    example = Path(__file__).parents[2] / "examples" / f"{name}.yaml"
    assert {each.severity for each in check_fabric(example)} <= {"info"}


def test_mathis_gives_one_stream_1448_bytes_a_round_trip_at_loss_three_halves() -> None:
    # sqrt(3/2) / sqrt(3/2) = 1: one segment each round trip.
    assert mathis_bytes_per_s(0.1, 1.5) == pytest.approx(14_480, rel=1e-12)
    assert mathis_bytes_per_s(0.018, 1e-6) == pytest.approx(1448 / 0.018 * sqrt(1.5e6), rel=1e-12)
