"""`isthmus deploy --to network`: switches, adapters, TCP, clocks, each setting with a reason and a source.

`..marks` is how packets are marked, `roce` what a region's switches need; `sonic`, `eos` and `nvue` write it for their systems,
`hosts` for nodes, `wan` for TCP between regions, `clocks` for time. `readme` says what to do with it, `check` looks at it on
disk.
"""

from isthmus.deploy.network.check import check
from isthmus.deploy.network.clocks import LINUXPTP, Role, chrony_client, chrony_server, phc2sys_unit, ptp_text
from isthmus.deploy.network.eos import eos_text
from isthmus.deploy.network.hosts import host_script, host_unit
from isthmus.deploy.network.nvue import nvue_text
from isthmus.deploy.network.readme import Described, readme, settings_page
from isthmus.deploy.network.roce import Roce, roce_of
from isthmus.deploy.network.sonic import sonic_text
from isthmus.deploy.network.wan import flows_of, sysctl_text
from isthmus.deploy.pieces import Piece
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["check", "pieces"]

_ROLES: tuple[Role, ...] = ("grandmaster", "boundary", "client")


def pieces(request: Request) -> tuple[Piece, ...]:
    """All files for the network of every region."""
    fabric, plan = request.sites.fabric, request.plan
    described = [
        Described(
            site=site,
            roce=roce_of(site.region) if _has_roce(site) else None,
            flows=flows_of(site.name, fabric, plan),
        )
        for site in request.sites.sites
    ]
    found = [Piece("README.md", readme(fabric, described))]
    for each in described:
        found += [Piece(f"{each.site.name}/settings.md", settings_page(each))]
        found += _hosts(each) + _clocks(each.site)
        if each.roce is not None:
            found += _switches(each.roce)
    return tuple(found)


def _has_roce(site: Site) -> bool:
    """RoCE between nodes: a region of one node has none."""
    return site.region.network.kind == "roce" and site.region.nodes > 1


def _switches(roce: Roce) -> list[Piece]:
    folder = f"{roce.region}/switches"
    found = {
        "sonic": lambda: Piece(f"{folder}/sonic-config_db.json", sonic_text(roce)),
        "eos": lambda: Piece(f"{folder}/eos.conf", eos_text(roce)),
        "cumulus": lambda: Piece(f"{folder}/cumulus.sh", nvue_text(roce), True),
    }
    return [found[system]() for system in roce.systems]


def _hosts(each: Described) -> list[Piece]:
    site, folder = each.site, f"{each.site.name}/hosts"
    hcas = tuple(site.entry.hcas or ())
    found = [
        Piece(f"{folder}/isthmus-host.sh", host_script(site.region, each.roce, hcas, each.flows is not None), True),
        Piece(f"{folder}/isthmus-host.service", host_unit()),
    ]
    if each.flows is not None:
        found.append(Piece(f"{folder}/90-isthmus.conf", sysctl_text(site.name, each.flows)))
    return found


def _clocks(site: Site) -> list[Piece]:
    folder, first = f"{site.name}/clocks", site.nodes[0].address
    interface = site.entry.interface or "eth0"
    found = [
        Piece(f"{folder}/chrony-server.conf", chrony_server(tuple(node.address for node in site.nodes[1:]))),
        Piece(f"{folder}/chrony-client.conf", chrony_client(first)),
    ]
    for role in _ROLES:
        second = "eth1" if interface != "eth1" else "eth2"  # README.md says to set names first
        interfaces = (interface, second) if role == "boundary" else (interface,)
        found += [Piece(f"{folder}/ptp4l-{role}.linuxptp{major}.conf", ptp_text(role, major, interfaces)) for major in LINUXPTP]
        found.append(Piece(f"{folder}/phc2sys-{role}.service", phc2sys_unit(role)))
    return found
