"""SONiC's JSON: complete in itself, and accepted by SONiC's own YANG models where they are at hand.

The models are those of sonic-net/sonic-buildimage: ISTHMUS_SONIC_YANG names its folder src/sonic-yang-models. yanglint is
Debian's libyang2-tools.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

from isthmus.deploy.marks import Marks
from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.sonic import config_db, sonic_settings, sonic_text

RoceOf = Callable[..., Roce]
SN5600 = "rate: 400 Gb/s, switch: sn5600, cables: [{kind: dr4, length: 40 m}]"
NETWORKS = (SN5600, "rate: 400 Gb/s, switch: sn4700, cables: [{kind: dr4, length: 2.5 m}]", "rate: 400 Gb/s, switch: 7060x6-64pe")

# Table -> module and key leaves, for SONiC's YANG JSON; tables of maps nest one more list.
LISTS = {
    "SCHEDULER": ("sonic-scheduler", ("name",)),
    "WRED_PROFILE": ("sonic-wred-profile", ("name",)),
    "QUEUE": ("sonic-queue", ("ifname", "qindex")),
    "PORT_QOS_MAP": ("sonic-port-qos-map", ("ifname",)),
    "PFC_WD": ("sonic-pfcwd", ("ifname",)),
    "PORT": ("sonic-port", ("name",)),
    "BUFFER_PG": ("sonic-buffer-pg", ("port", "pg_num")),
    "LOSSLESS_TRAFFIC_PATTERN": ("sonic-lossless-traffic-pattern", ("name",)),
    "DEFAULT_LOSSLESS_BUFFER_PARAMETER": ("sonic-default-lossless-buffer-parameter", ("name",)),
}
MAPS = {
    "DSCP_TO_TC_MAP": ("sonic-dscp-tc-map", "dscp", "tc"),
    "TC_TO_QUEUE_MAP": ("sonic-tc-queue-map", "tc", "qindex"),
    "TC_TO_PRIORITY_GROUP_MAP": ("sonic-tc-priority-group-map", "tc", "pg"),
    "MAP_PFC_PRIORITY_TO_QUEUE": ("sonic-pfc-priority-queue-map", "pfc_priority", "qindex"),
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": ("sonic-pfc-priority-priority-group-map", "pfc_priority", "pg"),
    "CABLE_LENGTH": ("sonic-cable-length", "port", "length"),
}
MODULES = sorted({module for module, *_ in [*LISTS.values(), *MAPS.values()]} | {"sonic-device_metadata"})
AS_TEXT = ("threshold", "drop_probability", "pfc_", "pfcwd", "profile", "lanes", "dscp", "qindex", "pg", "length")


def as_yang(tables: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table, rows in tables.items():
        if table == "DEVICE_METADATA":
            found["sonic-device_metadata:sonic-device_metadata"] = {table: rows}
        elif table in MAPS:
            module, key, value = MAPS[table]
            entries = [{"name": row, table: [typed({key: a, value: b}) for a, b in pairs.items()]} for row, pairs in rows.items()]
            found[f"{module}:{module}"] = {table: {f"{table}_LIST": entries}}
        else:
            module, keys = LISTS[table]
            entries = [dict(zip(keys, row.split("|"), strict=True)) | typed(fields) for row, fields in rows.items()]
            found[f"{module}:{module}"] = {table: {f"{table}_LIST": entries}}
    return found


def typed(fields: dict[str, str]) -> dict[str, Any]:
    """Numbers up to 32 bits and booleans stand bare in YANG's JSON, 64-bit numbers and strings in quotes (RFC 7951)."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        number = re.fullmatch(r"-?\d+", value) and not any(word in name for word in AS_TEXT)
        found[name] = int(value) if number else value == "true" if value in ("true", "false") else value
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("yanglint") is None:
        pytest.skip("yanglint is not installed (Debian: libyang2-tools)")
    if "ISTHMUS_SONIC_YANG" not in os.environ:
        pytest.skip("ISTHMUS_SONIC_YANG does not name src/sonic-yang-models of a sonic-buildimage checkout")
    source, folder = Path(os.environ["ISTHMUS_SONIC_YANG"]), tmp_path_factory.mktemp("yang")
    for path in (source / "yang-models").glob("*.yang"):
        shutil.copy(path, folder)
    for path in (source / "yang-templates").glob("*.yang.j2"):
        text = jinja2.Template(path.read_text(encoding="utf-8"), trim_blocks=True).render(yang_model_type="py")
        (folder / path.name.removesuffix(".j2")).write_text(text, encoding="utf-8")
    return folder


def yanglint(models: Path, tables: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    # The switch has its ports already; the fragment adds their MTU.
    ports = {name: {"lanes": "1,2,3,4,5,6,7,8", "speed": "400000"} | fields for name, fields in tables["PORT"].items()}
    path = folder / "config.json"
    path.write_text(json.dumps(as_yang(tables | {"PORT": ports})), encoding="utf-8")
    modules = [str(models / f"{module}.yang") for module in MODULES]
    command = ["yanglint", "-p", str(models), "-f", "json", "-t", "config", *modules, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("network", NETWORKS)
def test_sonics_yang_models_accept_it(models: Path, make_roce: RoceOf, network: str, tmp_path: Path) -> None:
    result = yanglint(models, config_db(make_roce(network)), tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("WRED_PROFILE", "ISTHMUS_ROCE", "green_max_threshold"), "1", "Green max threshold must be greater than or equal"),
        (("PFC_WD", "Ethernet0", "detection_time"), "100", "detection_time must be greater than or equal to POLL_INTERVAL"),
        (("QUEUE", "Ethernet0|3", "scheduler"), "nobody", "Invalid"),
        (("LOSSLESS_TRAFFIC_PATTERN", "AZURE", "mtu"), "9999", "Invaild MTU"),
    ],
)
def test_the_models_refuse_what_is_broken(  # so that acceptance above means something
    models: Path, make_roce: RoceOf, tmp_path: Path, where: tuple[str, str, str], value: str, says: str
) -> None:
    tables = config_db(make_roce(SN5600))
    table, row, field = where
    tables[table][row][field] = value
    result = yanglint(models, tables, tmp_path)
    assert result.returncode != 0
    assert says in result.stderr


@pytest.mark.parametrize("network", NETWORKS)
def test_every_value_is_a_string_and_every_reference_has_its_row(make_roce: RoceOf, network: str) -> None:
    tables = json.loads(sonic_text(make_roce(network)))
    assert all(isinstance(value, str) for rows in tables.values() for fields in rows.values() for value in fields.values())
    for fields in tables["PORT_QOS_MAP"].values():
        for field, table in (
            ("dscp_to_tc_map", "DSCP_TO_TC_MAP"),
            ("tc_to_queue_map", "TC_TO_QUEUE_MAP"),
            ("tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP"),
            ("pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE"),
            ("pfc_to_pg_map", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
        ):
            assert field not in fields or fields[field] in tables[table]
    ports = set(tables["PORT"])
    assert {row.split("|")[0] for row in tables["QUEUE"]} == ports == set(tables["PFC_WD"]) - {"GLOBAL"}
    assert set(tables["CABLE_LENGTH"]["AZURE"]) == ports


def test_ports_are_numbered_by_their_first_lane(make_roce: RoceOf) -> None:
    # The SN5600's port_config.ini: Ethernet0, Ethernet8, ... Ethernet504.
    assert list(config_db(make_roce(SN5600))["PORT"])[:2] == ["Ethernet0", "Ethernet8"]
    assert list(config_db(make_roce(SN5600))["PORT"])[-1] == "Ethernet504"


def test_only_data_is_lossless_and_only_26_and_48_leave_the_common_queue(make_roce: RoceOf) -> None:
    tables = config_db(make_roce(SN5600))
    assert {dscp: tc for dscp, tc in tables["DSCP_TO_TC_MAP"]["ISTHMUS"].items() if tc != "0"} == {"26": "3", "48": "6"}
    assert {tc: pg for tc, pg in tables["TC_TO_PRIORITY_GROUP_MAP"]["ISTHMUS"].items() if pg != "0"} == {"3": "3"}
    assert {fields["pfc_enable"] for port, fields in tables["PORT_QOS_MAP"].items() if port != "global"} == {"3"}


def test_other_marks_move_the_whole_configuration(make_roce: RoceOf) -> None:
    tables = config_db(make_roce(SN5600, marks=Marks(data_dscp=34)))
    assert {dscp: tc for dscp, tc in tables["DSCP_TO_TC_MAP"]["ISTHMUS"].items() if tc != "0"} == {"34": "3", "48": "6"}


def test_the_watchdog_is_stretched_for_every_32_ports_as_sonic_does(make_roce: RoceOf) -> None:
    # sonic-utilities pfcwd/main.py: 200 ms x ((ports - 1) // 32 + 1).
    many, few = (config_db(make_roce(network))["PFC_WD"] for network in NETWORKS[:2])
    assert (many["GLOBAL"]["POLL_INTERVAL"], many["Ethernet0"]["detection_time"]) == ("400", "400")
    assert (few["GLOBAL"]["POLL_INTERVAL"], few["Ethernet0"]["restoration_time"]) == ("200", "200")


def test_cable_lengths_are_whole_metres_and_never_too_short(make_roce: RoceOf) -> None:
    assert set(config_db(make_roce(NETWORKS[1]))["CABLE_LENGTH"]["AZURE"].values()) == {"3m"}


def test_chips_that_size_headroom_themselves_get_the_dynamic_model_others_do_not(make_roce: RoceOf) -> None:
    spectrum, tomahawk = config_db(make_roce(SN5600)), config_db(make_roce(NETWORKS[2]))
    assert spectrum["DEVICE_METADATA"]["localhost"]["buffer_model"] == "dynamic"
    assert spectrum["BUFFER_PG"]["Ethernet0|3"] == {"profile": "NULL"}
    assert not {"DEVICE_METADATA", "BUFFER_PG"} & set(tomahawk)


def test_every_setting_has_a_reason_and_a_source(make_roce: RoceOf) -> None:
    for network in NETWORKS:
        assert all(each.reason and each.source and each.value for each in sonic_settings(make_roce(network)))


def test_the_reason_for_headroom_shows_its_arithmetic_and_what_the_switch_must_say(make_roce: RoceOf) -> None:
    reasons = " ".join(each.reason for each in sonic_settings(make_roce(SN5600)))
    assert "4,174 + 3 x (frame 9,100 + cable 20,202 + MAC and PHY 819 + peer 57,920 + tile 6,000) -> 286,720 B" in reasons
    assert "must then show xoff 286720 for 400 Gb/s, 40m" in reasons
