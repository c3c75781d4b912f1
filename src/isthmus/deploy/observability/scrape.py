"""Who collects what: an agent on every node, since ranks export on loopback only, and a Prometheus that all agents send to."""

import json
from collections.abc import Iterator
from typing import Any

from isthmus.deploy.observability.rules import Pace
from isthmus.deploy.sites import NodeEntry, Site

__all__ = ["THIS_NODE", "central", "node_config", "targets_of"]

THIS_NODE = "targets/this-node.json"


def node_config(receiver: str, pace: Pace) -> dict[str, Any]:
    """prometheus.yml of the agent on each node; the same everywhere, what differs is in `THIS_NODE`."""
    return {
        "global": {"scrape_interval": f"{pace.scrape_s}s"},
        "scrape_configs": [{"job_name": "isthmus", "file_sd_configs": [{"files": [THIS_NODE]}]}],
        "remote_write": [{"url": f"http://{receiver}/api/v1/write"}],
    }


def central(pace: Pace) -> dict[str, Any]:
    """prometheus.yml of the one that receives; started with --web.enable-remote-write-receiver."""
    return {"global": {"evaluation_interval": f"{pace.scrape_s}s"}, "rule_files": ["rules.yml"]}


def targets_of(site: Site) -> Iterator[tuple[NodeEntry, str]]:
    """Each node with its list of ranks, as file_sd reads it. Ranks name their own region and rank as the exporter does."""
    assert site.entry.export_port is not None
    for number, node in enumerate(site.nodes):
        ranks = range(number * site.ranks_per_node, (number + 1) * site.ranks_per_node)
        groups = [
            {
                "targets": [f"127.0.0.1:{site.entry.export_port + rank}"],
                "labels": {"region": site.name, "rank": str(rank), "instance": f"{node.name}:{rank}"},
            }
            for rank in ranks
        ]
        yield node, json.dumps(groups, indent=1) + "\n"
