"""What the person on call reads: for each first-priority rule the whole text of its finding, as printed.

golden.txt was made by `python tests/doctor/test_golden.py > tests/doctor/golden.txt` from our own inputs, and read
line by line. A change of words shows as a difference here.
"""

import importlib.util
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden.txt"


def printed() -> str:
    from isthmus.doctor.finding import rules
    from isthmus.doctor.show import finding_lines

    spec = importlib.util.spec_from_file_location("doctor_own_inputs", Path(__file__).parent / "own_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    sys.modules["doctor_own_inputs"] = own
    spec.loader.exec_module(own)
    inputs = own.own_inputs()
    parts: list[str] = []
    for name, book in rules().items():
        if book.priority == 1:
            report = own.judged(*inputs[name]["fires"])
            first = next(f for f in report.findings if f.rule == name)
            by_key = {f.key: f for f in report.findings}
            parts.append("\n".join(text for _, text in finding_lines(first, [by_key[key] for key in first.explains])))
    return "\n\n".join(parts) + "\n"


def test_each_first_priority_rule_prints_what_where_evidence_severity_and_fix() -> None:
    text = printed()
    assert text == GOLDEN.read_text(encoding="utf-8")
    for block in text.split("\n\n"):
        assert block.startswith(("FATAL", "ERROR", "WARN", "INFO")), block
        assert all(f"\n  {label}" in block for label in ("what ", "evidence ", "do ")), block


if __name__ == "__main__":
    print(printed(), end="")
