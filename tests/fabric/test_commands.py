"""`isthmus catalog`, `check` and `schema`, through the command line."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli import main
from isthmus.fabric import entries, kinds

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isthmus", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return call


Run = Callable[..., tuple[int, str, str]]


def test_check_ends_with_one_where_something_is_found_and_names_it(run: Run, tmp_path: Path) -> None:
    text = (EXAMPLES / "shenzhen-shanghai.yaml").read_text().replace("rtt: 18 ms", "rtt: 11 ms")
    (tmp_path / "f.yaml").write_text(text)
    code, out, err = run("check", str(tmp_path / "f.yaml"))
    assert (code, err) == (1, "")
    assert out.startswith(
        f"error: {tmp_path}/f.yaml:13: RTT 11 ms is less than light needs in fibre between Shenzhen and Shanghai "
        "(1213 km, 11.9 ms)\n  rtt-floor; source: calc + smf28 (recalled)\n"
    )
    assert out.endswith("1 error, 0 warnings, 3 notes\n")


def test_check_ends_with_zero_where_there_are_notes_only(run: Run) -> None:
    code, out, _ = run("check", str(EXAMPLES / "one-node.yaml"))
    assert (code, out) == (0, "0 errors, 0 warnings, 0 notes\n")


def test_check_prints_findings_as_json(run: Run) -> None:
    code, out, _ = run("check", str(EXAMPLES / "shenzhen-shanghai.yaml"), "--json")
    assert code == 0
    assert {"rule", "severity", "where", "reason", "source"} == set(json.loads(out)[0])


def test_the_catalogue_lists_every_kind_and_every_entry(run: Run) -> None:
    _, out, _ = run("catalog")
    assert all(kind in out for kind in kinds())
    for kind in ("gpus", "rtt", "nodes"):
        code, out, _ = run("catalog", kind)
        assert code == 0
        assert all(name in out for name in entries(kind)), kind


def test_one_entry_shows_value_unit_per_source_and_status(run: Run) -> None:
    _, out, _ = run("catalog", "gpus", "h100-sxm5")
    line = next(line for line in out.splitlines() if "fabric_rate" in line)
    assert line.split() == ["fabric_rate", "450", "GB/s", "package", "and", "direction", "ml-eng-net,", "nv-health", "opened"]
    assert "https://docs.nvidia.com/health-validation/reference/checks/nvlink" in out
    recalled = next(line for line in run("catalog", "gpus", "t4-pcie")[1].splitlines() if "memory_bandwidth" in line)
    assert recalled.split()[-1] == "recalled"


def test_the_catalogue_as_json_carries_si_values_and_sources(run: Run) -> None:
    found = json.loads(run("catalog", "gpus", "h100-sxm5", "--json")[1])["gpus"][0]
    assert found["figures"]["fabric_rate"]["si"] == 450e9
    assert found["sources"]["nv-health"]["status"] == "opened"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpuz",), "error: catalogue: unknown kind 'gpuz'\n  hint: did you mean 'gpus'?\n"),
        (("nics", "cx7"), "error: catalogue: unknown name 'cx7' in nics\n  hint: known: bcm57608, connectx-5, connectx-6, "
         "connectx-7, connectx-8, efa-v3\n"),
    ],
)  # fmt: skip
def test_an_unknown_kind_or_name_ends_with_two(arguments: tuple[str, ...], message: str, run: Run) -> None:
    assert run("catalog", *arguments) == (2, "", message)


@pytest.mark.parametrize("document", ["fabric", "workload", "plan"])
def test_a_schema_describes_every_key_of_its_document(document: str, run: Run) -> None:
    code, out, _ = run("schema", document)
    schema: dict[str, Any] = json.loads(out)
    assert code == 0
    assert schema["additionalProperties"] is False
    assert {"fabric": "wan", "workload": "model", "plan": "strategy"}[document] in schema["properties"]


def test_the_schema_of_a_fabric_uses_the_words_of_the_file(run: Run) -> None:
    schema = json.loads(run("schema", "fabric")[1])
    link = schema["$defs"]["WanEntry"]["properties"]
    assert "class" in link
    assert "link_class" not in link
    assert '"gt":' not in json.dumps(schema)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml") if "regions:" in path.read_text()))
def test_every_example_satisfies_the_schema_that_editors_use(name: str, run: Run) -> None:
    schema = json.loads(run("schema", "fabric")[1])
    assert faults(yaml.safe_load((EXAMPLES / name).read_text()), schema, schema) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("rtt: 18 ms", "rtt: 18"), ("rate: 100 Gb/s", "rate: 100 km"), ("rtt:", "rrt:"), ("count: 2", "count: two")],
)
def test_an_editor_sees_what_the_reader_refuses(old: str, new: str, run: Run) -> None:
    schema = json.loads(run("schema", "fabric")[1])
    text = (EXAMPLES / "shenzhen-shanghai.yaml").read_text()
    assert old in text
    assert faults(yaml.safe_load(text.replace(old, new)), schema, schema)


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> list[str]:
    """The little of JSON Schema that our documents use; anything else in a schema is an error here."""
    known = {"$ref", "$defs", "$schema", "title", "description", "default", "type", "anyOf", "enum", "const", "pattern",
             "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "items", "minItems",
             "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
             "minProperties", "maxProperties"}  # fmt: skip
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        return faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return [] if any(not faults(value, each, root) for each in schema["anyOf"]) else [f"{value!r} fits none"]
    types = {"string": str, "integer": int, "number": int | float, "boolean": bool, "object": dict, "array": list,
             "null": type(None)}  # fmt: skip
    if "type" in schema and not isinstance(value, types[schema["type"]]):
        return [f"{value!r} is no {schema['type']}"]
    found = [f"{value!r} not allowed"] if value not in schema.get("enum", [schema.get("const", value)]) else []
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{value!r} has another form")
    if isinstance(value, list):
        found += [fault for each in value for fault in faults(each, schema["items"], root)]
    if isinstance(value, dict):
        found += [f"{key} missing" for key in schema.get("required", []) if key not in value]
        others = schema.get("additionalProperties", True)
        spread = next(iter(schema.get("patternProperties", {}).values()), others)
        for key, each in value.items():
            below = schema.get("properties", {}).get(key, spread)
            found += [f"{key} unknown"] if below is False else faults(each, below, root) if below is not True else []
    return found
