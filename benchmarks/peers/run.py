"""torchft, hivemind and isthmus side by side: an outer sync of 100 MB, and a region killed.

    python benchmarks/peers/run.py [--repeats 5] [--only NAME ...] [--phase inside|between] [--json FILE [--append]]

Two regions of one node, joined by 20 ms and `--rate` Mb/s in the wind tunnel. Contenders take turns, so that the machine's
moods meet all of them. The limit of a sync that carries W bytes each way is W / (rate x 1448 / 1500) + RTT / 2.
Recovery counts from SIGKILL of one region until the other's next committed sync, the rest of its window included.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from contenders import CONTENDERS
from measure import PHASES, Run, measure
from table import show
from venvs import PEERS, versions


def main() -> int:
    """Run what is asked; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", help="a contender's name, or the beginning of it")
    parser.add_argument("--phase", choices=PHASES, help="only this place of the fault")
    parser.add_argument("--rate", type=float, default=200.0, help="of the link, Mb/s; --json and --append: one file a rate")
    parser.add_argument("--json", type=Path, help="write all runs there")
    parser.add_argument("--append", action="store_true", help="keep the runs that --json holds already, and count them in")
    arguments = parser.parse_args()
    if arguments.append and arguments.json is None:
        parser.error("--append needs --json")
    chosen = [each for each in CONTENDERS if not arguments.only or any(each.name.startswith(name) for name in arguments.only)]
    systems = sorted({each.system for each in chosen} & set(PEERS))
    found = {peer: versions(peer) for peer in systems}
    runs: list[Run] = []
    if arguments.append and arguments.json.exists():
        runs = [Run(**each) for each in json.loads(arguments.json.read_text(encoding="utf-8"))["runs"]]
    for repeat in range(arguments.repeats):
        for phase in PHASES if arguments.phase is None else (arguments.phase,):
            for contender in chosen:
                run = measure(contender, phase, arguments.rate * 125e3)
                runs.append(run)
                syncs = ", ".join(f"{seconds:.2f}" for seconds in run.sync_s)
                after = "no sync in time" if run.recovery_s is None else f"{run.recovery_s:.2f} s"
                print(f"{repeat + 1}: {run.contender}, killed {phase}: syncs {syncs} s, recovery {after}, "
                      f"{run.lost_tokens} tokens lost{'; ' * bool(run.note)}{run.note}", file=sys.stderr, flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps({"versions": found, "runs": [asdict(each) for each in runs]}, indent=1))
    return show(runs, found, arguments.rate * 125e3)


if __name__ == "__main__":
    sys.exit(main())
