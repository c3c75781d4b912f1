"""NVUE commands keep to the forms of Cumulus Linux's documentation; no device and no tool of its maker is at hand."""

import re
from collections.abc import Callable

import pytest

from isthmus.deploy.network.nvue import nvue_text
from isthmus.deploy.network.roce import Roce

RoceOf = Callable[..., Roce]
# CumulusNetworks/docs, content/cumulus-linux-514/Layer-1-and-Switch-Ports/Quality-of-Service: the commands' forms, restated.
FORMS = (
    r"nv set qos roce mode (lossless|lossy|lossless-single-ipool|lossy-multi-tc)",
    r"nv set qos mapping [\w-]+ trust (l2|l3|both|port)",
    r"nv set qos mapping [\w-]+ dscp [0-9,]+ switch-priority [0-7]",
    r"nv set qos egress-queue-mapping default-global switch-priority [0-7] traffic-class [0-7]",
    r"nv set qos pfc [\w-]+ switch-priority [0-7]",
    r"nv set qos pfc [\w-]+ cable-length \d+",
    r"nv set qos congestion-control [\w-]+ traffic-class [0-7](,[0-7])* (min-threshold|max-threshold|probability) \d+",
    r"nv set qos congestion-control [\w-]+ traffic-class [0-7](,[0-7])* (ecn|red) (enable|disable)",
    r"nv set qos pfc-watchdog (polling-interval|robustness) \d+",
    r"nv set interface swp\d+(-\d+)? qos pfc-watchdog",
    r"nv set interface swp\d+(-\d+)? link mtu \d+",
    r"nv config apply -y",
)
NETWORK = "rate: 400 Gb/s, switch: sn5600, cables: [{kind: dr4, length: 40 m}]"


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("nv ")]


def test_every_command_has_a_documented_form(make_roce: RoceOf) -> None:
    for command in commands(nvue_text(make_roce(NETWORK))):
        assert any(re.fullmatch(form, command) for form in FORMS), command


def test_all_else_is_a_comment_or_stops_at_an_error(make_roce: RoceOf) -> None:
    rest = [line for line in nvue_text(make_roce(NETWORK)).splitlines() if line and not line.startswith(("nv ", "#"))]
    assert rest == ["set -eu"]


def test_thresholds_are_bytes_and_the_cable_is_metres(make_roce: RoceOf) -> None:
    found = commands(nvue_text(make_roce(NETWORK)))
    assert "nv set qos congestion-control default-global traffic-class 3 min-threshold 800000" in found
    assert "nv set qos congestion-control default-global traffic-class 3 max-threshold 3200000" in found
    assert "nv set qos pfc default-global cable-length 40" in found
    assert "nv set interface swp1-64 qos pfc-watchdog" in found


def test_what_is_set_is_applied_last(make_roce: RoceOf) -> None:
    assert commands(nvue_text(make_roce(NETWORK)))[-1] == "nv config apply -y"


@pytest.mark.parametrize("word", ["not validated on a device", "hpcc", "286,720 B"])
def test_reasons_stand_beside_the_commands(make_roce: RoceOf, word: str) -> None:
    comments = " ".join(line[2:] for line in nvue_text(make_roce(NETWORK)).splitlines() if line.startswith("# "))
    assert word.lower() in comments.lower()
