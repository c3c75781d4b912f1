"""The words of a bundle: what is in it, and what to do, in order."""

from isthmus.deploy.checks import needs_keys
from isthmus.deploy.pieces import Piece
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site

__all__ = ["region_readme", "top_readme"]


def top_readme(request: Request, start: str) -> Piece:
    """README.md of the bundle; `start` is the command that starts a region, with `{folder}` for its folder."""
    sites, plan = request.sites, request.plan
    steps: list[str] = []
    if needs_keys(request):
        steps += _key_steps(request)
    for site in sites.sites:
        steps.append(
            f"Copy `{site.name}/` to `{site.folder}` on the nodes of {site.name} (once, where that folder is shared):"
            f" `rsync -a {site.name}/ NODE:{site.folder}/`"
        )
    steps.append(f"Put your code where the nodes find `{request.command}`; a relative path counts from the region's folder.")
    steps += _coordinator_steps(request)
    steps += [f"Start {site.name}: `{start.format(folder=site.folder)}`" for site in sites.sites]
    rows = "\n".join(
        f"| {site.name} | {len(site.nodes)} | {site.ranks} | {', '.join(node.name for node in site.nodes[:4])}"
        f"{', ...' if len(site.nodes) > 4 else ''} | {site.folder} |"
        for site in sites.sites
    )
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    text = f"""# {plan.fabric}: {plan.strategy.name}, {plan.workload}

Written by `isthmus deploy`. `isthmus deploy --check .` says whether these files still fit each other.

| region | nodes | ranks | which | folder on them |
|---|---|---|---|---|
{rows}

## What to do, in this order

{numbered}

{_meeting(request)}

## What happens when something fails

{_failures(request)}
"""
    return Piece("README.md", text)


def _key_steps(request: Request) -> list[str]:
    folder = request.sites.document.certificates
    steps = [
        f"Give the nodes of {site.name} its certificate: `ca.pem`, `{site.name}.pem` and `{site.name}.key` of `{folder}` into"
        f" `{site.keys}`, the key with mode 600. No other key belongs there, and `ca.key` nowhere but with you."
        for site in request.sites.sites
    ]
    entry = request.sites.document.coordinator
    if entry is not None and entry.address is not None:
        where = f"{entry.folder}/keys"
        steps.append(f"The coordinator's machine gets `ca.pem`, `coordinator.pem` and `coordinator.key` in `{where}`.")
    return steps


def _coordinator_steps(request: Request) -> list[str]:
    entry = request.sites.document.coordinator
    if entry is None or len(request.sites.sites) == 1:
        return []
    if entry.address is None:
        return [f"Have etcd running at {', '.join(entry.etcd or [])}."]
    return [
        f"Start the coordinator on the machine that has {entry.address.rpartition(':')[0]}, and keep it running:"
        f" copy `coordinator/start.sh` to `{entry.folder}` and run it there. A restart goes on from its journal; for another run"
        f" move `{entry.folder}/coordinator.journal` away first."
    ]


def _meeting(request: Request) -> str:
    survival, regions = request.plan.survival, len(request.sites.sites)
    if regions == 1:
        return "Training begins when all nodes have come."
    if request.coordinator is None:
        return "Start all regions within two minutes of each other: without a coordinator nobody waits longer (`isthmus.join`)."
    wanted = survival.start_regions or regions
    return (
        f"Training begins when {wanted} of {regions} regions have come; the first waits {survival.start_s:g} s for that. Where"
        " a queue may hold one for longer, set `survival.start_s` in plan.yaml to that time, or `start_regions: 1`: the first"
        " then trains alone until the others come. Then run `isthmus deploy` again."
    )


def _failures(request: Request) -> str:
    lines = [
        "- A rank that fails: torchrun ends the region's ranks and starts them again, "
        + "; ".join(f"{site.name} up to {site.entry.restarts} times" for site in request.sites.sites) + ".",
    ]  # fmt: skip
    if request.coordinator is not None and len(request.sites.sites) > 1:
        lines += [
            "- A region that is lost: the others go on without it after "
            f"{request.plan.survival.detect_s:g} s. Started again it is let in with their state; it loses what it trained since"
            " its last committed sync, and prints how much.",
            "- The coordinator: training goes on; start it again before a region has to regroup.",
        ]
    elif len(request.sites.sites) > 1:
        lines.append("- A region that is lost ends the run: no coordinator takes part. Start all regions again.")
    lines += [
        "- All regions together: start them again. A script that calls `cluster.checkpoint()` goes on from its newest checkpoint"
        " in the region's folder for them (ISTHMUS_CHECKPOINTS, which `cluster.sync` takes by itself); any other begins anew.",
        "- Nodes that change: members.json names the address of every rank for the whole run, so a region comes back on its own"
        " nodes only. To replace a node write its successor into sites.yaml, run `isthmus deploy` again, and start all regions.",
    ]
    return "\n".join(lines)


def region_readme(request: Request, site: Site, steps: list[str]) -> Piece:
    """README.md of one region; `steps` are the engine's own."""
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    listed = "\n".join(f"| {number} | {node.name} | {node.address} |" for number, node in enumerate(site.nodes))
    text = f"""# {site.name}: {len(site.nodes)} nodes, {site.ranks} ranks

This folder belongs at `{site.folder}` on the nodes of {site.name}; `../README.md` says what comes before and after.

{numbered}

| number | node | address |
|---|---|---|
{listed}

Nodes are numbered by address, as text: torchrun numbers them so. Rank i of a node listens on port {site.entry.rail_port} + i
for the other regions; {site.rendezvous} is where the nodes of this one meet.

`env.sh` holds the variables, with the reason for each. Metrics are written to `{site.folder}/metrics`.
"""
    return Piece(f"{site.name}/README.md", text)
