"""Reference pages written from the program: a page a command from its own --help, documents from their JSON Schemas, metrics."""

import io
import os
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

from sphinx.application import Sphinx

from isthmus import cli
from isthmus.documents import json_schema

WIDTH = 88
DOCUMENTS = {
    "fabric": ("isthmus.fabric.document:FabricDocument", "What stands where: regions, nodes, networks, the links between."),
    "workload": ("isthmus.workload.document:WorkloadDocument", "What is trained: a model's shape, the batch, the precision."),
    "plan": (
        "isthmus.plan:Plan",
        "How it is trained, what was predicted and why: `isthmus plan` writes it, `isthmus.join` runs it.",
    ),
    "sites": ("isthmus.deploy.sites:SitesDocument", "Where regions really stand: addresses, folders, the engine's options."),
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for its sources."""
    app.connect("builder-inited", lambda each: write_pages(Path(each.srcdir)))
    return {"parallel_read_safe": True}


def write_pages(docs: Path) -> None:
    """All generated pages into `docs`/reference; a page that says the same as before stays as it is."""
    for path, text in pages().items():
        place = docs / "reference" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Path under docs/reference -> Markdown."""
    found = {f"commands/{name}.md": command_page(name, line) for name, line in cli.COMMANDS.items()}
    for name, (place, line) in DOCUMENTS.items():
        module, attribute = place.split(":")
        found[f"documents/{name}.md"] = document_page(name, line, json_schema(getattr(import_module(module), attribute)))
    found["metrics.md"] = metrics_page()
    return found


def help_of(words: list[str]) -> str:
    """What `isthmus WORDS --help` prints, without its examples."""
    before, printed = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with redirect_stdout(printed):
            cli._run_command(words[0], [*words[1:], "--help"])
    except SystemExit:
        pass
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return printed.getvalue().split("  Examples:")[0].rstrip()


def command_page(name: str, line: str) -> str:
    """One command and its subcommands."""
    module = import_module(f"isthmus.cli.{cli._MODULES.get(name, name)}")
    parts = [f"# isthmus {name}\n\n{line}\n", _help_block([name], getattr(module, "EXAMPLES", None))]
    for sub in getattr(module, "SUBCOMMANDS", {}):
        parts += [f"## isthmus {name} {sub}\n", _help_block([name, sub], None)]
    return "\n".join(parts)


def _help_block(words: list[str], examples: str | None) -> str:
    text = f"```text\n{help_of(words)}\n```\n"
    lines = [line for line in (examples or "").splitlines() if line.strip() and line.strip() != "Examples:"]
    return text + (("\nExamples:\n\n```sh\n" + "\n".join(lines) + "\n```\n") if lines else "")


def document_page(name: str, line: str, schema: Mapping[str, Any]) -> str:
    """One document as tables: its own keys, then those of every part."""
    parts = [f"# {name}.yaml\n\n{line} `isthmus schema {name}` prints the JSON Schema, for your editor.\n"]
    parts.append(_table(schema))
    for part, definition in schema.get("$defs", {}).items():
        text = " ".join(_paragraphs(definition.get("description", "")))
        if "properties" in definition:
            parts.append(f"({name}-{part.lower()})=\n## {part.removesuffix('Entry')}\n\n{text}\n\n{_table(definition, name)}")
    return "\n".join(_linked(each, name) for each in parts)


def _paragraphs(text: str) -> Iterable[str]:
    return (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _linked(text: str, name: str) -> str:
    return text.replace("](#", f"](#{name}-")


def _table(definition: Mapping[str, Any], _: str = "") -> str:
    needed = set(definition.get("required", ()))
    rows = ["| key | takes | if left out | meaning |", "|---|---|---|---|"]
    for key, entry in definition["properties"].items():
        left_out = "needed" if key in needed else _default(entry)
        meaning = " ".join(entry.get("description", "").split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {_kind(entry)} | {left_out} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(entry: Mapping[str, Any]) -> str:
    value = entry.get("default")
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str | int | float) else "see there"


_EXAMPLES = {"Gb/s": "100 Gb/s", "ms": "18 ms", "km": "40 m", "GB": "64 GB", "kW": "10 kW", "%": "0.1%"}
_PLAIN = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def _kind(entry: Mapping[str, Any]) -> str:
    """A schema in a few words; parts of the document are links to their tables."""
    match entry:
        case {"$ref": place}:
            part = place.rsplit("/", 1)[1]
            return f"[{part.removesuffix('Entry')}](#{part.lower()})"
        case {"anyOf": kinds}:
            words = [_kind(each) for each in kinds if each.get("type") != "null" and each.get("const") != 0]
            return " or ".join(dict.fromkeys(words))
        case {"enum": values}:
            return ", ".join(f"`{each}`" for each in values)
        case {"type": "array"}:
            return f"list of {_kind(entry.get('items', {}))}"
        case {"patternProperties": named}:
            return "a name, then " + " or ".join(map(_kind, named.values()))
    return _quantity(entry["pattern"]) if "pattern" in entry else _PLAIN.get(entry.get("type", ""), "map")


def _quantity(pattern: str) -> str:
    """A pattern that ends in alternatives of units, as an example of one."""
    units = pattern.rsplit("(", 1)[-1].split(")", 1)[0].split("|")
    found = [example for unit, example in _EXAMPLES.items() if unit in units]
    return f"number and unit, such as `{found[0]}`" if found else "text"


def metrics_page() -> str:
    """What an exporter of a real rank serves, asked over loopback."""
    from isthmus.runtime.exporter import Exporter

    fields = ("frame_bytes_sent", "frame_bytes_received", "retransmits", "busy_s", "stall_s", "goodput_bytes_per_s", "rtt_s")
    use: Any = SimpleNamespace(**dict.fromkeys(fields, 0))
    exporter = Exporter(("127.0.0.1", 0), {"region": "shenzhen", "rank": "0"}, lambda: {"shanghai": use})
    try:
        with urlopen(f"http://127.0.0.1:{exporter._server.server_port}/metrics") as answer:
            served = answer.read().decode()
    finally:
        exporter.close()
    texts = dict(line.split(" ", 3)[2:] for line in served.splitlines() if line.startswith("# HELP "))
    kinds = dict(line.split(" ", 3)[2:] for line in served.splitlines() if line.startswith("# TYPE "))
    rows = [
        f"| `{name}` | {kinds[name]} | {'region, rank, peer' if '_link_' in name else 'region, rank'} | {text} |"
        for name, text in texts.items()
        if not name.endswith("_created")
    ]
    return METRICS.format(rows="\n".join(rows))


METRICS = """# Metrics that a rank serves

Set [`ISTHMUS_EXPORT`](environment.md) and every rank serves these to Prometheus; [the guide](../guide/observe.md) says how to
collect them. `peer` is the region at the other end of a link. Times are seconds, sizes bytes.

| name | kind | labels | meaning |
|---|---|---|---|
{rows}
"""
