"""Issue 2, A5 in small: the benchmark's bounds on fewer cells, idle and with four computing ranks, through the real path."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "link_fidelity.py"


@pytest.mark.tunnel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("load", ["idle", "busy"])
def test_the_link_holds_what_it_is_asked(load: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--load", load, "--json", str(out)],
        capture_output=True, text=True, check=False,
    )
    assert out.exists(), done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row for row in rows if not row["good"]] == []
    assert {row["what"].split()[0] for row in rows} >= {"RTT", "goodput", "loss", "jitter", "queue"}
    assert len(rows) == 16
