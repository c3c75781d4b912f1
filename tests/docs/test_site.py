"""The site: it builds without a warning, its links lead somewhere, and what it draws and lists is what the program says."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))]
GENERATED = ("reference/commands/", "reference/documents/", "reference/metrics.md")
WRITTEN = [path for path in PAGES if not str(path.relative_to(DOCS if DOCS in path.parents else ROOT)).startswith(GENERATED)]


def site_module(name: str) -> ModuleType:
    place = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_the_site_builds_and_no_page_asks_for_anything_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "trees"),
        str(DOCS),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]*\bsrc=\"([^\"]+)\"|<link[^>]*rel=\"stylesheet\"[^>]*href=\"([^\"]+)\"", page.read_text()
        )
        assert [each for pair in loaded for each in pair if re.match(r"(https?:)?//", each)] == [], page
    for sheet in (tmp_path / "site" / "_static").rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [
        target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:|#|mailto:", target)
    ]
    assert [target for target in targets if not (page.parent / target).exists() and target != "metrics.md"] == []


@pytest.mark.parametrize("page", sorted((DOCS / "concepts").glob("*.md")), ids=lambda page: page.name)
def test_a_concept_ends_with_what_it_leaves_out(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "What this leaves out"


def test_every_figure_is_what_the_program_draws_today() -> None:
    drawn = site_module("figures").figures()
    kept = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "concepts" / "figures").glob("*.svg")}
    assert sorted(kept) == sorted(drawn)
    stale = [name for name, text in drawn.items() if kept[name] != text]
    assert stale == [], "make figures draws them anew: look whether the page's words still hold"


def test_every_variable_that_the_program_reads_is_on_its_page_and_no_other() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"\bISTHMUS_[A-Z_]*[A-Z]\b", source)) - {"ISTHMUS_ROCE"}  # a profile's name on switches
    assert set(re.findall(r"ISTHMUS_[A-Z_]+", (DOCS / "reference/environment.md").read_text(encoding="utf-8"))) == read
