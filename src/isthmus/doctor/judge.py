"""Documents -> report: read, judge, put in order."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from isthmus.doctor.case import Case, Expected
from isthmus.doctor.causes import explained
from isthmus.doctor.finding import Finding
from isthmus.doctor.readers.kinds import read
from isthmus.doctor.rules import across, bench, env, gpu, host, nccl, nvlink, pcie, ports, roce, topology, wan
from isthmus.doctor.text import Document

__all__ = ["CONDITIONS", "Report", "SourceFile", "diagnose"]

Condition = Callable[[Case], Iterator[Finding]]

CONDITIONS: tuple[tuple[str, Condition], ...] = tuple(
    (name, condition)
    for room in (nvlink, pcie, gpu, ports, roce, topology, nccl, bench, host, env, wan, across)
    for name, condition in room.RULES.items()
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What became of one input: the kinds of output that were recognised in it, or why it was refused."""

    file: str
    host: str
    kinds: tuple[str, ...]
    lines: int
    refused: str
    cut: str


@dataclass(frozen=True, slots=True)
class Report:
    """Findings, worst first, and what was read."""

    findings: tuple[Finding, ...]
    files: tuple[SourceFile, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Machines that the input names."""
        return tuple(dict.fromkeys(file.host for file in self.files if file.host))

    @property
    def serious(self) -> bool:
        """Is there anything above INFO?"""
        return any(finding.severity != "INFO" for finding in self.findings)


def diagnose(
    documents: Iterable[Document], expected: Expected | None = None, nccl_version: tuple[int, ...] | None = None
) -> Report:
    """Read every document once, then judge all facts together. Documents may come from a generator: only facts are kept."""
    case = Case(expected=expected or Expected(), nccl=nccl_version)
    files: list[SourceFile] = []
    for document in documents:
        facts = read(document)
        case.add(facts)
        files.append(_source(document, bool(document.kinds)))
    findings: list[Finding] = []
    for _, condition in CONDITIONS:
        findings += condition(case)
    return Report(tuple(explained(_once(findings))), tuple(files))


def _source(document: Document, recognised: bool) -> SourceFile:
    refused = "" if recognised else _refusal(document)
    return SourceFile(document.file, document.host, tuple(document.kinds), len(document.lines), refused, document.cut)


def _refusal(document: Document) -> str:
    text = document.text.strip()
    if not text:
        return "it is empty"
    if text.count("\ufffd") > len(text) // 10:
        return "it is not text"
    return "no line of it looks like the output of a tool that the doctor reads (isthmus doctor --kinds lists them)"


def _once(findings: list[Finding]) -> list[Finding]:
    """One finding for each rule, host and subject: the worst, then the first."""
    kept: dict[tuple[str, str, str], Finding] = {}
    order = {"FATAL": 0, "ERROR": 1, "WARN": 2, "INFO": 3}
    for finding in findings:
        key = (finding.rule, finding.host, finding.subject or finding.what)
        if key not in kept or order[finding.severity] < order[kept[key].severity]:
            kept[key] = finding
    return list(kept.values())
