"""README.zh-CN.md says what README.md says: the same commands, figures, tables, pictures and links, section by section."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,.]*\d|(?<![\w.])\d")


def sections(text: str) -> list[list[str]]:
    """Lines of each section, heading first."""
    return [part.splitlines() for part in re.split(r"^(?=#)", text, flags=re.MULTILINE) if part.strip()]


def indented(lines: list[str]) -> list[str]:
    """Lines of its blocks of code."""
    return [line for line in lines if line.startswith("    ")]


def without_words(line: str) -> str:
    """A line of code without its comment, or a line of the tree without what it says of a room."""
    command = re.split(r"\s+#", line)[0].rstrip()
    if command.strip().startswith(("isthmus ", "torchrun ", "make ", "$ ")):
        return command
    named = re.match(r"(\s+)([\w.]+(?:/|\.py)) {2,}\S", line)
    return named[1] + named[2] if named else command


def tables(text: str) -> list[list[list[str]]]:
    """Cells of every row of every table."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def numbers(text: str) -> list[str]:
    return sorted(found.lstrip("+").rstrip(".,") for found in NUMBER.findall(text))


def test_both_have_the_same_sections() -> None:
    levels = [[re.match(r"#+", part[0])[0] for part in sections(text)] for text in (ENGLISH, CHINESE)]  # type: ignore[index]
    assert levels[0] == levels[1]


@pytest.mark.parametrize("number", range(len(sections(ENGLISH))))
def test_a_section_has_the_same_code_line_by_line(number: int) -> None:
    english, chinese = (indented(sections(text)[number]) for text in (ENGLISH, CHINESE))
    assert [without_words(line) for line in chinese] == [without_words(line) for line in english]


@pytest.mark.parametrize("number", range(len(sections(ENGLISH))))
def test_a_section_has_the_same_links_and_pictures(number: int) -> None:
    found = [re.findall(r"\]\(([^)]+)\)", "\n".join(sections(text)[number])) for text in (ENGLISH, CHINESE)]
    assert sorted(set(found[1]) - {"README.md"}) == sorted(set(found[0]) - {"README.zh-CN.md"})


@pytest.mark.parametrize("number", range(len(sections(ENGLISH))))
def test_a_section_names_the_same_figures_in_its_text(number: int) -> None:
    english, chinese = (
        "\n".join(line for line in sections(text)[number] if not line.startswith(("    ", "|"))) for text in (ENGLISH, CHINESE)
    )
    assert numbers(chinese) == numbers(english)


def test_the_tables_have_the_same_rows_and_in_every_cell_the_same_figures() -> None:
    english, chinese = tables(ENGLISH), tables(CHINESE)
    assert [len(table) for table in chinese] == [len(table) for table in english]
    for ours, theirs in zip(chinese, english, strict=True):
        for row, (cells, original) in enumerate(zip(ours, theirs, strict=True)):
            assert len(cells) == len(original), f"row {row}: {original[0]}"
            for column, (cell, of) in enumerate(zip(cells, original, strict=True)):
                assert numbers(cell) == numbers(of), f"row {row} ({original[0]}), column {column}: {of!r} became {cell!r}"


def test_each_names_the_other() -> None:
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE
