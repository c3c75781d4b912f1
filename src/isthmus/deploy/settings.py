"""Environment variables of a region's ranks: only those that differ from what NCCL, Gloo and torch choose by themselves.

Pure: a plan, a region and its entry in sites.yaml go in, settings with their reasons come out.
"""

from dataclasses import dataclass

from isthmus.deploy.marks import MARKS
from isthmus.deploy.sites import Site
from isthmus.plan import Plan

__all__ = ["Setting", "as_shell", "settings_for"]

_NCCL_DOCS = "NVIDIA, NCCL documentation, Environment Variables"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable.

    Attributes:
        reason: Why the default is not good enough here.
        source: Where the value comes from: a document, the user's file, or `judgement`.
    """

    name: str
    value: str
    reason: str
    source: str


def settings_for(site: Site, plan: Plan) -> tuple[Setting, ...]:
    """What to set on every node of `site`, in the order in which to read it."""
    return (*_always(site), *_interfaces(site), *_roce(site), *_across(plan))


def _always(site: Site) -> list[Setting]:
    found = [
        Setting("PYTHONUNBUFFERED", "1", "what a rank printed last is in the log when it dies", "Python documentation, -u"),
        Setting(
            "NCCL_DEBUG",
            "WARN",
            "NCCL says nothing by itself, not even why it fails; with WARN a healthy run prints its version only",
            _NCCL_DOCS,
        ),
    ]
    if site.entry.export_port is not None:
        found.append(
            Setting(
                "ISTHMUS_EXPORT",
                f"127.0.0.1:{site.entry.export_port}",
                "rank r of the region serves Prometheus metrics on this port + r, for a scraper on the node itself",
                "sites.yaml, export_port",
            )
        )
    return found


def _interfaces(site: Site) -> list[Setting]:
    found: list[Setting] = []
    if site.entry.interface is not None:
        reason = "a node has several interfaces, and a guess may take one that the other nodes cannot reach"
        found += [
            Setting("NCCL_SOCKET_IFNAME", f"={site.entry.interface}", f"{reason}; = asks for this very name", _NCCL_DOCS),
            Setting("GLOO_SOCKET_IFNAME", site.entry.interface, f"{reason}; Gloo takes plain names", "sites.yaml, interface"),
        ]
    if site.entry.hcas is not None:
        reason = "only these adapters carry training; = asks for exact names, since mlx5_1 alone also means mlx5_10"
        found.append(Setting("NCCL_IB_HCA", "=" + ",".join(site.entry.hcas), reason, f"sites.yaml, hcas; {_NCCL_DOCS}"))
    if site.entry.topology_file is not None:
        reason = "a virtual machine hides its PCIe tree, and NCCL then pairs GPUs with far adapters; this file has the true one"
        found.append(Setting("NCCL_TOPO_FILE", site.entry.topology_file, reason, f"sites.yaml, topology_file; {_NCCL_DOCS}"))
    return found


def _roce(site: Site) -> list[Setting]:
    network = site.region.network
    if network.kind != "roce" or len(site.nodes) == 1:
        return []
    found = [
        Setting(
            "NCCL_IB_TC",
            str(MARKS.traffic_class),
            f"DSCP {MARKS.data_dscp} with ECN on: by default packets go in class 0, where switches mark and pause nothing",
            f"{_NCCL_DOCS}; the class to which `isthmus deploy --to network` sets switches and adapters",
        )
    ]
    if network.shape in {"clos-2", "clos-3", "dragonfly+"}:
        found.append(
            Setting(
                "NCCL_IB_QPS_PER_CONNECTION",
                "4",
                "one queue pair is one flow, and two large flows that hash to one uplink halve each other; four spread",
                f"{_NCCL_DOCS} (routing entropy on multi-level fabrics); the number is a judgement",
            )
        )
    return found


def _across(plan: Plan) -> list[Setting]:
    axis = plan.strategy.region_group
    if axis is None or axis.backend != "nccl" or axis.net_name != "Socket":
        return []
    reason = "one TCP stream does not fill a long link: 16 a connection between regions"
    return [
        Setting("NCCL_SOCKET_NTHREADS", "4", reason, f"{_NCCL_DOCS}; the number is a judgement"),
        Setting("NCCL_NSOCKS_PERTHREAD", "4", f"{reason}; times threads at most 64", f"{_NCCL_DOCS}; the number is a judgement"),
    ]


def as_shell(settings: tuple[Setting, ...], title: str) -> str:
    """The settings as a file for `source`, with the reason and the source above each."""
    lines = [f"# {title}", "# Written by isthmus deploy. NCCL chooses the rest by itself, and knows better."]
    for setting in settings:
        lines += ["", f"# {setting.reason}", f"# source: {setting.source}", f"export {setting.name}={setting.value}"]
    return "\n".join(lines) + "\n"
