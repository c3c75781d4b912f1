"""The whole bundle: what is in it for every kind of network, held word for word in golden.txt, and its check on disk.

golden.txt is made by `ISTHMUS_GOLDEN=write pytest tests/deploy/network/test_bundle.py` from FABRIC below; a change of words or
numbers shows as a difference there.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.deploy.network import check, pieces
from isthmus.deploy.request import Request
from isthmus.deploy.settings import settings_for
from isthmus.plan import RegionGroup

GOLDEN = Path(__file__).parent / "golden.txt"
EXAMPLES = Path(__file__).parents[3] / "examples"
Write = Callable[..., tuple[Path, Request]]
# A switch that nobody names has as many ports as there are adapters, and three systems it may run; the other one is known.
FABRIC = """name: East - West
regions:
  east:
    nodes: [{count: 2, kind: hgx-h100, nics: {count: 1, kind: connectx-7}}]
    network: {kind: roce, rate: 400 Gb/s}
  west:
    nodes: [{count: 2, kind: hgx-h100, nics: {count: 4, kind: connectx-7}}]
    network:
      {kind: roce, rate: 400 Gb/s, switch: sn5600, system: cumulus, cables: [{kind: dr4, length: 40 m}]}
wan:
  - {between: [east, west], rate: 100 Gb/s, rtt: 18 ms, jitter: 1 ms, loss: 1e-6, distance: 1300 km}
"""


def test_every_word_of_a_bundle_is_the_one_in_the_golden_file(make_request: Callable[..., Request]) -> None:
    text = "".join(f"=== {piece.path}{' *' if piece.executable else ''}\n{piece.text}" for piece in pieces(make_request(FABRIC)))
    if os.environ.get("ISTHMUS_GOLDEN") == "write":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_every_file_for_a_device_says_that_none_has_seen_it(make_request: Callable[..., Request]) -> None:
    for piece in pieces(make_request(FABRIC)):
        if not piece.path.endswith((".json", "settings.md", "isthmus-host.service")):  # JSON has no comments: README.md says it
            assert "not validated on a device" in piece.text.lower(), piece.path


@pytest.mark.parametrize(
    ("example", "region", "words"),
    [
        ("shenzhen-shanghai", "shenzhen", "InfiniBand: no RoCE files. Its links give credits before anything is sent"),
        ("one-node", "lab", "One node: no network between nodes."),
    ],
)
def test_a_region_without_roce_gets_no_switch_files_and_a_sentence_why(
    make_request: Callable[..., Request], example: str, region: str, words: str
) -> None:
    found = {piece.path: piece.text for piece in pieces(make_request((EXAMPLES / f"{example}.yaml").read_text()))}
    assert not [path for path in found if "/switches/" in path]
    assert words in found[f"{region}/settings.md"]
    assert "mlnx_qos" not in found[f"{region}/hosts/isthmus-host.sh"]


def test_one_region_needs_no_tcp_settings(make_request: Callable[..., Request]) -> None:
    found = {piece.path: piece.text for piece in pieces(make_request((EXAMPLES / "clos-1024.yaml").read_text()))}
    assert not [path for path in found if path.endswith("90-isthmus.conf")]
    assert "sysctl" not in found["ulanqab/hosts/isthmus-host.sh"]


def test_jobs_mark_their_packets_as_switches_and_adapters_expect(make_request: Callable[..., Request]) -> None:
    request = make_request(FABRIC)
    for site in request.sites.sites:
        values = {setting.name: setting.value for setting in settings_for(site, request.plan)}
        texts = [piece.text for piece in pieces(request) if piece.path == f"{site.name}/hosts/isthmus-host.sh"]
        assert f'cma_roce_tos -d "$dev" -t {values["NCCL_IB_TC"]}\n' in texts[0]


def test_what_was_written_passes_its_check(write: Write) -> None:
    folder, request = write(FABRIC)
    assert check(folder, request) == []


def test_a_switch_that_maps_dscp_otherwise_than_adapters_is_found(write: Write) -> None:
    folder, request = write(FABRIC)
    for path, old, new in (
        ("west/switches/cumulus.sh", "dscp 26 switch-priority 3", "dscp 26 switch-priority 4"),
        ("east/switches/eos.conf", "qos map dscp 26 to", "qos map dscp 24 to"),
        ("east/hosts/isthmus-host.sh", "--dscp2prio set,48,6", "--dscp2prio set,48,7"),
    ):
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))
    said = [str(finding) for finding in check(folder, request)]
    assert any("cumulus.sh: puts DSCP 26 on priority 4, adapters and NCCL (NCCL_IB_TC=106) on 3" in each for each in said)
    assert any("eos.conf: does not mark DSCP 26 and 48" in each for each in said)
    assert any("isthmus-host.sh: puts DSCP 48 on priority 7, adapters and NCCL (NCCL_IB_TC=106) on 6" in each for each in said)


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("PFC_WD", "Ethernet0", "detection_time"), "100", "PFC_WD|Ethernet0: detection_time 100 is below POLL_INTERVAL 200"),
        (("WRED_PROFILE", "ISTHMUS_ROCE", "red_max_threshold"), "1", "red_max_threshold is below red_min_threshold"),
        (("QUEUE", "Ethernet0|3", "scheduler"), "x", "QUEUE|Ethernet0|3: no SCHEDULER is called 'x'"),
        (("DSCP_TO_TC_MAP", "ISTHMUS", "26"), "4", "puts DSCP 26 on priority 4"),
        (("PORT", "Ethernet0", "mtu"), 9100, "PORT|Ethernet0 mtu is 9100"),
    ],
)
def test_sonics_rules_are_checked_without_sonic(write: Write, where: tuple[str, str, str], value: object, says: str) -> None:
    folder, request = write(FABRIC)
    path = folder / "east/switches/sonic-config_db.json"
    tables = json.loads(path.read_text())
    tables[where[0]][where[1]][where[2]] = value
    path.write_text(json.dumps(tables))
    assert says in " ".join(str(finding) for finding in check(folder, request))
    path.write_text("{")
    assert "is not JSON" in str(check(folder, request)[0])


def test_rdma_between_regions_in_the_lossless_class_is_warned_of(write: Write) -> None:
    folder, request = write(FABRIC, traffic_class=106)
    assert request.plan.strategy.region_group == RegionGroup(traffic_class=106)
    said = [str(finding) for finding in check(folder, request)]
    assert len(said) == 1
    assert said[0].startswith("warning: ")
    assert "region_group.traffic_class 106 is DSCP 26, lossless on the regions' switches" in said[0]
    assert check(*write(FABRIC, traffic_class=136)) == []
