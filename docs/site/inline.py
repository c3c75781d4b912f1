"""Figures go into their pages as markup, so that the page's colours are theirs; blocks that no test runs say so."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_NOT_RUN = re.compile(r"^```(\w+) not run: (.+)$", re.MULTILINE)
_ELSEWHERE = re.compile(r"^```(\w+) run by: (.+)$", re.MULTILINE)
_FILE = re.compile(r"^```(yaml) (\S+\.yaml)$", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect both."""
    app.connect("source-read", _captions)
    app.connect("doctree-resolved", _figures)
    return {"parallel_read_safe": True}


def _captions(_: Sphinx, __: str, source: list[str]) -> None:
    text = _NOT_RUN.sub(r"```{code-block} \1\n:caption: Not run by the tests: \2\n", source[0])
    text = _ELSEWHERE.sub(r"```{code-block} \1\n:caption: Run by \2\n", text)
    source[0] = _FILE.sub(r"```{code-block} \1\n:caption: \2\n", text)


def _figures(app: Sphinx, tree: nodes.document, _: str) -> None:
    if app.builder.format != "html":
        return
    for image in list(tree.findall(nodes.image)):
        path = Path(app.srcdir) / image["uri"]
        if path.suffix == ".svg":
            image.parent.replace(image, nodes.raw("", _markup(path), format="html"))


def _markup(path: Path) -> Any:
    drawn = path.read_text(encoding="utf-8").replace("<svg ", '<svg class="figure" ', 1)
    return f'<span class="figure-box">{re.sub(r"<style>.*?</style>", "", drawn, flags=re.DOTALL)}</span>'
