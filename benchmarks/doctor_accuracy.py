"""How often the doctor is right: over a corpus of real outputs, and over our own inputs.

A corpus is a folder with INDEX.md (rows `| file | fidelity | system | truth | source |`); beside it facts/doctor_rules.yaml
may say which rule must fire or stay silent on which file. Fails (exit 1) when

- a rule that must fire does not, or one that must be silent fires;
- a file whose truth is healthy gets an ERROR or FATAL;
- a file is neither recognised nor refused with a reason;
- the top finding of a FAULT or WARN file is not its truth (rules of fires_on, else rules of the truth's words);
- a rule has no input of our own that fires it, or no near miss, or is wrong on either.

Usage: python benchmarks/doctor_accuracy.py [CORPUS] [--json]
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from isthmus.doctor.finding import Finding, rules
from isthmus.doctor.judge import diagnose
from isthmus.doctor.text import document

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "doctor"))

HEALTHY = re.compile(
    r"^(?:healthy|benign|INFO\b|(?:DEGRADED|degraded) by design|by design|reference|topology by design|normal\b)"
)
FAULTY = re.compile(r"^(?:for our purpose )?(?:FAULT|WARN)")
# Words of a truth -> rules that would be the right top finding, for files that no rule list names.
TRUTHS = (
    (r"without nvlink|nvlink (?:children|edge)", "TOPO-06 NVL-12"),
    (r"Xid 79|fallen off", "PCI-06"),
    (r"NVLink\w*.*(?:inactive|down)|links? inactive", "NVL-01 NVL-10 NVL-02 NVL-03"),
    (r"CRC|replay", "NVL-05"),
    (r"Xid", "GPU-02 NVL-10 PCI-06"),
    (r"fabric ?manager|NVLS|multicast|401", "NVL-07 NVL-08 NVL-09"),
    (r"remap", "GPU-03"),
    (r"ECC|retired", "GPU-04"),
    (r"power brake|thermal|slowdown", "GPU-05 GPU-06 GPU-11"),
    (r"flap|carrier", "IB-03"),
    (r"port .*down|State Down|Polling|link down", "IB-01 LOG-10"),
    (r"disappear|missing device", "IB-10"),
    (r"duplicate GPU|same GPU", "LOG-14"),
    (r"shm|shared memory", "LOG-11 HOST-04"),
    (r"memlock|pinned", "LOG-12 HOST-01"),
    (r"GDR|GPUDirect|peermem", "LOG-05 HOST-06 LOG-08"),
    (r"MTU", "ROCE-10 LOG-06 LOG-08"),
    (r"GID", "ROCE-01 LOG-06 LOG-09"),
    (r"status 12|error 12|did not ACK", "LOG-06 LOG-10"),
    (r"modify_qp", "LOG-09"),
    (r"local access|LOC_PROT|protection", "LOG-08"),
    (r"firewall|refused|no route|timed? ?out.*connect|unreachable", "LOG-04 LOG-09 LOG-02"),
    (r"interface", "LOG-02 LOG-03 LOG-01"),
    (r"socket|TCP|EFA", "LOG-01"),
    (r"watchdog|hang|timeout|desync", "LOG-15"),
    (r"mismatched? collective", "LOG-15"),
    (r"version", "LOG-13 HOST-11 NVL-07"),
    (r"dead|unresponsive|missing rank", "LOG-18"),
    (r"segfault|crash", "LOG-19"),
    (r"ACS", "PCI-07"),
    (r"width|x8|gen\d|PCIe", "PCI-01 PCI-02 PCI-03 PCI-04 PCI-10"),
    (r"bridge", "NVL-04"),
    (r"PFC|pause|storm", "ROCE-03 ROCE-06 ROCE-07 ROCE-08 ROCE-09"),
    (r"priority|DSCP", "ROCE-04 ROCE-11"),
    (r"slow|busbw|bandwidth|cliff|collaps", "BW-01 BW-03 BW-04 BW-07"),
    (r"nranks|MPI", "BW-06"),
    (r"wrong|corrupt", "BW-02"),
    (r"clock|synchroni|offset|peer selected", "HOST-07 HOST-08"),
    (r"typo|ignored", "ENV-01"),
    (r"strtoll|parsed", "ENV-03"),
    (r"accepts|range", "ENV-04"),
    (r"persistence|memory test|Fail", "GPU-11"),
    (r"fan|PSU", "SW-01"),
    (r"topolog", "TOPO-01 TOPO-05 TOPO-07"),
    (r"Disabled for|disabled", "NVL-13 TOPO-08"),
)
# Truths that are not in the text: the fault of the thread is in a log that was not posted.
UNKNOWABLE = re.compile(r"topology itself is fine|cannot see|FAULT in thread: completion error 4")


@dataclass
class Tally:
    files: int = 0
    healthy: int = 0
    false_alarms: list[str] = field(default_factory=list)
    faulty: int = 0
    named: int = 0
    wrong_top: list[str] = field(default_factory=list)
    unknowable: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    spoke: list[str] = field(default_factory=list)
    hits: Counter = field(default_factory=Counter)
    wanted: Counter = field(default_factory=Counter)
    extra: Counter = field(default_factory=Counter)
    rows: list[tuple[str, str, str]] = field(default_factory=list)


def index_of(corpus: Path) -> dict[str, str]:
    """File -> truth; rows of four columns (XML files) have no fidelity."""
    truths: dict[str, str] = {}
    for line in (corpus / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("|") else []
        if len(cells) >= 4 and (corpus / cells[0]).is_file():
            truths[cells[0]] = cells[3] if len(cells) >= 5 else cells[2]
    return truths


def lists_of(corpus: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """(file -> rules that must fire, file -> rules that must be silent), from the rule list beside the corpus."""
    fires: dict[str, set[str]] = defaultdict(set)
    silent: dict[str, set[str]] = defaultdict(set)
    path = corpus.parent / "facts" / "doctor_rules.yaml"
    if path.exists():
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["rules"]:
            for name in entry["fires_on"]:
                fires[name].add(entry["id"])
            for name in entry["silent_on"]:
                silent[name].add(entry["id"])
    return fires, silent


def right_tops(truth: str, fires: set[str]) -> set[str]:
    named = {rule for pattern, names in TRUTHS if re.search(pattern, truth, re.IGNORECASE) for rule in names.split()}
    return fires or named


def judge_corpus(corpus: Path) -> Tally:
    tally = Tally()
    truths, (fires, silent) = index_of(corpus), lists_of(corpus)
    for name, truth in sorted(truths.items()):
        report = diagnose([document((corpus / name).read_bytes(), name)])
        judge_file(tally, name, truth, report.findings, (fires.get(name, set()), silent.get(name, set())))
        if report.files[0].refused:
            tally.refused.append(f"{name}: {report.files[0].refused}")
    return tally


def judge_file(tally: Tally, name: str, truth: str, findings: tuple[Finding, ...], lists: tuple[set[str], set[str]]) -> None:
    fires, silent = lists
    got = {finding.rule for finding in findings}
    tally.files += 1
    tally.missed += [f"{name}: {rule}" for rule in sorted(fires - got)]
    tally.spoke += [f"{name}: {rule}" for rule in sorted(silent & got)]
    tally.wanted.update(fires)
    tally.hits.update(fires & got)
    loud = {finding.rule for finding in findings if finding.severity in {"ERROR", "FATAL"}}
    tally.extra.update(loud - fires if fires or HEALTHY.match(truth) else ())
    top = findings[0].rule if findings else "-"
    if HEALTHY.match(truth):
        tally.healthy += 1
        tally.false_alarms += [f"{name}: {rule}" for rule in sorted(loud)]
    elif FAULTY.match(truth) and UNKNOWABLE.search(truth):
        tally.unknowable.append(name)
    elif FAULTY.match(truth):
        tally.faulty += 1
        right = right_tops(truth, fires)
        tally.named += top in right
        if top not in right:
            tally.wrong_top.append(
                f"{name}: top is {top}, right are {', '.join(sorted(right)) or '(no words known)'}: {truth[:80]}"
            )
    tally.rows.append((name, top, truth[:60]))


def own_failures() -> list[str]:
    import own_inputs as own

    inputs, failures = own.own_inputs(), []
    for rule in rules():
        texts = inputs.get(rule, {})
        for kind in ("fires", "silent"):
            if kind not in texts:
                failures.append(f"{rule}: no input that {'fires it' if kind == 'fires' else 'nearly fires it'}")
            elif (rule in {f.rule for f in own.judged(*texts[kind]).findings}) != (kind == "fires"):
                failures.append(f"{rule}: wrong on our own {kind} input")
    return failures


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.1%})" if whole else "0/0"


def show(tally: Tally, verbose: bool) -> None:
    if verbose:
        for name, top, truth in tally.rows:
            print(f"  {name:<62} {top:<8} {truth}")
    print(f"files {tally.files}: recognised {share(tally.files - len(tally.refused), tally.files)}, refused {len(tally.refused)}")
    print(
        f"top finding is the truth: {share(tally.named, tally.faulty)} of FAULT and WARN files; "
        f"{len(tally.unknowable)} whose truth is not in the text"
    )
    print(f"healthy files with an ERROR or FATAL: {share(len(tally.false_alarms), tally.healthy)}")
    print(
        f"rules that must fire: {share(sum(tally.hits.values()), sum(tally.wanted.values()))}; must be silent "
        f"and spoke: {len(tally.spoke)}"
    )
    precise = {
        rule: (tally.hits[rule], tally.hits[rule] + tally.extra[rule], tally.wanted[rule])
        for rule in {*tally.wanted, *tally.extra}
    }
    print(
        "per rule (hits / said / wanted): "
        + ", ".join(f"{rule} {h}/{s}/{w}" for rule, (h, s, w) in sorted(precise.items()) if h < w or h < s or verbose)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    corpus = arguments.corpus or next(
        (p for p in (ROOT.parent / "shared/corpus", Path("../shared/corpus")) if (p / "INDEX.md").exists()), None
    )
    failures = own_failures()
    print(f"our own inputs: {len(rules())} rules, each with an input that fires it and a near miss: {len(failures)} failures")
    if corpus is None:
        print("no corpus given and none at ../shared/corpus: only our own inputs were judged")
    else:
        tally = judge_corpus(corpus)
        show(tally, arguments.verbose)
        failures += tally.missed + tally.spoke + tally.false_alarms + tally.wrong_top
        if arguments.json:
            print(
                json.dumps({"files": tally.files, "named": tally.named, "faulty": tally.faulty, "failures": failures}, indent=2)
            )
    for failure in failures:
        print(f"FAIL {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
