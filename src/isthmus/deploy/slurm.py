"""The target `slurm`: per region a job for sbatch that starts, restarts and ends with it, and topology files for its cluster.

A job takes the nodes of sites.yaml and no others: every rank's address is fixed for the run (see members.json).
"""

from collections.abc import Iterator
from pathlib import Path

from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.readme import region_readme, top_readme
from isthmus.deploy.region_files import BAD_SETUP, coordinator_pieces, region_pieces
from isthmus.deploy.request import Request
from isthmus.deploy.scripts import check_scripts
from isthmus.deploy.sites import Site, SlurmEntry
from isthmus.deploy.slurm_names import expanded, hostlist, leaves, topology_conf, topology_yaml
from isthmus.errors import InputError, nearest

__all__ = ["SBATCH_OPTIONS", "check", "pieces"]

_OPTIONS = """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment consolidate-segments constraint
    container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
    dependency distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid gpu-bind
    gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold ignore-pbs input job-name
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus
    network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket oom-kill-step open-mode output overcommit oversubscribe parsable partition power prefer priority
    profile propagate qos quiet reboot requeue reservation resources resv-ports runtime segment signal sockets-per-node
    spread-job spread-segments stepmgr switches test-only thread-spec threads-per-core time time-min tmp tres-bind
    tres-per-task uid use-min-nodes verbose wait wait-all-nodes wckey
"""
SBATCH_OPTIONS = frozenset(_OPTIONS.split())
"""Long options of sbatch, of Slurm 22.05 and 26.11 together. Source: SchedMD/slurm doc/man/man1/sbatch.1."""

_NEEDED = "job-name nodes nodelist ntasks ntasks-per-node chdir output open-mode requeue no-requeue signal array wrap"
_OURS = frozenset(_NEEDED.split())


def pieces(request: Request) -> tuple[Piece, ...]:
    """A folder a region, the coordinator's, and what to do with them. Raises InputError for options sbatch would refuse."""
    found = [*coordinator_pieces(request), top_readme(request, "sbatch {folder}/job.sbatch")]
    for site in request.sites.sites:
        found += [
            *region_pieces(request, site),
            Piece(f"{site.name}/job.sbatch", job(request, site), executable=True),
            region_readme(request, site, _steps(site)),
        ]
        for name, text in (("topology.conf", topology_conf(site)), ("topology.yaml", topology_yaml(site))):
            if text is not None:
                found.append(Piece(f"{site.name}/{name}", text))
    return tuple(found)


def job(request: Request, site: Site) -> str:
    """job.sbatch of one region."""
    entry = site.entry.slurm or SlurmEntry()
    _refuse_options(request, site, entry)
    header = "\n".join(f"#SBATCH {line}" for line in _options(site, entry))
    title = " ".join(request.plan.fabric.split())  # a line of its own would be a command
    count = f"--nodes={len(site.nodes)} --ntasks={len(site.nodes)} --ntasks-per-node=1"
    return f"""#!/bin/bash
# Region {site.name} of {title}: {site.ranks} ranks on {len(site.nodes)} nodes. Written by isthmus deploy.
{header}
set -euo pipefail
cd {site.folder}
step() {{ srun {count} --kill-on-bad-exit=1 --cpu-bind=none "$@"; }}  # one launcher a node, on all of its cores

requeue() {{
  echo "isthmus: $SLURM_JOB_ID goes back into the queue: $1" >&2
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}}
trap 'requeue "the time limit is near"' USR1

echo "isthmus: {site.name}, job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, started again ${{SLURM_RESTART_COUNT:-0}} times" >&2
step bash node.sh check || exit {BAD_SETUP}

# In the background, so that the signal is handled at once.
step bash node.sh run &
code=0
wait $! || code=$?
if (( code == 0 )); then exit 0; fi
if (( code == {BAD_SETUP} )); then exit {BAD_SETUP}; fi
failures=.failures-$SLURM_JOB_ID
echo "$(date -Is) exit code $code" >> "$failures"
if (( $(wc -l < "$failures") > {site.entry.restarts} )); then
  echo "isthmus: {site.name} failed with exit code $code, once more than {site.entry.restarts} restarts allow" >&2
  exit "$code"
fi
requeue "its ranks failed with exit code $code"
"""


def _options(site: Site, entry: SlurmEntry) -> list[str]:
    nodes = hostlist(sorted(node.name for node in site.nodes))
    gres = entry.gres or f"gpu:{site.ranks_per_node}"
    named = {
        "partition": entry.partition,
        "account": entry.account,
        "qos": entry.qos,
        "time": entry.time,
        "gres": None if gres == "none" else gres,
        "switches": f"{entry.switches}@{entry.switches_wait}" if entry.switches else None,
    }
    return [
        f"--job-name=isthmus-{site.name}",
        f"--nodes={len(site.nodes)}",
        f"--nodelist={nodes}",
        "--ntasks-per-node=1",
        *(["--exclusive", "--mem=0"] if entry.exclusive else []),
        *[f"--{name}={value}" for name, value in named.items() if value is not None],
        f"--chdir={site.folder}",
        f"--output={site.folder}/isthmus-{site.name}-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{entry.warn}",
        *entry.extra,
    ]


def _refuse_options(request: Request, site: Site, entry: SlurmEntry) -> None:
    lines, path = request.sites.lines, ("regions", site.name, "slurm")
    for number, option in enumerate(entry.extra):
        name = option[2:].partition("=")[0].partition(" ")[0]
        if name in _OURS:
            hint = "these are isthmus's: " + ", ".join(sorted(_OURS))
            raise lines.error((*path, "extra", number), f"{option!r} would change what the job file needs", hint)
        if name not in SBATCH_OPTIONS:
            raise lines.error((*path, "extra", number), f"sbatch has no option --{name}", nearest(name, SBATCH_OPTIONS))
    if entry.time is not None and _seconds(entry.time) <= entry.warn:
        found = f"time {entry.time} is not longer than warn, {entry.warn} s before it"
        raise lines.error((*path, "time"), found, "the job would go back into the queue as soon as it starts")
    if entry.switches is not None and leaves(site) is None:
        raise lines.error(
            (*path, "switches"),
            f"asks for {entry.switches} switches, but which node of {site.name!r} hangs on which is unknown",
            f"give every node its switch, since the fabric's network is {site.region.network.shape}",
        )
    if any(node.switch for node in site.nodes) and not all(node.switch for node in site.nodes):
        lacks = next(node.name for node in site.nodes if node.switch is None)
        where = lines.where(("regions", site.name, "nodes"))
        raise InputError(where, f"node {lacks!r} has no switch, but others have", "give it to all nodes of a region, or to none")


def _seconds(time: str) -> int:
    """A limit as sbatch reads it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    scale = (3600, 60, 1) if dash else {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, scale, strict=False))


def _steps(site: Site) -> list[str]:
    folder, restarts = site.folder, site.entry.restarts
    nodes = hostlist(sorted(node.name for node in site.nodes))
    steps = [
        f"Ask Slurm whether it would run: `sbatch --test-only {folder}/job.sbatch`.",
        f"Submit: `sbatch {folder}/job.sbatch`. Its output is appended to `{folder}/isthmus-{site.name}-JOB.out`, over restarts.",
        "First every node is checked; exit code 78 means that one is not fit or something is missing. Then the ranks start.",
        f"Ranks that fail are started again by torchrun, up to {restarts} times; where that does not help, or a node is lost, the"
        f" job goes back into the queue, after failures up to {restarts} times. Slurm holds it there for about two minutes;"
        " `scontrol update JobId=JOB StartTime=now` ends that, but not within half a minute of a lost node's return: the node may"
        " take the end of the job's earlier life, which it is told late, for that of the new one.",
        "Near its time limit the job goes back into the queue by itself, and the region finds its way into the run again.",
        f"It runs on {nodes} and nowhere else: other regions know every rank by its address.",
    ]
    if leaves(site) is not None:
        steps.append(
            "`topology.conf` (and `topology.yaml` for Slurm 25.05 and later) describes these nodes' switches; merge it into the"
            " cluster's own, or leave it where the administrators have one."
        )
    else:
        lacks = "which node hangs on which leaf switch is unknown; give every node its `switch` in sites.yaml"
        steps.append(f"There are no topology files: {lacks}.")
    return steps


def check(folder: Path, request: Request) -> list[Finding]:
    """Scripts that bash would not read, and #SBATCH lines that sbatch would refuse or overlook."""
    names = [f"{site.name}/{name}" for site in request.sites.sites for name in ("node.sh", "job.sbatch")]
    found = check_scripts(folder, [*names, "coordinator/start.sh"])
    for site in request.sites.sites:
        found += _check_job(folder / site.name / "job.sbatch", site)
    return found


def _check_job(path: Path, site: Site) -> Iterator[Finding]:
    given: dict[str, str] = {}
    begun = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path}:{number}"
        if not line.startswith("#SBATCH"):
            begun = begun or (bool(line.strip()) and not line.startswith("#"))
            continue
        name, _, value = line.removeprefix("#SBATCH").strip().partition("=")
        if begun:
            yield Finding("error", where, "sbatch does not read this line: commands stand before it", "move it up")
        elif not name.startswith("--") or name[2:].split(" ")[0] not in SBATCH_OPTIONS:
            yield Finding("error", where, f"sbatch has no option {name!r}", nearest(name.lstrip("-"), SBATCH_OPTIONS))
        given[name[2:]] = value
    names = sorted(node.name for node in site.nodes)
    if sorted(expanded(given.get("nodelist", "")) or []) != names:
        found = f"--nodelist is {given.get('nodelist', 'missing')}, sites.yaml lists {hostlist(names)}"
        yield Finding("error", str(path), found, "other regions know these nodes by their addresses")
    if given.get("nodes") != str(len(names)):
        yield Finding("error", str(path), f"--nodes is {given.get('nodes', 'missing')}, members.json is of {len(names)}")
