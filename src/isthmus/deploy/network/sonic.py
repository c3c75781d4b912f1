"""SONiC: a config_db.json fragment for every switch of a RoCE region, and the reason behind each of its tables.

Table and field names: sonic-net/sonic-buildimage 086b03b, src/sonic-yang-models and files/build_templates/qos_config.j2. All
values are strings, as config_db holds them.
"""

import json
from math import ceil

from isthmus.deploy.marks import PRIORITIES
from isthmus.deploy.network.roce import HOST_MTU, PORT_MTU, Roce
from isthmus.deploy.settings import Setting
from isthmus.units import show_rate

__all__ = ["config_db", "sonic_settings", "sonic_text"]

_MAP = "ISTHMUS"
_PROFILE = "ISTHMUS_ROCE"
_PORTS_MOST = 32
_POLL_MS = 200
_YANG = "sonic-buildimage 086b03b, sonic-yang-models"
_TEMPLATE = "sonic-buildimage 086b03b, qos_config.j2"
_WATCHDOG = "sonic-utilities 691b1bb, pfcwd/main.py start_default"
_LUA = "sonic-swss e6b0c5b, buffer_headroom_mellanox.lua"

Table = dict[str, dict[str, str]]


def port_names(roce: Roce) -> list[str]:
    """Ethernet0, Ethernet8, ...: SONiC numbers a port by its first lane."""
    return [f"Ethernet{port * roce.lanes}" for port in range(roce.ports)]


def config_db(roce: Roce) -> dict[str, Table]:
    """The fragment: what `config load` merges into the switch's configuration."""
    marks, ports, data = roce.marks, port_names(roce), str(roce.marks.data_priority)
    same = {str(priority): str(priority) for priority in range(PRIORITIES)}
    groups = {str(priority): data if str(priority) == data else "0" for priority in range(PRIORITIES)}
    tables: dict[str, Table] = {
        "DSCP_TO_TC_MAP": {_MAP: {str(dscp): str(marks.priority(dscp)) for dscp in range(64)}},
        "TC_TO_QUEUE_MAP": {_MAP: same},
        "TC_TO_PRIORITY_GROUP_MAP": {_MAP: groups},
        "MAP_PFC_PRIORITY_TO_QUEUE": {_MAP: same},
        "SCHEDULER": {
            "isthmus.roce": {"type": "DWRR", "weight": "50"},
            "isthmus.rest": {"type": "DWRR", "weight": "50"},
            "isthmus.cnp": {"type": "STRICT"},
        },
        "WRED_PROFILE": {_PROFILE: _wred(roce)},
        "QUEUE": _queues(roce, ports),
        "PORT_QOS_MAP": {"global": {"dscp_to_tc_map": _MAP}, **{port: _port(roce) for port in ports}},
        "PFC_WD": _watchdog(ports),
        "CABLE_LENGTH": {"AZURE": {port: f"{ceil(roce.cable_m)}m" for port in ports}},
        "PORT": {port: {"mtu": str(PORT_MTU)} for port in ports},
    }
    return tables | (_dynamic(roce, ports) if roce.spectrum else {})


def _wred(roce: Roce) -> dict[str, str]:
    """One threshold for all colours: RoCE's packets are all green, and a policer may colour them."""
    ecn, fields = roce.ecn, {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        fields |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": f"{ecn.kmin_bytes:.0f}",
            f"{colour}_max_threshold": f"{ecn.kmax_bytes:.0f}",
            f"{colour}_drop_probability": f"{ecn.pmax * 100:.0f}",
        }
    return fields


def _queues(roce: Roce, ports: list[str]) -> Table:
    marks = roce.marks
    found: Table = {}
    for port in ports:
        found[f"{port}|0"] = {"scheduler": "isthmus.rest"}
        found[f"{port}|{marks.data_priority}"] = {"scheduler": "isthmus.roce", "wred_profile": _PROFILE}
        found[f"{port}|{marks.cnp_priority}"] = {"scheduler": "isthmus.cnp"}
    return found


def _port(roce: Roce) -> dict[str, str]:
    data = str(roce.marks.data_priority)
    maps = ("dscp_to_tc_map", "tc_to_queue_map", "tc_to_pg_map", "pfc_to_queue_map")
    found = {name: _MAP for name in maps} | {"pfc_enable": data, "pfcwd_sw_enable": data}
    return found | ({"pfc_to_pg_map": _MAP} if roce.spectrum else {})


def _times_ms(ports: int) -> tuple[int, int]:
    """Poll interval and detection time, stretched for every 32 ports begun as SONiC does: counters of more ports take longer."""
    stretch = max(1, ceil(ports / _PORTS_MOST))
    return min(1000, _POLL_MS * stretch), _POLL_MS * stretch


def _watchdog(ports: list[str]) -> Table:
    poll, detect = _times_ms(len(ports))
    each = {"action": "drop", "detection_time": str(detect), "restoration_time": str(detect)}
    return {"GLOBAL": {"POLL_INTERVAL": str(poll)}, **{port: dict(each) for port in ports}}


def _dynamic(roce: Roce, ports: list[str]) -> dict[str, Table]:
    """Tables of the dynamic buffer model, in which the switch sizes headroom itself from rate and cable length."""
    data = roce.marks.data_priority
    room = roce.headroom
    frame = room.port.lossless_mtu_bytes if room else 1024
    return {
        "DEVICE_METADATA": {"localhost": {"buffer_model": "dynamic"}},
        "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": {_MAP: {str(data): str(data)}},
        "LOSSLESS_TRAFFIC_PATTERN": {"AZURE": {"mtu": str(frame), "small_packet_percentage": "100"}},
        "DEFAULT_LOSSLESS_BUFFER_PARAMETER": {"AZURE": {"default_dynamic_th": "0"}},
        "BUFFER_PG": {f"{port}|{data}": {"profile": "NULL"} for port in ports},
    }


def sonic_text(roce: Roce) -> str:
    """The fragment as a file."""
    return json.dumps(config_db(roce), indent=2) + "\n"


def sonic_settings(roce: Roce) -> list[Setting]:
    """Why each table is as it is."""
    marks, ecn, (poll, detect) = roce.marks, roce.ecn, _times_ms(roce.ports)
    data, cnp = marks.data_priority, marks.cnp_priority
    found = [
        Setting(
            "DSCP_TO_TC_MAP",
            f"{marks.data_dscp} -> {data}, {marks.cnp_dscp} -> {cnp}, others -> 0",
            f"SONiC's own map makes DSCP 3 and 4 lossless and puts {marks.data_dscp} into class 1, lossy; routing protocols "
            "(CS6, 48) "
            "share the queue of CNPs",
            _TEMPLATE,
        ),
        Setting(
            "PORT_QOS_MAP pfc_enable, pfcwd_sw_enable",
            str(data),
            "one lossless priority, watched; every further one takes a headroom of its own on every port",
            _TEMPLATE,
        ),
        Setting(
            "TC_TO_PRIORITY_GROUP_MAP",
            f"{data} -> {data}, others -> 0",
            "only lossless traffic may use a lossless priority group",
            _TEMPLATE,
        ),
        Setting(
            "SCHEDULER, QUEUE",
            f"{data}: DWRR 50, 0: DWRR 50, {cnp}: STRICT",
            "half of a full port for each, all of it for one that is alone; a CNP that waits acts too late",
            "NVIDIA Cumulus Linux 5.14, RoCE: default ETS",
        ),
        Setting(
            f"WRED_PROFILE {_PROFILE}",
            f"Kmin {ecn.kmin_bytes:.0f}, Kmax {ecn.kmax_bytes:.0f}, {ecn.pmax * 100:.0f} %",
            ecn_reason(roce),
            ecn.source,
        ),
        Setting(
            "PFC_WD",
            f"poll {poll} ms, detect and restore {detect} ms, drop",
            f"{_POLL_MS} ms for every {_PORTS_MOST} ports begun; a storm of pauses is cut off at one queue before it stops "
            "the network",
            _WATCHDOG,
        ),
        Setting("CABLE_LENGTH", f"{ceil(roce.cable_m)}m", roce.cable_reason, _YANG),
        Setting(
            "PORT mtu", str(PORT_MTU), f"frames of the hosts' IP MTU {HOST_MTU} with Ethernet's 18 bytes and a VLAN tag", _YANG
        ),
    ]
    return [*found, *_headroom_settings(roce)]


def _headroom_settings(roce: Roce) -> list[Setting]:
    room, rate = roce.headroom, show_rate(roce.rate_bytes_per_s)
    if not roce.spectrum or room is None:
        reason = (
            f"{roce.asic}: its buffer cells are not in the catalogue; SONiC takes it from its own table by rate and CABLE_LENGTH"
        )
        return [Setting("headroom", "left to the switch", reason, "pg_profile_lookup.ini of the device in sonic-buildimage")]
    expect = f"`show buffer information` must then show xoff {room.xoff_bytes} for {rate}, {ceil(roce.cable_m)}m"
    return [
        Setting(
            "DEVICE_METADATA buffer_model; BUFFER_PG profile",
            "dynamic; NULL",
            f"the switch works its headroom out from rate and cable: {room.arithmetic}; {expect}",
            _LUA,
        ),
        Setting(
            "LOSSLESS_TRAFFIC_PATTERN",
            f"mtu {room.port.lossless_mtu_bytes}, small_packet_percentage 100",
            "a RoCE frame of RDMA MTU 4096; acknowledgements are the smallest packets, each in a cell of its own: the worst case",
            _LUA,
        ),
    ]


def ecn_reason(roce: Roce) -> str:
    """Where the thresholds come from, with the arithmetic that lowers them."""
    stated, most, rate = roce.ecn_stated, roce.ecn_most_bytes, show_rate(roce.rate_bytes_per_s)
    base = f"stated for {rate}: {stated.kmin_bytes / 1e3:g} kB, {stated.kmax_bytes / 1e3:g} kB"
    if most is None or roce.headroom is None or roce.switch is None:
        return f"{base}; whether marks come before pauses was not checked: the buffer of this switch is not known"
    size = roce.switch.figure("buffer").number
    bound = (
        f"marks before pauses with all {roce.ports} ports congested: Kmin < ({size / 1e6:.1f} MB - {roce.ports} x "
        f"{roce.headroom.xoff_bytes / 1e3:.1f} kB) / (2 x {roce.ports}) = {most / 1e3:.0f} kB (Zhu et al., SIGCOMM 2015, "
        "section 4)"
    )
    if most <= 0:
        return f"{base}; {bound}: the buffer does not hold the headroom of all ports, so pauses may come first"
    return f"{base}; {bound}" + (": both lowered in proportion" if most < stated.kmin_bytes else ": holds")
