"""`isthmus doctor topology`: draw an NCCL topology file, or write one for a described node."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

isthmus doctor topology /var/run/nvidia-topologyd/virtualTopology.xml

isthmus doctor topology --fabric examples/shenzhen-shanghai.yaml --region shenzhen > topo.xml
"""


def topology(
    path: Annotated[Path | None, typer.Argument(help="A file of NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE.")] = None,
    fabric: Annotated[Path | None, typer.Option("--fabric", help="Write a file for the nodes of this fabric instead.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Whose nodes; the first region if left out.")] = None,
) -> None:
    """Draw a topology file as NCCL reads it, or write one for a described node (virtual machines that hide theirs)."""
    from isthmus.errors import InputError
    from isthmus.formats.nccl_topology import draw, parse_elements, read_topology, write_elements

    if fabric is not None:
        from isthmus.doctor.described import node_topology
        from isthmus.fabric import read_fabric

        print(write_elements([node_topology(read_fabric(fabric), region)]), end="")
        return
    if path is None:
        raise InputError("isthmus doctor topology", "nothing to draw", "a topology file, or --fabric")
    text = path.read_text(encoding="utf-8", errors="replace")
    elements = parse_elements(text, str(path))
    if any(element.tag == "system" for element in elements):
        read_topology(text, str(path))
    print(draw(elements))
