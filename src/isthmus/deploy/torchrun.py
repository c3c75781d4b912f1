"""The target `torchrun`: a script to start on every node, by hand, ssh, or whatever starts things there."""

from pathlib import Path

from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.readme import region_readme, top_readme
from isthmus.deploy.region_files import coordinator_pieces, region_pieces
from isthmus.deploy.request import Request
from isthmus.deploy.scripts import check_scripts
from isthmus.deploy.sites import Site

__all__ = ["check", "pieces"]


def pieces(request: Request) -> tuple[Piece, ...]:
    """A folder a region, the coordinator's, and what to do with them."""
    found = [*coordinator_pieces(request), top_readme(request, "on every node: bash {folder}/node.sh")]
    for site in request.sites.sites:
        found += [*region_pieces(request, site), region_readme(request, site, _steps(site))]
    return tuple(found)


def _steps(site: Site) -> list[str]:
    return [
        f"On every node, at about the same time: `bash {site.folder}/node.sh`. It checks the node, then becomes torchrun;"
        f" nodes wait for each other at {site.rendezvous}. The node finds"
        " itself in `nodes.txt` by `hostname -s`, or by `ISTHMUS_NODE`.",
        f"torchrun starts the region's ranks again up to {site.entry.restarts} times when one fails. Whatever started `node.sh`"
        " (systemd with `Restart=on-failure` and `RestartPreventExitStatus=78`, say) has to start it again when a node dies.",
        "Exit code 78 means that the node is not fit or something is missing: starting again does not help.",
    ]


def check(folder: Path, request: Request) -> list[Finding]:
    """Scripts that bash would not read."""
    return check_scripts(folder, [*[f"{site.name}/node.sh" for site in request.sites.sites], "coordinator/start.sh"])
