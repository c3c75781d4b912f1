"""One finding about a fabric, and what the checks look at."""

from dataclasses import dataclass
from typing import Literal

from isthmus.documents import Lines, Path_
from isthmus.fabric.document import FabricDocument
from isthmus.fabric.entries import Figure
from isthmus.fabric.model import Fabric

__all__ = ["Finding", "Severity", "Subject", "cite"]

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a fabric that its owner should know.

    Attributes:
        rule: Short name of the check.
        severity: error: cannot work as written; warning: works badly or is doubtful; info: good to know.
        where: `file:line`.
        reason: What was found and why it matters, with the figures.
        source: Where the figures come from, with the status of each source.
    """

    rule: str
    severity: Severity
    where: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A fabric as written and as resolved."""

    document: FabricDocument
    lines: Lines
    fabric: Fabric

    def finding(self, rule: str, severity: Severity, path: Path_, reason: str, source: str) -> Finding:
        """A finding about the value at `path`."""
        return Finding(rule=rule, severity=severity, where=self.lines.where(path), reason=reason, source=source)


def cite(*figures: Figure) -> str:
    """The sources of figures, each with its status: `linkx-mcp7y00 (opened)`."""
    return ", ".join(dict.fromkeys(f"{' + '.join(figure.sources)} ({figure.status})" for figure in figures))
