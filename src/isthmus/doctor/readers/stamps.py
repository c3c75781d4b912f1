"""Times as kernel logs, syslog and journald print them -> seconds; only differences within one file count."""

import re
from datetime import UTC, datetime

from isthmus.doctor.text import real

__all__ = ["Stamp", "stamp"]

_UPTIME = re.compile(r"(?:<\d+>)?\[\s*(?P<up>\d+\.\d+)\]")
_CTIME = re.compile(r"\[(?P<ctime>[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\]")
_SYSLOG = re.compile(r"(?P<syslog>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d)(?:\.\d+)?\s+(?P<host>[\w.-]+)\s")
_ISO = re.compile(
    r"\[?(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](?P<part>\d+))?(?:Z|[+-]\d\d:?\d\d)?\]?(?:\s+"
    r"(?P<host>[a-zA-Z][\w.-]*)\s+kernel)?"
)
_KMSG = re.compile(r"\d+,\d+,(?P<kmsg>\d+),")

Stamp = tuple[float | None, str, str]


def stamp(line: str) -> Stamp:
    """(seconds, the time as printed, host) of a log line; None and empty where it has none."""
    head = line.lstrip()[:80]
    if found := _UPTIME.match(head):
        return real(found["up"]), f"{found['up']} s after boot", ""
    if found := _KMSG.match(head):
        return int(found["kmsg"]) / 1e6, f"{int(found['kmsg']) / 1e6:.6f} s after boot", ""
    if found := _CTIME.match(head):
        return _parsed(" ".join(found["ctime"].split()), "%a %b %d %H:%M:%S %Y"), found["ctime"], ""
    if found := _ISO.match(head):
        seconds = _parsed(found["iso"].replace("T", " "), "%Y-%m-%d %H:%M:%S")
        part = real(f"0.{found['part'][:6]}") if found["part"] else 0.0
        return (None if seconds is None else seconds + part), found["iso"], found["host"] or ""
    if found := _SYSLOG.match(head):
        # syslog has no year: 2000 is a leap year, so that 29 February can be read.
        return _parsed("2000 " + " ".join(found["syslog"].split()), "%Y %b %d %H:%M:%S"), found["syslog"], found["host"]
    return None, "", ""


def _parsed(text: str, pattern: str) -> float | None:
    try:
        return datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
