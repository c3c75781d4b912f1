"""A finding, the rule book that its words come from, and how findings are put in order."""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from isthmus.doctor.text import Place
from isthmus.errors import InputError, nearest

__all__ = ["SEVERITIES", "Finding", "Rule", "found", "rank", "rule", "rules"]

SEVERITIES = ("FATAL", "ERROR", "WARN", "INFO")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of rules.toml: what a rule means, in our words, with its threshold and the threshold's source."""

    id: str
    title: str
    severity: str
    priority: int
    reads: str
    fires: str
    source: str
    why: str
    fix: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong, or worth knowing, with its evidence.

    Attributes:
        rule: Id in rules.toml.
        severity: FATAL: the job cannot run or its data are at risk; ERROR: drain or repair; WARN: slower or doubtful; INFO: note.
        host: The machine; empty when the input does not say.
        subject: Device, port, variable, peer.
        what: One sentence with the figures.
        evidence: Lines that show it, the first one first.
        since: Time of the first evidence as printed; empty when the input has no times.
        time_s: The same in seconds, for telling roots from consequences.
        fix: Commands (and comments) to run, in order.
        cause: Index of the finding that explains this one, set by `causes`.
    """

    rule: str
    severity: str
    host: str
    subject: str
    what: str
    evidence: tuple[Place, ...]
    since: str = ""
    time_s: float | None = None
    fix: tuple[str, ...] = ()
    cause: str = ""
    explains: tuple[str, ...] = field(default=())

    @property
    def title(self) -> str:
        """The rule's title."""
        return rule(self.rule).title

    @property
    def key(self) -> str:
        """Names the finding within one report."""
        return f"{self.rule} {self.host} {self.subject}".strip()


@cache
def rules() -> dict[str, Rule]:
    """All rules by id, in the order of the file."""
    data = tomllib.loads(files("isthmus.doctor").joinpath("rules.toml").read_text(encoding="utf-8"))
    return {name: Rule(id=name, fix=tuple(body.pop("fix")), **body) for name, body in data.items()}


def rule(name: str) -> Rule:
    """One rule. Raises InputError with the nearest id."""
    found = rules().get(name.upper())
    if found is None:
        raise InputError("<rule>", f"no rule {name!r}", nearest(name.upper(), rules()))
    return found


def found(
    name: str, what: str, *evidence: Place, subject: str = "", severity: str = "", since: tuple[float | None, str] = (None, "")
) -> Finding:
    """A finding of rule `name` about the host of its first evidence; severity and fix are the rule's unless given."""
    book = rules()[name]
    return Finding(
        rule=name,
        severity=severity or book.severity,
        host=evidence[0].host if evidence else "",
        subject=subject,
        what=what,
        evidence=evidence[:6],
        since=since[1],
        time_s=since[0],
        fix=tuple(step.replace("{subject}", _addressed(subject) or "...") for step in book.fix),
    )


def _addressed(subject: str) -> str:
    """The driver prints `0000:9b:00`; the tools want the function too."""
    return f"{subject}.0" if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", subject) else subject


def rank(finding: Finding) -> tuple[int, int, int, str, str]:
    """Worst first; among equals roots before consequences, then the rule's priority."""
    return (SEVERITIES.index(finding.severity), bool(finding.cause), rules()[finding.rule].priority, finding.rule, finding.key)
