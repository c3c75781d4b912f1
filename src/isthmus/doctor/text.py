"""Text as it is pasted -> lines as the tool printed them: colours, carriage returns, launcher and pod prefixes removed.

A line keeps its number in the file, so that every finding can point at it. Sizes are bounded here, once for all readers:
a line is cut at `LINE_CHARACTERS` and a file at `FILE_BYTES`, and both cuts are told to the reader of the report.
"""

import re
from dataclasses import dataclass, field
from typing import BinaryIO

__all__ = ["FILE_BYTES", "LINE_CHARACTERS", "Document", "Place", "count", "decimal", "document", "read_bounded", "real"]

FILE_BYTES = 64 * 2**20
LINE_CHARACTERS = 4096
_EVIDENCE_CHARACTERS = 240

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
# What launchers put before a line. The label says who wrote the line (a rank, a pod, a container).
_PREFIX = re.compile(
    r"""\s*(?:
      \[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:\s?             # mpirun --tag-output
    | \[(?P<rank>(?:rank|default|trainer|worker)\d+(?:\|\d+)?)\]:\s?   # torchrun
    | (?P<srun>\d{1,6}):[ ](?=\s*\S)                        # srun -l
    | \[pod/(?P<pod>[^\]\s]+)\]\s                           # kubectl logs --prefix
    | (?P<compose>[A-Za-z][\w.-]*-\d+)\s+\|\s               # docker compose logs
    | (?P<stamp>"""
    + _STAMP
    + r""")\s(?:std(?:out|err)\s[FP]\s)?(?=\S*:\d+:\d+\s\[|\[|NCCL|\#)   # kubectl logs --timestamps, containerd
    )""",
    re.VERBOSE,
)
_MAY_START_PREFIX = frozenset("[0123456789 \tabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PREFIX_HINT = re.compile(
    r"(?m)<std(?:out|err)>:|^\s*\[(?:rank|default|trainer|worker)\d|^\s*\d{1,6}: |^\[pod/|^[A-Za-z][\w.-]*-\d+\s+\| |^" + _STAMP
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was read: the evidence of a finding.

    Attributes:
        host: The machine it speaks of; empty when nothing says so.
        file: As the user named it, or its name inside a bundle.
        line: From 1.
        text: The line itself, without colours, cut at 240 characters.
    """

    host: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Document:
    """One file or one pasted text, ready to be read.

    Attributes:
        host: The machine that the whole file speaks of; empty when unknown.
        lines: Without prefixes and colours; `lines[i]` is line `i + 1` of the file.
        labels: Line index -> who wrote it, where a launcher said so.
        text: All of it, for formats that are not made of lines (JSON, XML).
        cut: What was left out because of the size limits; empty when nothing.
    """

    host: str
    file: str
    lines: list[str]
    labels: dict[int, str]
    text: str
    cut: str = ""
    kinds: list[str] = field(default_factory=list[str])

    def place(self, index: int, host: str = "") -> Place:
        """Evidence: the line with this index (from 0)."""
        text = self.lines[index] if 0 <= index < len(self.lines) else ""
        return Place(host or self.host, self.file, index + 1, text.strip()[:_EVIDENCE_CHARACTERS])


def read_bounded(stream: BinaryIO) -> tuple[bytes, str]:
    """At most `FILE_BYTES` of a stream, and in words what was left out."""
    data = stream.read(FILE_BYTES + 1)
    if len(data) <= FILE_BYTES:
        return data, ""
    return data[:FILE_BYTES], f"only its first {FILE_BYTES // 2**20} MiB were read"


def document(data: bytes | str, file: str, host: str = "", cut: str = "") -> Document:
    """Decode, clean and split one file."""
    text = data if isinstance(data, str) else _decoded(data)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x85", "\n")
    text = _CONTROL.sub("", text.replace("\u00a0", " ").replace("\u202f", " "))
    lines = text.split("\n")
    if any(len(line) > LINE_CHARACTERS for line in lines):
        cut = f"{cut}; long lines were cut".removeprefix("; ") if text.lstrip()[:1] not in {"{", "["} else cut
        lines = [line[:LINE_CHARACTERS] for line in lines]
    labels: dict[int, str] = {}
    if _PREFIX_HINT.search(text):
        _strip_prefixes(lines, labels)
    return Document(host, file, lines, labels, text, cut)


def _decoded(data: bytes) -> str:
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return data.decode("utf-16", errors="replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def _strip_prefixes(lines: list[str], labels: dict[int, str]) -> None:
    for index, line in enumerate(lines):
        if line[:1] not in _MAY_START_PREFIX:
            continue
        match = _PREFIX.match(line)
        for _ in range(3):  # kubectl --timestamps before mpirun's tag, and the like
            if match is None:
                break
            label = next((value for name, value in match.groupdict().items() if value and name != "stamp"), "")
            if label:
                labels[index] = label
            line = line[match.end() :]  # noqa: PLW2901
            match = _PREFIX.match(line)
        lines[index] = line


def real(text: str) -> float:
    """`decimal`, and 0 for what only looks like a number (`1.2.3`, sixty digits): a reader's pattern has already seen digits."""
    return decimal(text) or 0.0


_GROUPED = re.compile(r"[-+]?\d{1,3}(?:[,.' ]\d{3})+")


def count(text: str) -> int | None:
    """A whole number, with or without thousands separators of any country; None when it is none."""
    text = text.strip()
    if _GROUPED.fullmatch(text):
        return int(re.sub(r"[^\d+-]", "", text))
    if not re.fullmatch(r"[-+]?\d{1,30}", text):
        return None
    return int(text)


def decimal(text: str) -> float | None:
    """A number with a point or a comma before its decimals; None when it is none."""
    text = text.strip().replace(" ", "")
    if "," in text and "." in text:
        text = text.replace(",", "") if text.rindex(".") > text.rindex(",") else text.replace(".", "").replace(",", ".")
    elif "," in text:
        text = text.replace(",", ".", 1) if text.count(",") == 1 else text.replace(",", "")
    if not re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", text) or len(text) > 60:
        return None
    return float(text)
