"""Objects as YAML that people read: long text in blocks, reasons above each object."""

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import yaml

__all__ = ["Manifest", "as_yaml"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object; `notes` say why it is as it is, a line or more each."""

    content: dict[str, Any]
    notes: tuple[str, ...] = ()


class _Dumper(yaml.CSafeDumper):
    """Text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Every object is written out: kubectl reads anchors, people do not."""
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _text)


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """A stream of documents."""
    parts: list[str] = []
    for each in manifests:
        notes = [f"# {line}" for note in each.notes for line in wrap(note, 116, subsequent_indent="  ")]
        text: str = yaml.dump(  # pyright: ignore[reportUnknownMemberType]
            each.content, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True
        )
        parts.append("".join(f"{line}\n" for line in notes) + text)
    return "---\n".join(parts)
