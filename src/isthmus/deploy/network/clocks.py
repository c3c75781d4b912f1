"""Clocks: chrony for every node, and PTP (ptp4l, phc2sys) for those that need less than a microsecond.

isthmus itself needs none of it to train; one-way delays of `isthmus doctor`, logs of regions side by side and profiles do.
Sources: chrony.conf(5) 4.3, ptp4l(8) and phc2sys(8) of linuxptp 3.1.1, linuxptp 4's config.c for the names it renamed.
"""

from dataclasses import dataclass
from typing import Literal

from isthmus.deploy.network.shown import NOT_VALIDATED, noted
from isthmus.deploy.settings import Setting

__all__ = ["LINUXPTP", "Role", "chrony_client", "chrony_server", "phc2sys_unit", "ptp_settings", "ptp_text"]

Role = Literal["grandmaster", "boundary", "client"]
LINUXPTP = (3, 4)
"""Major versions that differ in the names of options."""
_CHRONY = "chrony.conf(5)"
_PTP = "ptp4l(8)"
_IEEE = "IEEE 1588-2019, tables 4 and 5"


@dataclass(frozen=True, slots=True)
class _Names:
    server_only: str
    client_only: str


_NAMES = {3: _Names("masterOnly", "slaveOnly"), 4: _Names("serverOnly", "clientOnly")}


def ptp_settings(role: Role, linuxptp: int) -> list[Setting]:
    """Options of ptp4l's [global] section for one kind of clock."""
    names = _NAMES[linuxptp]
    common = [
        Setting(
            "domainNumber",
            "24",
            "the domain of G.8275.1: apart from PTP that others may run (0)",
            "ITU-T G.8275.1",
        ),
        Setting("network_transport", "L2", "frames to the next clock only: nothing routes PTP past a boundary clock", _PTP),
        Setting("time_stamping", "hardware", "stamps of the adapter, not of the driver: tens of ns in place of tens of us", _PTP),
        Setting("logSyncInterval", "-4", "16 a second, as G.8275.1 has it", "ITU-T G.8275.1, linuxptp's example"),
        Setting("logMinDelayReqInterval", "-4", "as often as the other way", "ITU-T G.8275.1, linuxptp's example"),
        Setting(
            "logAnnounceInterval",
            "-3",
            "8 a second: another grandmaster takes over within half a second",
            "ITU-T G.8275.1, linuxptp's example",
        ),
        Setting("tx_timestamp_timeout", "10", "ms; the 1 ms it comes with is too short for busy adapters", _PTP),
    ]
    match role:
        case "grandmaster":
            return [
                *common,
                Setting(
                    "clockClass", "6", "locked to a primary reference, such as GNSS: set this on no clock that is not", _IEEE
                ),
                Setting("clockAccuracy", "0x21", "within 100 ns of UTC", _IEEE),
                Setting("priority1", "127", "ahead of every clock that keeps its 128", _PTP),
                Setting(names.server_only, "1", "never follows anybody, even when it loses its reference", _PTP),
            ]
        case "boundary":
            return [
                *common,
                Setting(
                    "boundary_clock_jbod", "1", "ports on adapters whose clocks differ; phc2sys -a keeps these together", _PTP
                ),
            ]
        case "client":
            return [*common, Setting(names.client_only, "1", "a node follows and never leads", _PTP)]


def ptp_text(role: Role, linuxptp: int, interfaces: tuple[str, ...]) -> str:
    """A configuration file of ptp4l; a boundary clock needs two interfaces or more."""
    assert role != "boundary" or len(interfaces) > 1, interfaces
    lines = [f"# ptp4l, {role}, linuxptp {linuxptp}.x; {NOT_VALIDATED}", "[global]"]
    for setting in ptp_settings(role, linuxptp):
        lines += [*noted(setting), f"{setting.name} {setting.value}"]
    for name in interfaces:
        lines += ["", f"[{name}]"]
    return "\n".join(lines) + "\n"


def phc2sys_unit(role: Role) -> str:
    """A systemd unit: the system's clock follows the adapter's (client, boundary), or leads it (grandmaster)."""
    after = "-a -r -r" if role == "grandmaster" else "-a -r"
    why = (
        "The second -r lets the system clock, which chrony keeps by GNSS, lead the adapter's."
        if role == "grandmaster"
        else "The system clock follows; chrony must not discipline it at the same time (stop it, or give it no sources)."
    )
    return f"""# {why} Source: phc2sys(8). {NOT_VALIDATED.capitalize()}.
[Unit]
Description=System clock and PTP hardware clocks ({role})
After=ptp4l.service
Requires=ptp4l.service

[Service]
ExecStart=/usr/sbin/phc2sys {after} -n 24
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""


def chrony_server(clients: tuple[str, ...], upstream: str = "pool 2.pool.ntp.org iburst maxsources 4") -> str:
    """The region's time server: it follows `upstream` and answers `clients`."""
    settings = [
        ("", Setting("pool", upstream, "four public servers; put your own, or GNSS (refclock), in their place", _CHRONY)),
        *[("allow", Setting("allow", each, "this region's nodes, nobody else", _CHRONY)) for each in clients],
        (
            "local",
            Setting(
                "local", "stratum 10", "goes on answering when upstream is gone: nodes stay together, if not with UTC", _CHRONY
            ),
        ),
    ]
    return _chrony("time server of the region", settings)


def chrony_client(server: str) -> str:
    """A node that follows the region's time server."""
    how = "iburst xleave minpoll 0 maxpoll 4"
    why = "stamps of its own answers (xleave), 1 to 16 s apart: the LAN carries it, and noise averages out"
    return _chrony("node", [("server", Setting("server", f"{server} {how}", why, _CHRONY))])


def _chrony(what: str, own: list[tuple[str, Setting]]) -> str:
    common = [
        ("hwtimestamp", Setting("hwtimestamp", "*", "stamps by the adapter wherever it can", _CHRONY)),
        ("makestep", Setting("makestep", "1 3", "steps only at start: a jump later would tear profiles and logs apart", _CHRONY)),
        ("driftfile", Setting("driftfile", "/var/lib/chrony/chrony.drift", "a restart begins with the known drift", _CHRONY)),
        ("rtcsync", Setting("rtcsync", "", "the machine's own clock is right at the next boot", _CHRONY)),
    ]
    lines = [f"# chrony, {what}; {NOT_VALIDATED}"]
    for key, setting in [*own, *common]:
        lines += [*noted(setting), f"{key} {setting.value}".strip()]
    return "\n".join(lines) + "\n"
