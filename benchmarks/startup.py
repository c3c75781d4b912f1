"""How long `isthmus --help` takes: the first thing everyone types. Median of ten, beside a bare interpreter's start."""

import subprocess
import sys
import time
from statistics import median


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    pairs = [(seconds(sys.executable, "-c", "pass"), seconds(sys.executable, "-m", "isthmus", "--help")) for _ in range(10)]
    bare, shown = (median(column) for column in zip(*pairs, strict=True))
    print(f"isthmus --help: median {shown:.3f} s of 10 (bare Python {bare:.3f} s); goal < 0.5 s")
    if shown >= 0.5:
        sys.exit(1)


if __name__ == "__main__":
    main()
