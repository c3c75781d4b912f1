"""NCCL's topology and graph files -> what the rules ask of them."""

from collections.abc import Iterator

from isthmus.doctor.facts.nccl import TopologyFile
from isthmus.doctor.text import Document
from isthmus.errors import InputError
from isthmus.formats.nccl_topology import Element, find_all, parse_elements

__all__ = ["read_topology_xml"]


def read_topology_xml(document: Document) -> Iterator[TopologyFile]:
    """One fact a file or fragment; text that is no XML of this kind gives none."""
    if not any(mark in document.text for mark in ("<system", "<pci", "<gpu", "<graphs")):
        return
    try:
        elements = parse_elements(document.text, document.file)
    except InputError:
        return
    names = {element.tag for element in elements}
    if not names & {"system", "cpu", "pci", "graphs", "graph"}:
        return
    gpus = [(pci, gpu) for pci in find_all(elements, "pci") for gpu in pci.children if gpu.tag == "gpu"]
    linked = {id(gpu) for _, gpu in gpus if any(child.tag == "nvlink" for child in gpu.children)}
    first = elements[0]
    yield TopologyFile(
        at=document.place(first.line - 1),
        addresses=frozenset(pci.attributes.get("busid", "").lower() for pci in find_all(elements, "pci")),
        numa=frozenset(cpu.attributes.get("numaid", "") for cpu in find_all(elements, "cpu")),
        gpus=len(gpus) or _of_class(elements, "0x0302"),
        nics=len(find_all(elements, "net")) or _of_class(elements, "0x02"),
        gpu_addresses=frozenset(
            pci.attributes.get("busid", "").lower()
            for pci in find_all(elements, "pci")
            if pci.attributes.get("class", "").startswith("0x0302") or any(child.tag == "gpu" for child in pci.children)
        ),
        coherent=any(child.tag == "c2c" for _, gpu in gpus for child in gpu.children),
        gpus_without_nvlink=tuple(pci.attributes.get("busid", "") for pci, gpu in gpus if id(gpu) not in linked),
        architectures=frozenset(int(sm) for _, gpu in gpus if (sm := gpu.attributes.get("sm", "")).isdecimal()),
        fragment="system" not in names and "graphs" not in names,
        graph="graphs" in names,
        shape=tuple(sorted(_shapes(elements))),
    )


def _of_class(elements: tuple[Element, ...], prefix: str) -> int:
    return sum(pci.attributes.get("class", "").startswith(prefix) for pci in find_all(elements, "pci"))


def _shapes(elements: tuple[Element, ...]) -> list[str]:
    """The tree without names: what two nodes of one job must have alike."""
    found: list[str] = []
    for element in elements:
        keep = {
            key: element.attributes[key] for key in ("class", "numaid", "count", "sm", "link_width") if key in element.attributes
        }
        inside = ",".join(sorted(_shapes(element.children)))
        found.append(f"{element.tag}{sorted(keep.items())}[{inside}]")
    return found
