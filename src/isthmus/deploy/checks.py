"""What must hold among plan, fabric, sites and certificates before any file is worth writing.

Text that is wrong raises `InputError` where it is read (`read_sites`, `load_plan`); these are the contradictions between files.
"""

from collections.abc import Iterator
from pathlib import Path

from isthmus.deploy.pieces import Finding
from isthmus.deploy.request import Request
from isthmus.errors import InputError
from isthmus.fabric import fabric_digests, wan_routes
from isthmus.plan import Plan
from isthmus.runtime.environment import split_address
from isthmus.runtime.runnable import SURVIVING, require_plan

__all__ = ["check_request", "needs_keys"]


def check_request(request: Request, *, starts: bool = True) -> list[Finding]:
    """Everything that contradicts, errors first; of what does not start a run only whether plan and sites are of one fabric."""
    if not starts:
        return list(_plan_of_another_fabric(request))
    found = [*_plan_of_another_fabric(request), *_not_runnable(request), *_coordinator(request), *_certificates(request)]
    return sorted(found, key=lambda finding: finding.severity)


def _plan_of_another_fabric(request: Request) -> Iterator[Finding]:
    plan, fabric, where, path = request.plan, request.sites.fabric, str(request.plan_path), request.sites.fabric_path
    again = f"isthmus plan {path} ... makes one for it"
    if plan.fabric != fabric.name:
        yield Finding("error", where, f"is a plan for the fabric {plan.fabric!r}, but the sites are of {fabric.name!r}", again)
        return
    gpus = plan.layout.dp * plan.layout.tp * plan.layout.pp * plan.layout.cp
    if gpus != fabric.gpus:
        yield Finding("error", where, f"lays the model out on {gpus} GPUs, but {path} has {fabric.gpus}", again)
        return
    ranks = sum(site.ranks for site in request.sites.sites)
    if ranks != gpus:
        found = f"starts {ranks} ranks, the plan was made for {gpus}"
        yield Finding("warning", str(request.sites.path), found, "see ranks_per_node")
    yield from _plan_of_an_edited_fabric(plan, request)
    yield from _plan_of_other_links(plan, request)


def _plan_of_an_edited_fabric(plan: Plan, request: Request) -> Iterator[Finding]:
    """Parts whose figures are not those the plan was made for; a fabric of which no part is the same is another one."""
    made_for, here = plan.fabric_parts, fabric_digests(request.sites.fabric)
    changed = sorted(name for name in made_for.keys() | here.keys() if made_for.get(name) != here.get(name))
    if not made_for or not changed:
        return
    where, path = str(request.plan_path), request.sites.fabric_path
    if len(changed) == len(made_for.keys() | here.keys()):
        found = f"was made for another fabric of the name {plan.fabric!r}: no region or link is as in {path}"
        yield Finding("error", where, found, f"isthmus plan {path} ... makes one for it")
        return
    found = f"was made before {path} was edited, or with measured links: {', '.join(changed)} differ"
    yield Finding("warning", where, found, "plan anew if its figures are to hold")


def _plan_of_other_links(plan: Plan, request: Request) -> Iterator[Finding]:
    said = [row.value for row in plan.assumptions if row.name == "RTT between regions"]
    found = [route.rtt_s for route in wan_routes(request.sites.fabric)]
    if said and found and not any(abs(said[0] - rtt_s) <= 0.01 * rtt_s for rtt_s in found):
        have = ", ".join(f"{rtt_s * 1e3:g}" for rtt_s in found)
        text = f"was made for an RTT of {said[0] * 1e3:g} ms; the fabric's are {have} ms"
        yield Finding("warning", str(request.plan_path), text, "plan anew if the fabric has changed since")


def _not_runnable(request: Request) -> Iterator[Finding]:
    try:
        require_plan(request.environment(request.sites.sites[0]), request.plan, str(request.plan_path))
    except InputError as error:
        yield Finding("error", error.where, error.found, error.hint)


def _coordinator(request: Request) -> Iterator[Finding]:
    strategy, where, regions = request.plan.strategy, request.sites.lines.where(("coordinator",)), len(request.sites.sites)
    if regions > 1 and request.coordinator is not None and strategy.kind not in SURVIVING:
        found = f"names a coordinator, but a {strategy.kind!r} strategy cannot go on when a region is lost"
        yield Finding("error", where, found, "leave it out: a lost region then ends the run, which goes on from checkpoints")
    if regions > 1 and request.coordinator is None and strategy.kind in SURVIVING and strategy.region_group is None:
        found = "names no coordinator: a lost region ends the run of all"
        yield Finding("warning", where, found, "coordinator: {address: HOST:29700, folder: /srv/isthmus}, or {etcd: [...]}")


def needs_keys(request: Request) -> bool:
    """Whether anything leaves a machine in a run over regions that the user has not called secure."""
    addresses = [rail for region in request.sites.members.regions for rail in region.rails]
    beyond = any(not _on_loopback(address) for address in addresses)
    return len(request.sites.sites) > 1 and beyond and not request.sites.document.insecure


def _on_loopback(address: str) -> bool:
    host, _ = split_address(address)
    return host in {"localhost", "::1"} or host.startswith("127.")


def _certificates(request: Request) -> Iterator[Finding]:
    if not needs_keys(request):
        return
    sites = request.sites
    names = [site.name for site in sites.sites]
    where = sites.lines.where(("certificates",))
    if sites.certificates is None:
        yield Finding(
            "error",
            str(sites.path),
            "names no certificates, and rails between these regions leave the machine",
            f"isthmus keys {' '.join(names)} -o keys/, then certificates: keys; or insecure: true on a network of your own",
        )
        return
    coordinator = sites.document.coordinator is not None and sites.document.coordinator.address is not None
    for name in [*names, *(["coordinator"] if coordinator else [])]:
        fault = _fault(sites.certificates, name if name in names else None)
        if fault is not None:
            yield Finding("error", where, f"certificate of {name!r}: {fault.where}: {fault.found}", fault.hint)


def _fault(folder: Path, region: str | None) -> InputError | None:
    from isthmus.runtime.wan.identity import Identity

    try:
        Identity.load(folder, region) if region is not None else Identity.coordinator(folder)
    except InputError as error:
        return error
    return None
