"""Acceptance A7, how a file is written: each fault ends with exit 2, place, cause and hint."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
name: Two
regions:
  west:
    city: Shenzhen
    nodes: [{count: 2, kind: hgx-h100}]
    network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}
  east:
    city: Shanghai
    nodes: [{count: 2, kind: hgx-h100}]
    network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}
wan:
  - {between: [west, east], rate: 100 Gb/s, rtt: 18 ms}
"""


def edit(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


# name, file, what follows "error: f.yaml", hint
CASES: list[tuple[str, str | bytes, str, str]] = [
    (
        "a huge count",
        edit("count: 2", "count: 99999999999999999999999999999999999999999999999999"),
        ":5: count: found a number of more than 40 digits, expected at most 100000",
        "count: Nodes of this kind in the region, such as 2.",
    ),
    (
        "a count in octal",
        edit("count: 2", "count: 010"),
        ":5: '010' is a number in a notation that is not read here",
        "write it in base 10, without leading zeros; put text in quotes",
    ),
    (
        "a boolean as a count",
        edit("count: 2", "count: true"),
        ":5: count: found true, a truth value",
        "write numbers in digits, put text in quotes",
    ),
    (
        "a misspelt top key",
        edit("regions:", "region:"),
        ":2: unknown key 'region' (1 more fault in this file)",
        "did you mean 'regions'?",
    ),
    (
        "a missing name",
        edit("name: Two\n", ""),
        ":1: the key 'name' is missing",
        "every document of this kind needs it",
    ),
    (
        "a region given twice",
        edit("  east:", "  west:"),
        ":7: the key 'west' is given twice",
        "first at line 3; keep one",
    ),
    (
        "a key given twice",
        edit("name: Two", "name: Two\nname: Three"),
        ":2: the key 'name' is given twice",
        "first at line 1; keep one",
    ),
    (
        "a list where a map is expected",
        "name: Two\nregions:\n  - {nodes: [{count: 2, kind: hgx-h100}]}\n",
        ":2: regions: found a list, expected keys and values",
        "regions: Name of each region, and under it nodes, network and city.",
    ),
    (
        "a map where a list is expected",
        edit("  - {between: [west, east], rate: 100 Gb/s, rtt: 18 ms}", "  {between: [west, east]}"),
        ":11: wan: found keys and values, expected a list",
        "wan: Links, such as - {between: [west, east], rate: 100 Gb/s, rtt: 18 ms}.",
    ),
    (
        "text where a map is expected",
        edit("network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}", "network: infiniband"),
        ":6: network: found 'infiniband', expected keys and values",
        "network: Such as {kind: infiniband, rate: 400 Gb/s}; may be left out for a region of one node.",
    ),
    (
        "a number as a name",
        edit("name: Two", "name: 2"),
        ":1: name: found 2, expected text",
        "name: A title, in quotes where it is a number or yes or no.",
    ),
    (
        "a YAML truth value as a name",
        edit("name: Two", "name: no"),
        ":1: name: found false, a truth value",
        "write numbers in digits, put text in quotes",
    ),
    (
        "a list as the whole file",
        "- a\n- b\n",
        ":1: expected keys and values, found a list",
        "expected the keys name, regions, wan, prices",
    ),
    (
        "a word as the whole file",
        "fabric\n",
        ":1: expected keys and values, found 'fabric'",
        "expected the keys name, regions, wan, prices",
    ),
    (
        "an empty file",
        "",
        ": is empty",
        "expected the keys name, regions, wan, prices",
    ),
    (
        "a file of comments",
        "# nothing\n\n# here\n",
        ": is empty",
        "expected the keys name, regions, wan, prices",
    ),
    (
        "two documents in one file",
        GOOD + "---\n" + GOOD,
        ":13: is not YAML: a second document begins",
        "keep one document in a file: remove the line '---'",
    ),
    (
        "a tab as indentation",
        edit("    city: Shenzhen", "\tcity: Shenzhen"),
        ":4: is not YAML: a tab is used to indent",
        "indent with spaces",
    ),
    (
        "a bracket that is never closed",
        edit("[{count: 2, kind: hgx-h100}]", "[{count: 2, kind: hgx-h100}"),
        ":6: is not YAML: did not find expected ',' or ']'",
        "check the indentation, colons and quotes near this line",
    ),
    (
        "a colon too many",
        edit("city: Shenzhen", "city: Shenzhen: north"),
        ":4: is not YAML: mapping values are not allowed in this context",
        "check the indentation, colons and quotes near this line",
    ),
    (
        "an unknown alias",
        edit("city: Shenzhen", "city: *where"),
        ":4: is not YAML: found undefined alias",
        "an alias *name needs an anchor &name before it; put text that begins with * in quotes",
    ),
    (
        "an alias that contains itself",
        "name: &a [*a]\nregions: {}\n",
        ":1: an alias refers to something that contains it",
        "write the value out instead of *alias",
    ),
    (
        "a loop of aliases",
        "name: x\nregions: &r\n  west: &w\n    nodes: [*r]\n",
        ":2: an alias refers to something that contains it",
        "write the value out instead of *alias",
    ),
    (
        "a billion laughs",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join(['*' + p] * 10)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        ":1: holds more than 50000 values, aliases written out",
        "isthmus documents hold a few hundred; aliases of aliases grow exponentially",
    ),
    (
        "a chain of aliases",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200)),
        ":1: is nested more than 32 deep through aliases",
        "write the values out",
    ),
    (
        "a merge key",
        edit("nodes: [{count: 2, kind: hgx-h100}]", "nodes: [{<<: {count: 2}, kind: hgx-h100}]"),
        ":5: merge keys ('<<') are not read",
        "write the values out",
    ),
    (
        "a Python tag",
        edit("name: Two", "name: !!python/object/apply:os.system ['true']"),
        ":1: the YAML tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read here",
        "write the plain value without a tag",
    ),
    (
        "a tag of one's own",
        edit("name: Two", "name: !secret Two"),
        ":1: the YAML tag '!secret' is not read here",
        "write the plain value without a tag",
    ),
    (
        "deep nesting",
        "name: " + "[" * 100 + "]" * 100 + "\n",
        ":1: is nested more than 32 deep",
        "isthmus documents are at most a few levels deep; is this another file?",
    ),
    (
        "a key that is a list",
        edit("name: Two", "? [a, b]\n: Two"),
        ":1: a key must be a plain word",
        "write key: value, the key without brackets or braces",
    ),
    (
        "ten megabytes",
        "name: x\n" + "# padding\n" * 1_000_000,
        ": is larger than 1 MB, the most a document may have",
        "isthmus documents are a few kB; is this another file?",
    ),
    (
        "not UTF-8",
        GOOD.encode().replace(b"Two", b"Tw\xff"),
        ":1: byte 0xff is not UTF-8",
        "save the file as UTF-8",
    ),
    (
        "UTF-16",
        GOOD.encode("utf-16"),
        ":1: byte 0xff is not UTF-8",
        "save the file as UTF-8",
    ),
    (
        "a control character",
        edit("name: Two", "name: Tw\x07o"),
        ":1: is not YAML: control characters are not allowed",
        "is this a text file?",
    ),
    (
        "a base-60 number",
        edit("rtt: 18 ms", "rtt: 1:30"),
        ":12: '1:30' is a number in a notation that is not read here",
        "write it in base 10, without leading zeros; put text in quotes",
    ),
    (
        "a workload given as a fabric",
        "name: w\nmodel: llama-3-8b\nsequence_length: 4096\n",
        ":2: unknown key 'model' (2 more faults in this file)",
        "this looks like a workload; expected the keys name, regions, wan, prices",
    ),
    (
        "a plan given as a fabric",
        "version: 1\nfabric: f\nstrategy: {name: x, kind: flat}\n",
        ":1: unknown key 'version' (4 more faults in this file)",
        "this looks like a plan; expected the keys name, regions, wan, prices",
    ),
]


@pytest.mark.parametrize(("body", "found", "hint"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_malformed_file_is_refused_with_place_cause_and_hint(
    body: str | bytes, found: str, hint: str, refuse: Callable[[str | bytes | None], str]
) -> None:
    assert refuse(body) == f"error: f.yaml{found}\n  hint: {hint}\n"


def test_a_file_that_is_not_there_is_refused(refuse: Callable[[str | bytes | None], str]) -> None:
    assert refuse(None) == "error: f.yaml: no such file\n"


def test_a_folder_is_refused(tmp_path: Path, refuse: Callable[[str | bytes | None], str]) -> None:
    (tmp_path / "f.yaml").mkdir()
    assert refuse(None) == "error: f.yaml: is a folder, expected a file\n"


@pytest.mark.parametrize("body", [edit("rtt: 18 ms", "rtt: 18"), "a: &a [*a]\n"])
def test_a_real_process_prints_the_refusal_alone_on_stderr(body: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(body)
    command = [sys.executable, "-c", "from isthmus.cli import main; main()", "check", "f.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: f.yaml:")
    assert "Traceback" not in done.stderr
