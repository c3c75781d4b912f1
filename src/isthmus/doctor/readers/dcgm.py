"""DCGM: `dcgmi diag` as table and JSON of every release, `dcgmi health`, dcgm-exporter; other health suites' one-line results."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.gpu import DcgmHealth, DcgmMetric, DiagResult
from isthmus.doctor.readers.json_text import entries, items, json_values, text_of
from isthmus.doctor.text import Document, Place, decimal

__all__ = ["read_dcgm"]

_ROW = re.compile(r"\|(?P<left>[^|]*)\|(?P<right>[^|]*)\|\s*$")
_RESULT = re.compile(r"(?P<result>Pass|Fail|Skip|Warn)(?:ed)?(?: - (?:All|GPUs?: ?(?P<gpus>[\d, ]+)))?\s*$")
_ENTITY = re.compile(r"->\s*(?:GPU )?(?P<gpu>\d+)\s*$")
_SYSTEM = re.compile(r"->\s*(?P<system>[A-Za-z][\w -]*?)(?: system)?\s*$")
_METRIC = re.compile(r"(?P<name>DCGM_FI_\w+)\{(?P<labels>[^}]*)\}\s+(?P<value>[-+]?[\d.eE+-]+)\s*$")
_LABEL = re.compile(r"(?P<key>\w+)=\"(?P<value>[^\"]*)\"")
_SUITE = re.compile(r" - (?P<level>INFO|WARNING|ERROR|CRITICAL) - (?P<test>.+?)\s*: (?P<result>Passed|Failed)\b(?P<rest>.*)$")
_SUITE_HEAD = "GPU host setup check"


def read_dcgm(document: Document) -> Iterator[DiagResult | DcgmHealth | DcgmMetric]:
    """Whatever of DCGM is in the text."""
    text = document.text
    if "|" in text and ("Result" in text or "Pass" in text or "Fail" in text or "Warning" in text or "Error" in text):
        yield from _diag_table(document)
    if "Health" in text and "|" in text:
        yield from _health(document)
    if "DCGM_FI_" in text:
        yield from _metrics(document)
    yield from _diag_json(document)
    if _SUITE_HEAD in text or " Test: " in text:
        yield from _suite(document)


def _cells(line: str) -> tuple[str, str] | None:
    row = _ROW.match(line.strip()) if line.lstrip()[:1] == "|" else None
    return (row["left"], row["right"]) if row else None


def _diag_table(document: Document) -> Iterator[DiagResult]:
    """Rows `| test | Pass - All |`; Warning and Error rows carry text that runs over the next rows."""
    test, at, words, kind = "", document.place(0), "", ""
    for index, line in enumerate(document.lines):
        cells = _cells(line)
        if cells is None:
            if kind:
                yield _said(test, kind, words, at)
                kind = ""
            continue
        left, right = cells[0].strip(), cells[1]
        if kind and not left and not _RESULT.match(right.strip()):
            words += _chunk(right)
            continue
        if kind:
            yield _said(test, kind, words, at)
            kind = ""
        result = _RESULT.match(right.strip())
        if left in {"Warning", "Error", "Info"}:
            kind, at, words = left, document.place(index), _chunk(right)
        elif result and "->" not in left:
            test = left or test
            yield DiagResult(
                at=document.place(index), test=test, result=result["result"], gpus=(result["gpus"] or "").strip(" ,"), message=""
            )
    if kind:
        yield _said(test, kind, words, at)


def _chunk(cell: str) -> str:
    """One line of a wrapped text. dcgmi breaks at 45 letters, in the middle of words; a shorter line lost a blank at its end."""
    text = cell[1:].rstrip()
    return text if len(text) >= 45 else text + " "


def _said(test: str, kind: str, words: str, at: Place) -> DiagResult:
    message = re.sub(r"\s+", " ", words).strip()
    found = re.search(r"GPU (\d+)", message)
    result = {"Error": "Fail", "Warning": "Warn", "Info": "Pass"}[kind]
    return DiagResult(at=at, test=test or "Deployment", result=result, gpus=found[1] if found else "", message=message)


def _health(document: Document) -> Iterator[DcgmHealth]:
    gpu, system, status = "", "", ""
    for index, line in enumerate(document.lines):
        cells = _cells(line)
        if cells is None:
            continue
        left, right = cells[0].strip(), cells[1].strip()
        if entity := _ENTITY.match(left):
            gpu = entity["gpu"]
        elif found := _SYSTEM.match(left):
            system, status = found["system"], right
        elif not left and system and right:
            yield DcgmHealth(at=document.place(index), gpu=gpu, system=system, status=status, message=right)
        elif left.startswith("Overall Health"):
            yield DcgmHealth(at=document.place(index), gpu="", system="overall", status=right, message=right)


def _metrics(document: Document) -> Iterator[DcgmMetric]:
    for index, line in enumerate(document.lines):
        if line.startswith("DCGM_FI_") and (row := _METRIC.match(line)):
            labels = {found["key"]: found["value"] for found in _LABEL.finditer(row["labels"])}
            value = decimal(row["value"])
            if value is not None:
                entity = labels.get("gpu") or labels.get("nvswitch") or labels.get("device", "")
                yield DcgmMetric(
                    at=document.place(index), name=row["name"], entity=entity, model=labels.get("modelName", ""), value=value
                )


def _diag_json(document: Document) -> Iterator[DiagResult]:
    for start, value in json_values(document, "test_categories"):
        roots = [value, *(body for _, body in entries(value))]
        for root in roots:
            for category in items(dict(entries(root)).get("test_categories")):
                for test in items(dict(entries(category)).get("tests")):
                    yield from _json_test(document, start, dict(entries(test)))


def _json_test(document: Document, start: int, test: dict[str, object]) -> Iterator[DiagResult]:
    name = text_of(test.get("name"))
    line = next((index for index in range(start, len(document.lines)) if f'"{name}"' in document.lines[index]), start)
    results = items(test.get("results"))
    summary = dict(entries(test.get("test_summary")))
    for result in [*results, *([summary] if summary and not results else [])]:
        fields = dict(entries(result))
        status = text_of(fields.get("status"))
        said = [
            text_of(fields.get("info")),
            *(text_of(w) or text_of(dict(entries(w)).get("warning")) for w in items(fields.get("warnings"))),
        ]
        warnings = text_of(fields.get("warnings"))
        at = next(
            (index for index in range(line, min(line + 40, len(document.lines))) if f'"{status}"' in document.lines[index]), line
        )
        yield DiagResult(
            at=document.place(at),
            test=name,
            result=status[:4].capitalize() if status.lower()[:4] in {"pass", "fail", "skip", "warn"} else status,
            gpus=text_of(fields.get("gpu_ids") or fields.get("gpu_id") or fields.get("entity_id")),
            message=" ".join(word for word in [*said, warnings] if word).strip(),
        )


def _suite(document: Document) -> Iterator[DiagResult]:
    """One-line results of cloud vendors' host checks."""
    for index, line in enumerate(document.lines):
        if " - " in line and (row := _SUITE.search(line)):
            yield DiagResult(
                at=document.place(index),
                test=row["test"].strip(),
                result="Pass" if row["result"] == "Passed" else "Fail",
                gpus="",
                message=row["rest"].strip(),
            )
