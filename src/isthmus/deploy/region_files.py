"""Files that every target which runs a plan gives a region, and the coordinator's.

    REGION/node.sh       one node: checks what must be there, then starts its ranks
    REGION/env.sh        variables, each with its reason
    REGION/nodes.txt     name, number and address of each node
    REGION/plan.yaml     REGION/members.json
    coordinator/start.sh where the coordinator is ours
"""

import json
import shlex

from isthmus.deploy.checks import needs_keys
from isthmus.deploy.pieces import Piece
from isthmus.deploy.request import Request
from isthmus.deploy.settings import as_shell, settings_for
from isthmus.deploy.sites import Site
from isthmus.documents import read_text

__all__ = ["BAD_SETUP", "coordinator_pieces", "region_pieces"]

BAD_SETUP = 78
"""Exit code of node.sh where starting again would not help (EX_CONFIG of sysexits.h)."""


def region_pieces(request: Request, site: Site) -> tuple[Piece, ...]:
    """What stands in the folder of one region, the engine's own files apart."""
    nodes = "".join(f"{node.name} {number} {node.address}\n" for number, node in enumerate(site.nodes))
    members = json.dumps(request.sites.members.model_dump(mode="json"), indent=1) + "\n"
    settings = settings_for(site, request.plan)
    return (
        Piece(f"{site.name}/node.sh", node_script(request, site), executable=True),
        Piece(f"{site.name}/env.sh", as_shell(settings, f"Variables of the ranks in {site.name}.")),
        Piece(f"{site.name}/nodes.txt", nodes),
        Piece(f"{site.name}/plan.yaml", read_text(request.plan_path)),
        Piece(f"{site.name}/members.json", members),
    )


def node_script(request: Request, site: Site) -> str:
    """node.sh, complete: it takes nothing from its caller but the node's name."""
    keys = site.keys if needs_keys(request) else None
    lines = [
        "#!/bin/bash",
        f"# One node of region {site.name}. Written by isthmus deploy.",
        "#   node.sh check   look at the node: files, certificate, hardware; exit 78 where starting again would not help",
        "#   node.sh run     start its ranks, in place of this shell",
        "#   node.sh         both",
        "set -euo pipefail",
        f"here={site.folder} region={site.name} python={site.entry.python}",
        'node=${ISTHMUS_NODE:-${SLURMD_NODENAME:-$(hostname -s)}}',
        f'refuse() {{ echo "isthmus: $region, $node: $*" >&2; exit {BAD_SETUP}; }}',
        "",
        *_find_itself(),
        "",
        "check() {",
        *[f"  {line}" for line in _checks(request, site, keys is not None)],
        "}",
        "",
        "run() {",
        *[f"  {line}" for line in _run(request, site)],
        "}",
        "",
        "case ${1:-both} in",
        "  check) check ;;",
        "  run) run ;;",
        "  both) check; run ;;",
        '  *) refuse "usage: node.sh [check|run]" ;;',
        "esac",
    ]
    if keys is not None:
        lines.insert(7, f"keys={keys}")
    return "\n".join(lines) + "\n"


def _find_itself() -> list[str]:
    return [
        'cd "$here" || refuse "there is no folder $here: copy this region\'s part of the bundle there"',
        "number=''",
        "while read -r name its_number _; do",
        '  if [ "$name" = "$node" ]; then number=$its_number; fi',
        "done < nodes.txt",
        '[ -n "$number" ] || refuse "is not in $here/nodes.txt; say which node this is with ISTHMUS_NODE"',
    ]


def _checks(request: Request, site: Site, keys: bool) -> list[str]:
    topology_file = site.entry.topology_file
    lines = [
        '[ -x "$python" ] || refuse "there is no Python at $python (sites.yaml, python)"',
        '"$python" -c \'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, ("isthmus", "torch"))))\' ||',
        '  refuse "$python has no isthmus or no torch: pip install \'isthmus[runtime]\'"',
        "for file in plan.yaml members.json env.sh; do",
        '  [ -r "$file" ] || refuse "$here/$file is missing or cannot be read: copy it from the bundle"',
        "done",
    ]
    if keys:
        lines += [
            'for file in ca.pem "$region.pem" "$region.key"; do',
            '  [ -r "$keys/$file" ] || refuse "$keys/$file is missing, or $(id -un) may not read it; isthmus keys makes it"',
            "done",
            'mode=$(stat -L -c %a "$keys/$region.key")',
            '(( (8#$mode & 8#077) == 0 )) || refuse "$keys/$region.key may be read by others (mode $mode): chmod 600 it"',
        ]
    if topology_file is not None:
        lines.append(f'[ -r {topology_file} ] || refuse "{topology_file} cannot be read (sites.yaml, topology_file)"')
    if request.health_check:
        lines += [
            "source env.sh",
            "report=$(mktemp)",
            'if ! "$python" -m isthmus doctor --live --fatal > "$report" 2>&1; then',
            '  cat "$report" >&2; rm -f "$report"',
            '  refuse "the doctor found a fault that no run survives (above)"',
            "fi",
            'rm -f "$report"',
        ]
    return lines


def _run(request: Request, site: Site) -> list[str]:
    options = [
        f"--members members.json --region {site.name}",
        f'--nodes {len(site.nodes)} --node-rank "$number" --ranks-per-node {site.ranks_per_node}',
        f"--rendezvous {site.rendezvous} --restarts {site.entry.restarts}",
        "-o .",
    ]
    if request.coordinator is not None and len(request.sites.sites) > 1:
        options.insert(3, f"--coordinator {shlex.quote(request.coordinator)}")
    if needs_keys(request):
        options.insert(-1, '--keys "$keys"')
    lines = ["source env.sh", f"export ISTHMUS_CHECKPOINTS={site.checkpoints}"]
    if request.sites.document.insecure:
        lines.append("export ISTHMUS_INSECURE=1  # sites.yaml says: insecure")
    command = ['exec "$python" -m isthmus run plan.yaml', *[f"  {option}" for option in options], f"  -- {request.command}"]
    return lines + [line + (" \\" if line is not command[-1] else "") for line in command]


def coordinator_pieces(request: Request) -> tuple[Piece, ...]:
    """The coordinator's start, where it is ours; nothing for etcd, which its owners run."""
    entry = request.sites.document.coordinator
    if entry is None or entry.address is None or len(request.sites.sites) == 1:
        return ()
    secure = f"--keys {entry.folder}/keys" if needs_keys(request) else "--insecure" if request.sites.document.insecure else ""
    host = entry.address.rpartition(":")[0]
    text = f"""#!/bin/bash
# The store through which the regions regroup: on the machine that has {host}, before any region starts.
# Written by isthmus deploy. Started again after a crash it goes on from its journal; for another run move the journal away.
set -euo pipefail
cd {entry.folder}
exec {entry.python} -m isthmus coordinator --listen {entry.address} --journal {entry.folder}/coordinator.journal {secure}
"""
    return (Piece("coordinator/start.sh", "\n".join(line.rstrip() for line in text.splitlines()) + "\n", executable=True),)
