"""What to do with the files, in order, and why each setting is as it is."""

from dataclasses import dataclass

from isthmus.deploy.network.eos import eos_settings
from isthmus.deploy.network.hosts import adapter_settings, dcqcn_words, machine_settings
from isthmus.deploy.network.nvue import nvue_settings
from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.shown import NOT_VALIDATED, as_table
from isthmus.deploy.network.sonic import sonic_settings
from isthmus.deploy.network.wan import Flows, sysctl_settings, wan_words
from isthmus.deploy.sites import Site
from isthmus.fabric import Fabric

__all__ = ["Described", "readme", "settings_page"]

_NO_ROCE = {
    "infiniband": (
        "InfiniBand: no RoCE files. Its links give credits before anything is sent, so nothing is lost and there is no PFC, ECN "
        "or DSCP to set; routes and service levels belong to the subnet manager."
    ),
    "ethernet": "Ethernet with TCP: no RoCE files. NCCL goes over sockets; nothing needs a lossless class.",
    "efa": "EFA: no RoCE files. The network is the cloud's own and cannot be set.",
    "slingshot": "Slingshot: no RoCE files. Its switches run their own congestion control, set by the fabric manager.",
}
_APPLY = {
    "sonic": (
        "`sonic-config_db.json`: on every switch `config load -y sonic-config_db.json && config save -y`, then `config reload` "
        "when no job runs (the buffer model changes)."
    ),
    "eos": (
        "`eos.conf`: on every switch paste it in `configure session isthmus`, look at `show session-config diffs`, then `commit`."
    ),
    "cumulus": "`cumulus.sh`: on every switch `sh cumulus.sh`.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One region: where it stands, its RoCE network if it has one, its TCP to other regions if there are any."""

    site: Site
    roce: Roce | None
    flows: Flows | None


def readme(fabric: Fabric, regions: list[Described]) -> str:
    """README.md of the bundle."""
    lines = [
        f"# {fabric.name}: network, adapters, clocks",
        "",
        f"Everything here is **{NOT_VALIDATED}**. What stands behind it: SONiC's JSON was held against SONiC's YANG models, "
        "EOS against "
        "Arista's own arista.avd, chrony's and ptp4l's files were read by chronyd 4.3 and ptp4l 3.1.1; NVUE, mlnx_qos and "
        "sysctl follow "
        "documentation that each file names. Try it on one switch and one node first. `settings.md` of each region gives "
        "the reason and the source of every value.",
        "",
        "## In order",
        "",
        "1. Switches, where the region has RoCE:",
    ]
    for each in regions:
        lines.append(f"   - {each.site.name}: {_switch_words(each)}")
    lines += [
        "2. Every node: `hosts/90-isthmus.conf` (where there is one) to `/etc/sysctl.d/`, `hosts/isthmus-host.sh` to "
        "`/usr/local/sbin/`, `hosts/isthmus-host.service` to `/etc/systemd/system/`, then "
        "`systemctl enable --now isthmus-host`.",
        "3. Clocks: `clocks/chrony-server.conf` on the region's first node, `clocks/chrony-client.conf` on the others, as "
        "`/etc/chrony/chrony.conf`. PTP only where less than a microsecond matters: ptp4l and phc2sys by role, the file for your "
        "linuxptp (3.x or 4.x renamed options: `ptp4l -v`); set interface names first.",
        "4. Look: `isthmus doctor collect` on every node, then `isthmus doctor`: MTU, DSCP, drops, retransmissions, clocks.",
        "",
    ]
    if fabric.wan:
        lines += ["## Between regions", ""]
        known = [each.roce for each in regions if each.roce is not None]
        for link in fabric.wan:
            lines += [wan_words(link, known), ""]
    return "\n".join(lines)


def _switch_words(each: Described) -> str:
    if each.roce is None:
        return "one node: nothing between nodes." if each.site.region.nodes == 1 else _NO_ROCE[each.site.region.network.kind]
    apply = [_APPLY[system] for system in each.roce.systems]
    name = each.roce.switch.name if each.roce.switch else "a switch that fabric.yaml does not name"
    which = (
        ""
        if each.roce.system or len(apply) == 1
        else " One of them, by what your switches run (`system` in fabric.yaml says it):"
    )
    return f"{name}.{which} " + " ".join(apply)


def settings_page(each: Described) -> str:
    """settings.md of one region."""
    region = each.site.region
    lines = [f"# {region.name}: every setting, its reason, its source", ""]
    if each.roce is not None:
        lines += _roce_part(each.roce)
        adapters = [setting for setting, _ in adapter_settings(region, each.roce)]
        lines += ["## Adapters", ""]
        if adapters:
            lines += [as_table(adapters), "", dcqcn_words(each.roce), ""]
        else:
            kinds = ", ".join(sorted({group.nic.kind for group in region.groups if group.nic}))
            lines += [
                f"{kinds}: no commands are written, its tools differ from ConnectX's. It must trust DSCP, put "
                f"{each.roce.marks.data_dscp} on priority {each.roce.marks.data_priority} with PFC, and send CNPs with "
                f"DSCP {each.roce.marks.cnp_dscp} (a BCM57608 comes so: Juniper JVD, DCQCN for RDMA traffic on NICs).",
                "",
            ]
    else:
        lines += [_NO_ROCE[region.network.kind] if region.nodes > 1 else "One node: no network between nodes.", ""]
    lines += ["## Machine", "", as_table(setting for setting, _ in machine_settings(region)), ""]
    if each.flows is not None:
        lines += ["## TCP between regions", "", as_table(sysctl_settings(each.flows)), ""]
    return "\n".join(lines)


def _roce_part(roce: Roce) -> list[str]:
    found: list[str] = []
    tables = {
        "sonic": ("SONiC", lambda: sonic_settings(roce)),
        "eos": ("Arista EOS", lambda: eos_settings(roce)),
        "cumulus": ("Cumulus Linux", lambda: [setting for setting, _ in nvue_settings(roce)]),
    }
    for system in roce.systems:
        title, settings = tables[system]
        found += [f"## Switches: {title}", "", as_table(settings()), ""]
    ports = f"All {roce.ports} ports of a switch are set alike: fabric.yaml does not say which cable goes where."
    return [*found, f"{ports} A port that leads out of the site must be taken out (README.md says why).", ""]
