"""Damaged, mixed and foreign text into the doctor: findings or a refusal, never a traceback, never more than 1 GB.

python benchmarks/fuzz_doctor.py [--count 100000] [--seed 0]
"""

import argparse
import random
import resource
import sys
import time
import traceback
from pathlib import Path

from isthmus.doctor.judge import diagnose
from isthmus.doctor.show import report_lines
from isthmus.doctor.text import document

ROOT = Path(__file__).parents[1]
INPUTS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/doctor/inputs").glob("*.txt"))]
FOREIGN = (
    "total 48\ndrwxr-xr-x 2 root root 4096 Nov 30 18:03 .\n",
    ("Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nKeyError: 'a'\n"),
    '{"a": [1, 2, {"b": null}]}',
    "<html><body><p>404</p></body></html>",
    "PID TTY TIME CMD\n1 ? 00:00:01 init\n",
    "GPU0 " * 40,
    "| " * 300 + "\n",
    "\x00\xff" * 50,
)


def mutate(drawn: random.Random) -> bytes:
    """One damaged text of at most some 20 kB."""
    text = drawn.choice(INPUTS)
    for _ in range(drawn.randint(1, 4)):
        match drawn.randrange(9):
            case 0:
                text = text[: drawn.randrange(len(text) + 1)]
            case 1:
                text = text[drawn.randrange(len(text) + 1) :]
            case 2:
                a, b = text.splitlines(), drawn.choice(INPUTS).splitlines()
                text = "\n".join(line for pair in zip(a, b, strict=False) for line in pair)
            case 3:
                at = drawn.randrange(len(text) + 1)
                text = text[:at] + drawn.choice(FOREIGN) + text[at:]
            case 4:
                text = "".join(chr(drawn.randrange(1, 0x2FFF)) if drawn.random() < 0.02 else c for c in text)
            case 5:
                text = text.replace(
                    drawn.choice("0123456789"), drawn.choice(["", "99999999999999999999999", "-1", "1,5", "NaN", "0x"])
                )
            case 6:
                lines = text.splitlines()
                drawn.shuffle(lines)
                text = "\n".join(lines)
            case 7:
                text = text.replace("\n", drawn.choice(["\r\n", "\r", " ", "\n\n"]))
            case _:
                text = text * drawn.randint(2, 3)
        text = text[:20000] or "x"
    return text.encode("utf-8", errors="surrogatepass")


def large(drawn: random.Random) -> list[bytes]:
    """A few that are large: one line of 100 MB, many short lines, deep JSON, many brackets."""
    return [
        b"x" * 100_000_000,
        b"GPU0 X NV18 " * 8_000_000,
        b"{" * 200_000,
        b'{"a":' * 100_000,
        b"NCCL WARN " * 100_000 + b"\n",
        b"a\n" * 2_000_000,
        bytes(drawn.randrange(256) for _ in range(300_000)),
        b"[1,0]<stdout>:" * 50_000,
        b"<pci " * 100_000,
        b"| " * 500_000,
        b"1 " * 1_000_000,
    ]


def judge(data: bytes) -> bool:
    """Run the whole way to the printed report; False and the input on disk when it breaks."""
    try:
        report = diagnose([document(data, "fuzz")])
        list(report_lines(report, everything=True))
    except Exception:
        path = Path("fuzz-doctor-failure.bin")
        path.write_bytes(data[:1_000_000])
        traceback.print_exc()
        print(f"input kept in {path}")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed)
    begin, slowest = time.perf_counter(), 0.0
    for data in large(drawn):
        once = time.perf_counter()
        if not judge(data):
            sys.exit(1)
        slowest = max(slowest, time.perf_counter() - once)
    print(f"large inputs: slowest {slowest:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    for number in range(arguments.count):
        if not judge(mutate(drawn)):
            sys.exit(1)
        if number % 5000 == 4999:
            print(f"{number + 1} mutations, {time.perf_counter() - begin:.0f} s", flush=True)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{arguments.count} mutations: no traceback, {memory_gb:.2f} GB at most")
    sys.exit(memory_gb > 1.0)


if __name__ == "__main__":
    main()
