"""A report as one HTML page for a ticket: it asks nothing of the network and needs no template engine."""

from collections import Counter
from html import escape

from isthmus.doctor.finding import Finding, rules
from isthmus.doctor.judge import Report

__all__ = ["as_html"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --paper: #ffffff; --line: #d0d7de; --card: #f6f8fa;
  --FATAL: #a40e26; --ERROR: #cf222e; --WARN: #9a6700; --INFO: #0969da; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117; --line: #3d444d; --card: #151b23;
  --FATAL: #ff7b72; --ERROR: #f85149; --WARN: #d29922; --INFO: #4493f8; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; }
.dim { color: var(--dim); }
article { border: 1px solid var(--line); border-left: .35rem solid var(--mark); border-radius: .4rem; padding: .6rem 1rem;
  margin: .9rem 0; }
article h2 { font-size: 1rem; margin: 0 0 .3rem; }
.tag { color: var(--mark); font-weight: 700; margin-right: .5rem; }
pre { background: var(--card); padding: .5rem .7rem; border-radius: .3rem; overflow-x: auto; margin: .4rem 0; font-size: 13px;
  white-space: pre-wrap; word-break: break-word; }
p { margin: .3rem 0; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
summary { cursor: pointer; color: var(--dim); }
"""


def as_html(report: Report, version: str) -> str:
    """The page."""
    counts = Counter(finding.severity for finding in report.findings)
    head = ", ".join(f"{counts[s]} {s}" for s in ("FATAL", "ERROR", "WARN", "INFO") if counts[s]) or "nothing found"
    by_key = {finding.key: finding for finding in report.findings}
    roots = [finding for finding in report.findings if not finding.cause]
    cards = "\n".join(_card(finding, [by_key[key] for key in finding.explains if key in by_key]) for finding in roots)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>isthmus doctor: {escape(head)}</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>isthmus doctor: {escape(head)}</h1>\n<p class="dim">{_scope(report)} isthmus {escape(version)}.</p>\n'
        f"{cards}\n{_files(report)}\n</body></html>\n"
    )


def _scope(report: Report) -> str:
    read = [file for file in report.files if not file.refused]
    hosts = f" of {len(report.hosts)} hosts" if len(report.hosts) > 1 else ""
    return f"{len(read)} of {len(report.files)} files{hosts} were recognised."


def _card(finding: Finding, then: list[Finding]) -> str:
    book = rules()[finding.rule]
    where = ", ".join(part for part in (finding.host, finding.subject if finding.subject != finding.host else "") if part)
    evidence = "\n".join(f"{place}: {place.text}" for place in finding.evidence)
    parts = [
        f'<article style="--mark: var(--{finding.severity})"><h2><span class="tag">{finding.severity}</span>'
        f"{escape(finding.rule)} {escape(finding.title)}</h2>",
        f"<p>{escape(finding.what)}</p>",
        f'<p class="dim">Where: {escape(where)}</p>' if where else "",
        f'<p class="dim">Since: {escape(finding.since)}</p>' if finding.since else "",
        f"<pre>{escape(evidence)}</pre>" if evidence else "",
    ]
    if then:
        rows = "".join(
            f"<li>{f.severity} {escape(f.rule)} {escape(f.host + ': ' if f.host else '')}{escape(f.what)}</li>" for f in then[:20]
        )
        parts.append(f"<p>Explains:</p><ul>{rows}</ul>")
    if finding.fix:
        parts.append(f"<p>Do:</p><pre>{escape(chr(10).join(finding.fix))}</pre>")
    parts.append(
        f"<details><summary>Threshold and source</summary><p>{escape(book.fires)}</p>"
        f"<p>Source: {escape(book.source)}</p><p>{escape(book.why)}</p></details></article>"
    )
    return "\n".join(part for part in parts if part)


def _files(report: Report) -> str:
    shown = report.files[:200]
    rows = "".join(
        f"<tr><td>{escape(f.file)}</td><td>{escape(f.host)}</td><td>{escape(f.refused or ', '.join(f.kinds))}</td></tr>"
        for f in shown
    )
    more = f'<p class="dim">and {len(report.files) - len(shown)} more files</p>' if len(report.files) > len(shown) else ""
    head = "<tr><th>file</th><th>host</th><th>read as</th></tr>"
    return f"<details><summary>Files</summary><table>{head}{rows}</table>{more}</details>"
