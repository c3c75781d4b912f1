"""EOS lines: the same that Arista's own arista.avd prints for the same settings."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.deploy.network.eos import eos_text
from isthmus.deploy.network.roce import Roce

RoceOf = Callable[..., Roce]
NETWORKS = ("rate: 400 Gb/s, switch: 7060x6-64pe", "rate: 200 Gb/s, cables: [{kind: dr4, length: 40 m}]")


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("!")]


def structured(roce: Roce) -> dict[str, Any]:
    """The same settings in arista.avd's own terms."""
    marks, ecn = roce.marks, roce.ecn
    threshold = {
        "units": "kbytes",
        "min": int(ecn.kmin_bytes / 1e3),
        "max": int(ecn.kmax_bytes / 1e3),
        "max_probability": round(ecn.pmax * 100),
    }
    queues: list[dict[str, Any]] = [
        {
            "id": marks.data_priority,
            "bandwidth_percent": 50,
            "priority": "no priority",
            "random_detect": {"ecn": {"count": True, "threshold": threshold}},
        },
        {"id": marks.cnp_priority, "priority": "priority strict"},
    ]
    return {
        "hostname": "leaf",
        "qos": {
            "map": {
                "dscp": [
                    f"{marks.data_dscp} to traffic-class {marks.data_priority}",
                    f"{marks.cnp_dscp} to traffic-class {marks.cnp_priority}",
                ]
            }
        },
        "priority_flow_control": {
            "watchdog": {"timeout": "0.2", "recovery_time": "0.2", "polling_interval": "0.1", "action": "drop"}
        },
        "qos_profiles": [
            {
                "name": "ISTHMUS-ROCE",
                "trust": "dscp",
                "priority_flow_control": {"enabled": True, "priorities": [{"priority": marks.data_priority, "no_drop": True}]},
                "uc_tx_queues": queues,
            }
        ],
        "ethernet_interfaces": [
            {"name": f"Ethernet{port}/1", "mtu": 9214, "service_profile": "ISTHMUS-ROCE"} for port in range(1, roce.ports + 1)
        ],
    }


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.filterwarnings("ignore")
def test_arista_avd_validates_the_settings_and_prints_the_same_lines(make_roce: RoceOf, network: str) -> None:
    pyavd = pytest.importorskip("pyavd", reason="pyavd is not installed (150 MB; docs/decisions/0002-dependencies.md)")
    roce = make_roce(network)
    result = pyavd.validate_structured_config(structured(roce))
    assert not result.validation_result.violations, result.validation_result.violations
    theirs = [line for line in lines(pyavd.get_device_config(structured(roce))) if line != "hostname leaf"]
    assert lines(eos_text(roce)) == theirs


def test_the_file_says_that_no_device_has_seen_it(make_roce: RoceOf) -> None:
    assert "not validated on a device" in eos_text(make_roce(NETWORKS[0])).splitlines()[0]


def test_every_port_takes_the_profile(make_roce: RoceOf) -> None:
    text = eos_text(make_roce(NETWORKS[0]))
    assert len(re.findall(r"^interface Ethernet\d+/1\n   mtu 9214\n   service-profile ISTHMUS-ROCE$", text, re.M)) == 64


def test_thresholds_are_those_worked_out(make_roce: RoceOf) -> None:
    text = eos_text(make_roce(NETWORKS[1]))
    assert "random-detect ecn minimum-threshold 600 kbytes maximum-threshold 2400 kbytes max-mark-probability 20\n" in text
