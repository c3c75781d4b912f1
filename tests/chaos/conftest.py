"""The harness lives beside the other benchmarks, outside the package."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
