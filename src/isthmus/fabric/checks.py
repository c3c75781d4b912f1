"""What is wrong, doubtful or worth knowing about a fabric: reach, compatibility, physics."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import assert_never

from isthmus.documents import parse_document, read_text
from isthmus.fabric.checks_network import network_findings
from isthmus.fabric.checks_region import region_findings
from isthmus.fabric.checks_wan import wan_findings
from isthmus.fabric.document import FabricDocument
from isthmus.fabric.finding import Finding, Severity, Subject
from isthmus.fabric.resolve import resolve

__all__ = ["Finding", "Severity", "check_fabric", "check_text"]

_CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (region_findings, network_findings, wan_findings)


def check_fabric(path: Path | str) -> list[Finding]:
    """Findings about the fabric file at `path`, gravest first, then by line.

    Raises:
        InputError: The file is not a fabric at all.
    """
    return check_text(read_text(path), str(path))


def check_text(text: str, source: str) -> list[Finding]:
    """As `check_fabric`, for text already in hand; `source` is its name in places."""
    document, lines = parse_document(text, source, FabricDocument)
    subject = Subject(document=document, lines=lines, fabric=resolve(document, lines))
    found = [finding for check in _CHECKS for finding in check(subject)]
    return sorted(found, key=lambda finding: (_rank(finding.severity), int(finding.where.rpartition(":")[2])))


def _rank(severity: Severity) -> int:
    match severity:
        case "error":
            return 0
        case "warning":
            return 1
        case "info":
            return 2
        case _:
            assert_never(severity)
