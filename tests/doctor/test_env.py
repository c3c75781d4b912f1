"""The environment linter: values as libc reads them, versions, 40 snippets, and three names that never existed."""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.doctor.case import Case
from isthmus.doctor.env.table import Variable, meant, variables
from isthmus.doctor.env.values import edits, read_integer
from isthmus.doctor.judge import diagnose
from isthmus.doctor.readers.settings import read_environment
from isthmus.doctor.rules.env import RULES
from isthmus.doctor.text import document

SNIPPETS = (Path(__file__).parent / "snippets.txt").read_text(encoding="utf-8").split("\n%% ")[1:]


def lint(text: str, nccl: tuple[int, ...] | None = None) -> set[tuple[str, str]]:
    """(rule, subject) above INFO."""
    case = Case(nccl=nccl)
    case.add(read_environment(document(text, "x")))
    return {(f.rule, f.subject) for condition in RULES.values() for f in condition(case) if f.severity != "INFO"}


def libc(text: str) -> int:
    strtoll = ctypes.CDLL(None).strtoll
    strtoll.restype, strtoll.argtypes = ctypes.c_longlong, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
    return strtoll(text.encode(), None, 0)


@given(st.from_regex(r"\A[ ]?[-+]?(0[xX])?[0-9a-fA-F]{0,9}[KMGx,. ]?[a-z]{0,4}\Z"))
def test_a_number_is_read_as_the_c_library_reads_it(text: str) -> None:
    assert (read_integer(text).value or 0) == libc(text)


@pytest.mark.parametrize(("text", "value"), [("true", 0), ("4M", 4), ("010", 8), ("0x68", 104), ("auto", 0), ("-1", -1)])
def test_the_readings_that_people_stumble_over(text: str, value: int) -> None:
    assert read_integer(text).value == value == libc(text)


def accepted(variable: Variable) -> str:
    if variable.accepts:
        return str(variable.accepts[0])
    if variable.kind == "level":
        return "PIX"
    return str(variable.low) if variable.low is not None else "65536" if variable.kind in {"int", "bytes"} else "some-value"


def refused(variable: Variable) -> tuple[str, str]:
    """(a value that is not allowed, the rule that says so); by another way than the linter: from the row of the table."""
    match variable.kind:
        case "int" | "bytes":
            return "7q", "ENV-03"
        case "level":
            return "NEAR", "ENV-03"
        case "enum" | "list" | "algorithms" | "protocols":
            return "WHATEVER", "ENV-04"
        case _:
            return "", ""


@pytest.mark.parametrize("status", ["documented", "undocumented"])
def test_every_variable_takes_an_accepted_value_and_not_a_refused_one(status: str) -> None:
    judged: Any = [v for v in variables().values() if v.status == status and v.name.startswith("NCCL_")]
    assert len(judged) > 100
    for variable in judged:
        said = {rule for rule, subject in lint(f"{variable.name}={accepted(variable)}") if subject == variable.name}
        assert not said & {"ENV-01", "ENV-03", "ENV-04"}, variable.name
        value, rule = refused(variable)
        if rule:
            assert rule in {r for r, subject in lint(f"{variable.name}={value}") if subject == variable.name}, variable.name
            assert rule != "ENV-03" or variable.kind == "level" or read_integer(value).value == libc(value) == 7


def test_a_version_outside_its_time_is_told_for_every_documented_and_removed_variable() -> None:
    for variable in variables().values():
        if variable.status == "documented" and variable.since and variable.since > "1.3.0":
            assert ("ENV-02", variable.name) in lint(f"{variable.name}={accepted(variable)}", (1, 0)), variable.name
        if variable.status == "removed" and variable.last and variable.name.startswith("NCCL_"):
            assert ("ENV-02", variable.name) in lint(f"{variable.name}=1", (2, 99)), variable.name
            old = tuple(map(int, variable.last.split(".")))
            assert ("ENV-02", variable.name) not in lint(f"{variable.name}=1", old), variable.name


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.split("\n")[1][:40])
def test_a_snippet_gets_the_findings_written_down_for_it(snippet: str) -> None:
    head, _, text = snippet.partition("\n")
    wanted = {tuple(item.split(":")) for item in head.strip().split(",") if item != "-"}
    assert lint(text) == wanted


def test_there_are_forty_snippets() -> None:
    assert len(SNIPPETS) == 40


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("NCCL_NET_SPLIT", "NCCL_IB_SPLIT_DATA_ON_QPS"),
        ("NCCL_IGNORE_CPU_LAUNCH_ERROR", "NCCL_IGNORE_CPU_AFFINITY"),
        ("BCCL_TREE_THRESHOLD", "NCCL_TREE_THRESHOLD"),
    ],
)
def test_names_that_never_existed_are_named_with_what_was_meant(name: str, real: str) -> None:
    report = diagnose([document(f"export {name}=1", "x")])
    assert [f.rule for f in report.findings if f.subject == name] == ["ENV-01"]
    assert re.search(rf"does not exist.*{real}", report.findings[0].what)


@given(st.sampled_from(sorted(v.name for v in variables().values() if v.status == "documented" and len(v.name) > 12)), st.data())
def test_one_letter_dropped_finds_the_name_back_or_a_name_as_near(name: str, data: Any) -> None:
    at = data.draw(st.integers(5, len(name) - 1))
    typed = name[:at] + name[at + 1 :]
    if typed not in variables():
        assert edits(typed, meant(typed)) <= 1
