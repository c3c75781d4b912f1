"""Cumulus Linux: NVUE commands for a RoCE region's switches, each with its reason.

Grammar: CumulusNetworks/docs, content/cumulus-linux-514/Layer-1-and-Switch-Ports/Quality-of-Service (read 2026-11).
"""

from math import ceil

from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.shown import NOT_VALIDATED, noted
from isthmus.deploy.network.sonic import ecn_reason
from isthmus.deploy.settings import Setting

__all__ = ["nvue_settings", "nvue_text"]

MTU = 9216
_DOC = "NVIDIA Cumulus Linux 5.14, Quality of Service"


def nvue_text(roce: Roce) -> str:
    """A shell script of NVUE commands, applied at its end."""
    lines = ["#!/bin/sh", f"# {roce.region}: RoCE on Cumulus Linux, {NOT_VALIDATED}", "set -eu"]
    for setting, commands in nvue_settings(roce):
        lines += ["", *noted(setting), *commands]
    return "\n".join([*lines, "", "nv config apply -y"]) + "\n"


def nvue_settings(roce: Roce) -> list[tuple[Setting, list[str]]]:
    """Settings with the commands that make them."""
    marks, ecn = roce.marks, roce.ecn
    data, cnp, ports = marks.data_priority, marks.cnp_priority, f"swp1-{roce.ports}"
    mapping, pfc = "nv set qos mapping default-global", "nv set qos pfc default-global"
    queue, mark = (
        "nv set qos egress-queue-mapping default-global",
        f"nv set qos congestion-control default-global traffic-class {data}",
    )
    cable = f"{ceil(roce.cable_m)}"
    room = roce.headroom
    headroom = f"; for comparison, as SONiC counts on the same chip: {room.arithmetic}" if room else ""
    return [
        (
            Setting("qos roce mode", "lossless", "PFC and ECN, pools and scheduler in one; NVUE allows no other way", _DOC),
            ["nv set qos roce mode lossless"],
        ),
        (
            Setting(
                "qos mapping", f"{marks.data_dscp} -> {data}, {marks.cnp_dscp} -> {cnp}", "the marks that adapters set", _DOC
            ),
            [
                f"{mapping} trust both",
                f"{mapping} dscp {marks.data_dscp} switch-priority {data}",
                f"{mapping} dscp {marks.cnp_dscp} switch-priority {cnp}",
            ],
        ),
        (
            Setting("qos egress-queue-mapping", f"{data} -> {data}, {cnp} -> {cnp}", "a queue each for data and CNPs", _DOC),
            [f"{queue} switch-priority {priority} traffic-class {priority}" for priority in (data, cnp)],
        ),
        (
            Setting("qos pfc", f"priority {data}, cable-length {cable}", f"{roce.cable_reason}{headroom}", _DOC),
            [f"{pfc} switch-priority {data}", f"{pfc} cable-length {cable}"],
        ),
        (
            Setting(
                "qos congestion-control",
                f"{ecn.kmin_bytes:.0f}, {ecn.kmax_bytes:.0f}, {ecn.pmax * 100:.0f}",
                f"{ecn_reason(roce)}. Cumulus's own is 150000, 1500000, 100. `probability` is named as `nv show` prints it",
                ecn.source,
            ),
            [
                f"{mark} ecn enable",
                f"{mark} min-threshold {ecn.kmin_bytes:.0f}",
                f"{mark} max-threshold {ecn.kmax_bytes:.0f}",
                f"{mark} probability {ecn.pmax * 100:.0f}",
            ],
        ),
        (
            Setting("qos pfc-watchdog", "100 ms x 3", "Cumulus's defaults; on every port with PFC", _DOC),
            [
                "nv set qos pfc-watchdog polling-interval 100",
                "nv set qos pfc-watchdog robustness 3",
                f"nv set interface {ports} qos pfc-watchdog",
            ],
        ),
        (
            Setting("link mtu", str(MTU), "holds the hosts' 9,000 bytes of IP with every header", _DOC),
            [f"nv set interface {ports} link mtu {MTU}"],
        ),
    ]
