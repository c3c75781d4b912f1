"""Arista EOS: the lines that make a RoCE region's switches lossless for one class, each with its reason.

Grammar: Arista's own arista.avd (PyPI pyavd 6.4.0), which validates the same settings and prints the same lines (the tests hold
both against each other where pyavd is installed).
"""

from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.shown import NOT_VALIDATED, noted
from isthmus.deploy.network.sonic import ecn_reason
from isthmus.deploy.settings import Setting

__all__ = ["eos_settings", "eos_text"]

PROFILE = "ISTHMUS-ROCE"
MTU = 9214
_AVD = "arista.avd (pyavd 6.4.0), EOS configuration"


def eos_text(roce: Roce) -> str:
    """Lines for `configure`, to be merged into the running configuration."""
    why = {setting.name: noted(setting, "!") for setting in eos_settings(roce)}
    marks, ecn = roce.marks, roce.ecn
    data, cnp = marks.data_priority, marks.cnp_priority
    lines = [
        f"! {roce.region}: RoCE on Arista EOS, {NOT_VALIDATED}",
        "!",
        *why["qos profile"],
        f"qos profile {PROFILE}",
        "   qos trust dscp",
        "   priority-flow-control on",
        f"   priority-flow-control priority {data} no-drop",
        "   !",
        f"   uc-tx-queue {data}",
        "      no priority",
        "      bandwidth percent 50",
        f"      random-detect ecn minimum-threshold {ecn.kmin_bytes / 1e3:.0f} kbytes maximum-threshold "
        f"{ecn.kmax_bytes / 1e3:.0f} kbytes"
        f" max-mark-probability {ecn.pmax * 100:.0f}",
        "      random-detect ecn count",
        "   !",
        f"   uc-tx-queue {cnp}",
        "      priority strict",
        "!",
        *why["random-detect ecn"],
        "!",
        *why["interface"],
    ]
    for port in range(1, roce.ports + 1):
        lines += [f"interface Ethernet{port}/1", f"   mtu {MTU}", f"   service-profile {PROFILE}", "!"]
    lines += [
        *why["qos map dscp"],
        f"qos map dscp {marks.data_dscp} to traffic-class {data}",
        f"qos map dscp {marks.cnp_dscp} to traffic-class {cnp}",
        "!",
        *why["pause watchdog"],
        "priority-flow-control pause watchdog default timeout 0.2",
        "priority-flow-control pause watchdog default recovery-time 0.2",
        "priority-flow-control pause watchdog default polling-interval 0.1",
        "priority-flow-control pause watchdog action drop",
        "!",
    ]
    return "\n".join(lines) + "\n"


def eos_settings(roce: Roce) -> list[Setting]:
    """Why each block is as it is."""
    marks, ecn = roce.marks, roce.ecn
    data, cnp = marks.data_priority, marks.cnp_priority
    return [
        Setting(
            "qos profile",
            PROFILE,
            f"DSCP decides the queue; class {data} is never dropped, class {cnp} (CNP) goes first, half of a full port is RoCE's",
            _AVD,
        ),
        Setting(
            "random-detect ecn",
            f"{ecn.kmin_bytes / 1e3:.0f} kbytes, {ecn.kmax_bytes / 1e3:.0f} kbytes, {ecn.pmax * 100:.0f} %",
            ecn_reason(roce),
            ecn.source,
        ),
        Setting("interface", f"mtu {MTU}", "the most that EOS takes; hosts send 9,000 bytes of IP", _AVD),
        Setting(
            "qos map dscp",
            f"{marks.data_dscp} -> {data}, {marks.cnp_dscp} -> {cnp}",
            "the same marks as adapters and NCCL set; the map is the switch's, not the port's",
            _AVD,
        ),
        Setting(
            "pause watchdog",
            "0.2 s, polled each 0.1 s, drop",
            "a queue that is paused for so long is stuck: it drops until the storm ends",
            f"{_AVD}; times as SONiC's",
        ),
    ]
