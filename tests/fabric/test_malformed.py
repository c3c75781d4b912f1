"""Acceptance A7, what a fabric says: each fault ends with exit 2, place, cause and hint."""

from collections.abc import Callable

import pytest

from isthmus.fabric import parse_fabric

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


def edit(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


# name, file, what follows "error: f.yaml", hint
CASES: list[tuple[str, str | bytes, str, str]] = [
    (
        "a wan rate in metres",
        edit("rate: 100 Gb/s", "rate: 100 km"),
        ":12: rate: '100 km' has no known unit: 'km'",
        "write a rate such as '100 Gb/s'",
    ),
    (
        "a wan rate without a unit",
        edit("rate: 100 Gb/s", "rate: 100"),
        ":12: rate: 100 has no unit",
        "write a rate such as '100 Gb/s'",
    ),
    (
        "a unit in the wrong case",
        edit("rate: 100 Gb/s", "rate: 100 GB/S"),
        ":12: rate: '100 GB/S' has no known unit: 'GB/S'",
        "did you mean Gb/s or GB/s? (b is a bit, B a byte)",
    ),
    (
        "a round trip without a unit",
        edit("rtt: 18 ms", "rtt: 18"),
        ":12: rtt: 18 has no unit",
        "write a time such as '18 ms'",
    ),
    (
        "a round trip that is no number",
        edit("rtt: 18 ms", "rtt: soon"),
        ":12: rtt: 'soon' is not a time",
        "write a time such as '18 ms'",
    ),
    (
        "a round trip of zero",
        edit("rtt: 18 ms", "rtt: 0 ms"),
        ":12: rtt: found '0 ms', expected more than 0",
        "rtt: Round trip of the idle link, such as 18 ms.",
    ),
    (
        "a negative round trip",
        edit("rtt: 18 ms", "rtt: -18 ms"),
        ":12: rtt: found '-18 ms', expected more than 0",
        "rtt: Round trip of the idle link, such as 18 ms.",
    ),
    (
        "a rate of zero",
        edit("rate: 100 Gb/s", "rate: 0 Gb/s"),
        ":12: rate: found '0 Gb/s', expected more than 0",
        "rate: IP bytes per direction that the line carries, such as 100 Gb/s.",
    ),
    (
        "a rate beyond numbers",
        edit("rate: 100 Gb/s", "rate: 1e999 Gb/s"),
        ":12: rate: '1e999 Gb/s' is too large",
        "write a rate such as '100 Gb/s'",
    ),
    (
        "an infinite rate",
        edit("rate: 100 Gb/s", "rate: .inf"),
        ":12: rate: inf is not a finite number",
        "write a rate such as '100 Gb/s'",
    ),
    (
        "a loss that is no number",
        edit("rtt: 18 ms", "rtt: 18 ms, loss: .nan"),
        ":12: loss: nan is not a finite number",
        "write a fraction such as '0.1%'",
    ),
    (
        "a loss above one",
        edit("rtt: 18 ms", "rtt: 18 ms, loss: 1.5"),
        ":12: loss: found 1.5, expected less than 1",
        "loss: Share of 1,500-byte packets lost, one way: from 0 to below 1, or in %.",
    ),
    (
        "a loss of two hundred percent",
        edit("rtt: 18 ms", "rtt: 18 ms, loss: 200%"),
        ":12: loss: found '200%', expected less than 1",
        "loss: Share of 1,500-byte packets lost, one way: from 0 to below 1, or in %.",
    ),
    (
        "a loss with a unit",
        edit("rtt: 18 ms", "rtt: 18 ms, loss: 1 ms"),
        ":12: loss: '1 ms' has no known unit: 'ms'",
        "write a fraction such as '0.1%'",
    ),
    (
        "a boolean as a loss",
        edit("rtt: 18 ms", "rtt: 18 ms, loss: yes"),
        ":12: loss: found true, a truth value",
        "write numbers in digits, put text in quotes",
    ),
    (
        "a negative jitter",
        edit("rtt: 18 ms", "rtt: 18 ms, jitter: -1 ms"),
        ":12: jitter: found '-1 ms', expected at least 0",
        "jitter: Peak deviation of the one-way delay, such as 1 ms.",
    ),
    (
        "a negative count",
        edit("count: 2", "count: -2"),
        ":5: count: found -2, expected at least 1",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "a count of zero",
        edit("count: 2", "count: 0"),
        ":5: count: found 0, expected at least 1",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "a count beyond the limit",
        edit("count: 2", "count: 1000000"),
        ":5: count: found 1000000, expected at most 100000",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "a fractional count",
        edit("count: 2", "count: 2.5"),
        ":5: count: found 2.5, expected a whole number",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "a word as a count",
        edit("count: 2", "count: two"),
        ":5: count: found 'two', expected a whole number",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "an unknown node kind",
        edit("kind: hgx-h100", "kind: hgx-h101"),
        ":5: unknown node kind 'hgx-h101'",
        "did you mean 'hgx-h100'?",
    ),
    (
        "an unknown GPU",
        edit("kind: hgx-h100", "kind: hgx-h100, gpu: h100-smx5"),
        ":5: unknown GPU 'h100-smx5'",
        "did you mean 'h100-sxm5'?",
    ),
    (
        "an unknown adapter",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {count: 4, kind: connectx7}"),
        ":5: unknown network adapter 'connectx7'",
        "did you mean 'connectx-7'?",
    ),
    (
        "an unknown switch",
        edit("switch: qm9700", "switch: qm9900"),
        ":6: unknown switch 'qm9900'",
        "did you mean 'qm9700'?",
    ),
    (
        "an unknown cable",
        edit("switch: qm9700", "switch: qm9700, cables: [{kind: passive-coper, length: 2 m}]"),
        ":6: unknown cable 'passive-coper'",
        "did you mean 'passive-copper'?",
    ),
    (
        "an unknown network kind",
        edit("kind: infiniband", "kind: infinband"),
        ":6: kind: found 'infinband', expected one of infiniband, roce, ethernet, efa, slingshot",
        "did you mean 'infiniband'?",
    ),
    (
        "an unknown shape",
        edit("switch: qm9700", "switch: qm9700, shape: fat-tree"),
        ":6: shape: found 'fat-tree', expected one of none, single-switch, clos-2, clos-3, dragonfly+, torus",
        "shape: If left out: the smallest Clos that the switch can build; one switch where none is named.",
    ),
    (
        "an unknown city",
        edit("city: Shenzhen", "city: Shenzen"),
        ":4: unknown city 'Shenzen'",
        "did you mean 'Shenzhen'?",
    ),
    (
        "an unknown transport",
        edit("rtt: 18 ms", "rtt: 18 ms, transport: nvlink"),
        ":12: transport: found 'nvlink', expected one of tcp, rdma",
        "transport: What crosses the link: tcp or rdma.",
    ),
    (
        "an unknown link class",
        edit("rtt: 18 ms", "rtt: 18 ms, class: dark-fiber"),
        ":12: class: found 'dark-fiber', expected one of dark-fibre, leased-wave, mpls, internet, vpc",
        "did you mean 'dark-fibre'?",
    ),
    (
        "a bad slot",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {slot: 5.0x16}"),
        ":5: slot: found '5.0x16', expected text that matches ^[1-6]\\.0 x(1|2|4|8|16|32)$",
        "slot: PCIe slot each adapter sits in, such as 5.0 x16.",
    ),
    (
        "a misspelt key of a link",
        edit("rtt: 18 ms", "rrt: 18 ms"),
        ":12: unknown key 'rrt' (1 more fault in this file)",
        "did you mean 'rtt'?",
    ),
    (
        "a misspelt key of a region",
        edit("    network:", "    netwrok:"),
        ":6: unknown key 'netwrok'",
        "did you mean 'network'?",
    ),
    (
        "a misspelt key of adapters",
        edit("kind: hgx-h100", "kind: hgx-h100, nics: {cuont: 4}"),
        ":5: unknown key 'cuont'",
        "did you mean 'count'?",
    ),
    (
        "a missing network",
        edit("    network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}\n", ""),
        ":3: the key 'network' is missing: 2 nodes need one to join them",
        "such as network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}",
    ),
    (
        "adapters without a kind",
        edit("kind: hgx-h100", "kind: biren-br100-8, nics: {count: 8}"),
        ":5: the key 'kind' is missing: biren-br100-8 has no adapters of its own",
        "state both, such as nics: {count: 8, kind: connectx-7}",
    ),
    (
        "a region without adapters",
        edit("kind: hgx-h100", "kind: biren-br100-8"),
        ":5: nodes to be joined have no adapter",
        "state nics: {count: ..., kind: ...}",
    ),
    (
        "a GPU without links on NVSwitch",
        edit("kind: hgx-h100", "kind: hgx-h100, gpu: l40s"),
        ":5: l40s has no links for the wiring 'nvswitch'",
        "write wiring: pcie, or name another GPU",
    ),
    (
        "GPUs without wiring",
        edit("kind: hgx-h100", "kind: hgx-h100, wiring: none"),
        ":5: 8 GPUs without any wiring between them",
        "write pcie where they share only the host",
    ),
    (
        "no nodes",
        edit("nodes: [{count: 2, kind: hgx-h100}]", "nodes: []"),
        ":5: nodes: found an empty list, expected at least 1 entry",
        "nodes: Groups of identical nodes, such as [{count: 2, kind: hgx-h100}].",
    ),
    (
        "no regions",
        "name: None\nregions: {}\n",
        ":2: regions: found no keys, expected at least 1 entry",
        "regions: Name of each region, and under it nodes, network and city.",
    ),
    (
        "a region no link joins",
        GOOD.replace("wan:", "  north:\n    nodes: [{count: 1, kind: hgx-h100}]\nwan:"),
        ":11: no link joins the region 'north' to 'west'",
        "add to wan: {between: [west, north], rate: ..., rtt: ...}",
    ),
    (
        "two regions without a wan",
        GOOD[: GOOD.index("wan:")],
        ":7: no link joins the region 'east' to 'west'",
        "add to wan: {between: [west, east], rate: ..., rtt: ...}",
    ),
    (
        "a link to an unknown region",
        edit("between: [west, east]", "between: [west, eest]"),
        ":12: the link joins an unknown region 'eest'",
        "did you mean 'west'?",
    ),
    (
        "a link from a region to itself",
        edit("between: [west, east]", "between: [west, west]"),
        ":12: the link joins 'west' to itself",
        "a region's own network is described under its `network`",
    ),
    (
        "a link of three ends",
        edit("between: [west, east]", "between: [west, east, west]"),
        ":12: between: found a list, expected at most 2 entries",
        "between: Names of the two regions, such as [west, east].",
    ),
    (
        "two links between one pair",
        GOOD + "  - {between: [east, west], rate: 1 Gb/s, rtt: 18 ms}\n",
        ":13: a second link between 'east' and 'west'",
        "the first is at line 12; write one link with the rate of both together",
    ),
    (
        "a region with a bad name",
        edit("  east:", "  'ea st':"),
        ":7: the name 'ea st' is not allowed",
        "use letters, digits, dots, hyphens and underscores",
    ),
]


@pytest.mark.parametrize(("body", "found", "hint"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_malformed_fabric_is_refused_with_place_cause_and_hint(
    body: str | bytes, found: str, hint: str, refuse: Callable[[str | bytes | None], str]
) -> None:
    assert refuse(body) == f"error: f.yaml{found}\n  hint: {hint}\n"


def test_the_file_that_the_cases_damage_is_good() -> None:
    assert parse_fabric(GOOD, "f.yaml").gpus == 32
