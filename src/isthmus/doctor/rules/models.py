"""What a GPU's printed name says about NVLink and PCIe."""

import re

__all__ = ["is_module", "links", "pair_links", "pcie_generation"]

_MODULE = re.compile(r"SXM|HBM3\b|\bH200(?! NVL)|\bH20\b|\bGH200|\bGB[23]00|\bB[23]00|\bP100-SXM|\bV100-SXM|\bHGX")
_LINKS = (
    (r"V100|GV100", 6),
    (r"P100", 4),
    (r"A800", 8),
    (r"H800", 8),
    (r"A100", 12),
    (r"H100|H200|H20\b|GH200|B100|B200|B300|GB200|GB300", 18),
)
_PAIR = (
    (r"A100.*PCI|A800.*PCI|H100.*(?:PCI|NVL)|H800.*PCI", 12),
    (r"A30\b|A40\b|RTX A[56]\d00|RTX 3090|A6000|A5500|A5000|A4500", 4),
    (r"H200 NVL", 18),
)


def is_module(name: str) -> bool:
    """An SXM or superchip module: its NVLinks exist without any bridge."""
    return bool(_MODULE.search(name)) and not re.search(r"PCI[eE]|NVL\b", name)


def links(name: str) -> int | None:
    """NVLinks of a module (NCCL src/graph/topo.h; A800 and H800 as printed by their owners); None when not known."""
    if not is_module(name):
        return None
    return next((count for pattern, count in _LINKS if re.search(pattern, name)), None)


def pair_links(name: str) -> int | None:
    """NVLinks between two bridged PCIe cards with all bridges fitted (NVIDIA product pages, recalled); None when not known."""
    return next((count for pattern, count in _PAIR if re.search(pattern, name)), None) if not is_module(name) else None


def pcie_generation(name: str) -> int | None:
    """PCIe generation of the GPU itself; None when not known."""
    table = (
        (r"B[23]00|GB[23]00", 6),
        (r"H100|H200|H800|H20\b|GH200", 5),
        (r"A100|A800|A30\b|A40\b|A10\b|L4\b|L40|RTX 30|RTX 40|A6000", 4),
        (r"V100|P100|T4\b", 3),
    )
    return next((generation for pattern, generation in table if re.search(pattern, name)), None)
