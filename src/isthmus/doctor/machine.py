"""Reports for machines: JSON and SARIF 2.1.0."""

from typing import Any

from isthmus.doctor.finding import Finding, rules
from isthmus.doctor.judge import Report
from isthmus.doctor.text import Place

__all__ = ["as_json", "as_sarif"]

_LEVELS = {"FATAL": "error", "ERROR": "error", "WARN": "warning", "INFO": "note"}


def as_json(report: Report) -> dict[str, Any]:
    """Everything, with stable names."""
    return {
        "version": 1,
        "findings": [_finding(finding) for finding in report.findings],
        "files": [
            {
                "file": f.file,
                "host": f.host,
                "kinds": list(f.kinds),
                "lines": f.lines,
                "refused": f.refused or None,
                "cut": f.cut or None,
            }
            for f in report.files
        ],
        "hosts": list(report.hosts),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "title": finding.title,
        "severity": finding.severity,
        "host": finding.host,
        "subject": finding.subject,
        "what": finding.what,
        "evidence": [_place(place) for place in finding.evidence],
        "since": finding.since or None,
        "fix": list(finding.fix),
        "cause": finding.cause or None,
        "explains": list(finding.explains),
        "key": finding.key,
        "source": rules()[finding.rule].source,
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "host": place.host, "text": place.text}


def as_sarif(report: Report, version: str) -> dict[str, Any]:
    """SARIF 2.1.0 (OASIS), as code scanning and ticket systems read it."""
    used = list(dict.fromkeys(finding.rule for finding in report.findings))
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "isthmus doctor", "version": version, "rules": [_sarif_rule(name) for name in used]}},
                "results": [_result(finding, used.index(finding.rule)) for finding in report.findings],
            }
        ],
    }


def _sarif_rule(name: str) -> dict[str, Any]:
    book = rules()[name]
    return {
        "id": name,
        "shortDescription": {"text": book.title},
        "fullDescription": {"text": f"{book.why} Fires when: {book.fires}."},
        "help": {"text": "\n".join(book.fix)},
        "defaultConfiguration": {"level": _LEVELS[book.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    where = f"{finding.host}: " if finding.host else ""
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": where + finding.what},
        "locations": [_location(place) for place in finding.evidence[:1]],
        "relatedLocations": [_location(place) for place in finding.evidence[1:]],
        "properties": {
            "severity": finding.severity,
            "host": finding.host,
            "subject": finding.subject,
            "cause": finding.cause,
            "fix": list(finding.fix),
        },
    }


def _location(place: Place) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": place.file.replace("\\", "/").replace(" ", "%20")},
            "region": {"startLine": place.line, "snippet": {"text": place.text}},
        }
    }
