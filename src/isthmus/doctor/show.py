"""A report for the terminal: for the person on call at 3 a.m. Roots first and in full, consequences as one line under them."""

from collections import Counter
from collections.abc import Iterator

from isthmus.doctor.finding import Finding, Rule, rule
from isthmus.doctor.judge import Report
from isthmus.doctor.text import Place

__all__ = ["Line", "explain_lines", "finding_lines", "report_lines"]

Line = tuple[str, str]
"""(style, text): style is a severity, `dim`, `bold` or empty."""

_LABEL = 10
_MOST_THEN, _MOST_HOSTS = 6, 8


def report_lines(report: Report, *, everything: bool = False) -> Iterator[Line]:
    """The whole report, line by line."""
    roots = [finding for finding in report.findings if not finding.cause]
    by_key = {finding.key: finding for finding in report.findings}
    for group in _alike([f for f in roots if f.severity != "INFO" or f.explains or everything]):
        yield from finding_lines(group[0], [by_key[key] for key in group[0].explains if key in by_key], [f.host for f in group])
        yield ("", "")
    notes = [f for f in roots if f.severity == "INFO" and not f.explains and not everything]
    for group in _alike(notes):
        yield from _note(group)
    if notes:
        yield ("", "")
    yield from _summary(report)


def _alike(findings: list[Finding]) -> list[list[Finding]]:
    """Findings that say the same of several hosts stand together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        said = finding.what.replace(finding.host, "NODE") if finding.host else finding.what
        groups.setdefault((finding.rule, finding.severity, said, "" if not finding.explains else finding.key), []).append(finding)
    return list(groups.values())


def finding_lines(finding: Finding, then: list[Finding], hosts: list[str] | None = None) -> Iterator[Line]:
    """One finding: what, where, evidence, since, what follows from it, what to do."""
    yield (finding.severity, f"{finding.severity:<5}  {finding.rule}  {finding.title}")
    yield ("", _row("what", finding.what))
    where = _where(finding, hosts or [finding.host])
    if where:
        yield ("", _row("where", where))
    for number, place in enumerate(finding.evidence[:3]):
        yield ("dim", _row("evidence" if not number else "", _evidence(place)))
    if len(finding.evidence) > 3:
        yield ("dim", _row("", f"and {len(finding.evidence) - 3} more lines"))
    if finding.since:
        yield ("", _row("since", finding.since))
    for number, effect in enumerate(then[:_MOST_THEN]):
        at = f" ({effect.evidence[0]})" if effect.evidence else ""
        yield (
            "",
            _row(
                "then" if not number else "",
                f"{effect.severity} {effect.rule} {effect.host + ': ' if effect.host else ''}{effect.what}{at}",
            ),
        )
    if len(then) > _MOST_THEN:
        yield ("", _row("", f"and {len(then) - _MOST_THEN} more consequences"))
    for number, step in enumerate(finding.fix):
        yield ("bold" if not step.startswith("#") else "", _row("do" if not number else "", step))


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}".rstrip()


def _evidence(place: Place) -> str:
    return f"{place}: {place.text[:150]}"


def _where(finding: Finding, hosts: list[str]) -> str:
    named = list(dict.fromkeys(host for host in hosts if host))
    shown = ", ".join(named[:_MOST_HOSTS]) + (f" and {len(named) - _MOST_HOSTS} more" if len(named) > _MOST_HOSTS else "")
    subject = f"GPU {finding.subject}" if finding.subject.isdecimal() else finding.subject
    return ", ".join(part for part in (shown, subject if subject != finding.host else "") if part)


def _note(group: list[Finding]) -> Iterator[Line]:
    finding = group[0]
    hosts = [f.host for f in group if f.host]
    where = f" [{len(hosts)} hosts]" if len(hosts) > 1 else f" [{hosts[0]}]" if hosts else ""
    yield ("INFO", f"INFO   {finding.rule}  {finding.what}{where}")
    if finding.evidence:
        yield ("dim", _row("", _evidence(finding.evidence[0])))


def _summary(report: Report) -> Iterator[Line]:
    counts = Counter(finding.severity for finding in report.findings)
    words = [f"{counts[s]} {s}" for s in ("FATAL", "ERROR", "WARN", "INFO") if counts[s]]
    read = [file for file in report.files if not file.refused]
    hosts = f" of {len(report.hosts)} hosts" if len(report.hosts) > 1 else ""
    kinds = ", ".join(dict.fromkeys(kind for file in read for kind in file.kinds))
    yield (
        "",
        (
            f"{', '.join(words) or 'Nothing found'} in {len(read)} file{'s' * (len(read) != 1)}{hosts} "
            f"({kinds or 'nothing that the doctor knows'})."
        ),
    )
    refused = [file for file in report.files if file.refused]
    for file in refused[:10]:
        yield ("WARN", f"not read: {file.file}: {file.refused}")
    if len(refused) > 10:
        yield ("WARN", f"not read: {len(refused) - 10} more files")
    for file in [file for file in report.files if file.cut][:10]:
        yield ("WARN", f"cut: {file.file}: {file.cut}")
    if report.serious:
        yield ("dim", "isthmus doctor explain RULE tells what a rule means, its threshold and the threshold's source.")


def explain_lines(name: str) -> Iterator[Line]:
    """All that a rule says of itself."""
    book: Rule = rule(name)
    yield (book.severity, f"{book.id}  {book.title}")
    for label, text in (
        ("severity", book.severity),
        ("why", book.why),
        ("reads", book.reads),
        ("fires", book.fires),
        ("source", book.source),
    ):
        yield ("", _row(label, text))
    for number, step in enumerate(book.fix):
        yield ("bold" if not step.startswith("#") else "", _row("do" if not number else "", step.replace("{subject}", "...")))
