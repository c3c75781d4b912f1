"""Nodes: adapters of a RoCE region, and what every node needs whatever its network: governor, GPU persistence.

Sources of the adapters' grammar: MLNX_OFED and NVIDIA EN documentation, quality of service (`mlnx_qos`); Linux
drivers/infiniband/hw/mlx5 (congestion control); `cma_roce_tos` and the `tc` folder of a device are usual practice (recalled).
"""

from math import ceil

from isthmus.cost.dcqcn import DcqcnSettings, play_dcqcn
from isthmus.deploy.network.roce import HOST_MTU, RDMA_MTU, Roce
from isthmus.deploy.network.shown import NOT_VALIDATED, noted
from isthmus.deploy.settings import Setting
from isthmus.fabric import Region
from isthmus.units import show_bytes

__all__ = ["adapter_settings", "host_script", "host_unit", "machine_settings"]

_QOS = "NVIDIA EN documentation, quality of service: mlnx_qos"
_OFED = "MLNX_OFED documentation, congestion control (RoCE)"
_USUAL = "usual practice (recalled)"
_KERNEL_CPU = "kernel Documentation/admin-guide/pm/cpufreq"
_SMI = "nvidia-smi manual"
_NVIDIA_NICS = ("connectx", "bluefield")


def _mellanox(region: Region) -> bool:
    kinds = {group.nic.kind for group in region.groups if group.nic}
    return bool(kinds) and all(kind.startswith(_NVIDIA_NICS) for kind in kinds)


def adapter_settings(region: Region, roce: Roce) -> list[tuple[Setting, list[str]]]:
    """Settings of one adapter with the commands that make them: `$dev` is its RDMA device, `$net` its interface."""
    if not _mellanox(region):
        return []
    marks = roce.marks
    data, cnp = marks.data_priority, marks.cnp_priority
    ecn, sys = "/sys/class/net/$net/ecn", "/sys/class/infiniband/$dev"
    return [
        (
            Setting("ip link mtu", str(HOST_MTU), f"RDMA MTU {RDMA_MTU} with its headers fits; switches carry more", _USUAL),
            [f'ip link set dev "$net" mtu {HOST_MTU}'],
        ),
        (
            Setting(
                "mlnx_qos --trust", "dscp", "routers keep DSCP; the 802.1p priority needs a VLAN and ends at the first hop", _QOS
            ),
            ['mlnx_qos -i "$net" --trust dscp'],
        ),
        (
            Setting(
                "mlnx_qos --dscp2prio",
                f"{marks.data_dscp} -> {data}, {marks.cnp_dscp} -> {cnp}",
                "the same map as the switches'; what the adapter comes with, made sure of",
                _QOS,
            ),
            [
                f'mlnx_qos -i "$net" --dscp2prio set,{marks.data_dscp},{data}',
                f'mlnx_qos -i "$net" --dscp2prio set,{marks.cnp_dscp},{cnp}',
            ],
        ),
        (
            Setting("mlnx_qos --pfc", marks.pfc, f"priority {data} alone is lossless, as on the switches", _QOS),
            [f'mlnx_qos -i "$net" --pfc {marks.pfc}'],
        ),
        (
            Setting("mlnx_qos --cable_len", f"{ceil(roce.cable_m)}", f"the adapter's own headroom; {roce.cable_reason}", _QOS),
            [f'mlnx_qos -i "$net" --cable_len {ceil(roce.cable_m)}'],
        ),
        (
            Setting(
                "cma_roce_tos, traffic_class",
                str(marks.traffic_class),
                f"DSCP {marks.data_dscp} x 4 + ECT(0) for connections that set none themselves; NCCL sets its own by "
                f"NCCL_IB_TC={marks.traffic_class}",
                _USUAL,
            ),
            [
                f'cma_roce_tos -d "$dev" -t {marks.traffic_class}',
                f'echo {marks.traffic_class} > "{sys}/tc/1/traffic_class"',
            ],
        ),
        (
            Setting(
                "ecn/roce_np, roce_rp enable", "1", f"DCQCN on priority {data}: receiver sends CNPs, sender heeds them", _OFED
            ),
            [f'echo 1 > "{ecn}/roce_np/enable/{data}"', f'echo 1 > "{ecn}/roce_rp/enable/{data}"'],
        ),
        (
            Setting(
                "ecn/roce_np cnp_dscp, cnp_802p_prio",
                f"{marks.cnp_dscp}, {cnp}",
                "CNPs in the queue that goes first: a late one acts on what was true long ago",
                _OFED,
            ),
            [f'echo {marks.cnp_dscp} > "{ecn}/roce_np/cnp_dscp"', f'echo {cnp} > "{ecn}/roce_np/cnp_802p_prio"'],
        ),
    ]


def dcqcn_words(roce: Roce) -> str:
    """Why DCQCN's own parameters are left alone: what the fluid model says of the thresholds."""
    loop, settings = play_dcqcn(roce.rate_bytes_per_s, roce.rtt_s, roce.ecn), DcqcnSettings()
    return (
        "DCQCN's rates and timers (`rp_*`, `np_min_time_between_cnps`) are left as the adapter ships them: no public "
        "measurement says "
        f"better for this network. Its fluid model (Zhu et al., SIGCOMM 2015, that paper's own parameters: alpha and rate timers "
        f"{settings.alpha_s * 1e6:.0f} us, additive step {settings.additive_bytes_per_s * 8e-6:.0f} Mb/s) with 8 flows at these "
        f"thresholds and an RTT of {roce.rtt_s * 1e6:.1f} us is {loop.verdict}: {loop.utilisation:.0%} of the link, queue "
        f"up to {show_bytes(loop.queue_bytes_max)}."
    )


def machine_settings(region: Region) -> list[tuple[Setting, list[str]]]:
    """Settings of a node itself."""
    found = [
        (
            Setting(
                "scaling_governor",
                "performance",
                "NCCL's proxy threads and the WAN's streams sleep and wake all the time: a slow clock adds to every message",
                _KERNEL_CPU,
            ),
            [
                "for governor in /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do",
                '    if [ -w "$governor" ]; then echo performance > "$governor"; fi',
                "done",
            ],
        )
    ]
    vendors = {group.gpu.vendor for group in region.groups}
    if "NVIDIA" in vendors:
        found.append(
            (
                Setting(
                    "nvidia-smi -pm",
                    "1",
                    "the driver stays loaded between jobs: no seconds of start-up, and settings are kept. Clocks are left to the "
                    "GPU: locking them costs power headroom",
                    _SMI,
                ),
                ["nvidia-smi -pm 1"],
            )
        )
    if "AMD" in vendors:
        reason = "clocks go up at once when work comes, in place of after a sampling interval"
        found.append((Setting("rocm-smi --setperflevel", "high", reason, "rocm-smi manual"), ["rocm-smi --setperflevel high"]))
    return found


def host_script(region: Region, roce: Roce | None, hcas: tuple[str, ...], sysctl: bool) -> str:
    """A script to run as root on every node of the region at every start; stops at the first command that fails."""
    lines = [
        "#!/bin/sh",
        f"# Node of {region.name}: run as root at every start (isthmus-host.service does). {NOT_VALIDATED.capitalize()}.",
        "set -eu",
    ]
    for setting, commands in machine_settings(region):
        lines += ["", *noted(setting), *commands]
    if sysctl:
        lines += [
            "",
            "# TCP over the WAN; the file says why. A kernel without BBR stops here.",
            "modprobe tcp_bbr",
            "sysctl --load=/etc/sysctl.d/90-isthmus.conf",
        ]
    adapters = adapter_settings(region, roce) if roce else []
    if adapters:
        found = f'"{" ".join(hcas)}"' if hcas else '"$(ls /sys/class/infiniband)"'
        lines += [
            "",
            "# Needs MLNX_OFED or DOCA-Host: the kernel's own driver has neither mlnx_qos nor the ecn folders, and stops here.",
            "# Adapters" + (", as sites.yaml names them" if hcas else ": all RDMA devices that run over Ethernet"),
            f"devices={found}",
            "for dev in $devices; do",
            '    dev="${dev%%:*}"',
            '    [ "$(cat "/sys/class/infiniband/$dev/ports/1/link_layer")" = Ethernet ] || continue',
            '    net="$(ls "/sys/class/infiniband/$dev/device/net" | head -n 1)"',
        ]
        for setting, commands in adapters:
            lines += ["", *[f"    {line}" for line in [*noted(setting), *commands]]]
        lines.append("done")
    return "\n".join(lines) + "\n"


def host_unit() -> str:
    """A systemd unit that runs the script at every start, before jobs can."""
    return """[Unit]
Description=Settings of isthmus for adapters, processors and GPUs
After=network-online.target
Wants=network-online.target
Before=slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/isthmus-host.sh

[Install]
WantedBy=multi-user.target
"""
