"""The doctor end to end: a paste in, a finding with its evidence out."""

import json
import subprocess
import sys

NVLINK = "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>\n\t Link 2: 25.781 GB/s\n"


def doctor(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isthmus", "doctor", *args], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_paste_on_standard_input_names_the_fault_with_file_and_line() -> None:
    done = doctor("-", "--json", text=NVLINK)
    found = json.loads(done.stdout)["findings"][0]
    assert (done.returncode, found["rule"], found["severity"]) == (1, "NVL-01", "ERROR")
    assert (found["evidence"][0]["file"], found["evidence"][0]["line"]) == ("<stdin>", 3)


def test_text_of_no_known_tool_is_refused_with_a_reason_and_exit_2() -> None:
    done = doctor("-", text="Dear all,\nthe cluster is slow again.\n")
    assert done.returncode == 2
    assert "no line of it looks like the output of a tool" in done.stdout


def test_an_unknown_rule_names_the_nearest() -> None:
    done = doctor("explain", "NVL-011")
    assert done.returncode == 2
    assert "did you mean 'NVL-" in done.stderr
