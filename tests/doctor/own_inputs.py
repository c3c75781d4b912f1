"""Our own inputs: one file a rule, a text that fires it and a near miss that must not.

`%% fires` and `%% silent` start the two texts; `>>> node/file` starts a file of a node inside a text; a word after
`%% fires` names what is expected of the machine (`wan`: a described path of 100 Gb/s and 18 ms).
"""

from pathlib import Path

from isthmus.doctor.case import Expected
from isthmus.doctor.judge import Report, diagnose
from isthmus.doctor.text import Document, document

FOLDER = Path(__file__).parent / "inputs"
WAN = Expected(wan_rtt_s=18e-3, wan_rate_bytes_per_s=100e9 / 8, source="a fabric of this test")


def own_inputs() -> dict[str, dict[str, tuple[str, str]]]:
    """Rule -> fires and silent -> (what is expected, text)."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for part in ("\n" + path.read_text(encoding="utf-8")).split("\n%% ")[1:]:
            head, _, text = part.partition("\n")
            name, _, expected = head.partition(" ")
            found.setdefault(path.stem, {})[name] = (expected, text)
    return found


def documents_of(text: str) -> list[Document]:
    """One document, or one for each `>>> node/file`."""
    if ">>> " not in text:
        return [document(text, "paste.txt")]
    parts = ("\n" + text).split("\n>>> ")[1:]
    found: list[Document] = []
    for part in parts:
        head, _, body = part.partition("\n")
        host, _, _ = head.partition("/")
        found.append(document(body, head, host))
    return found


def judged(expected: str, text: str) -> Report:
    return diagnose(documents_of(text), WAN if expected == "wan" else None)
