"""What stands beside a region's job: its files, its storage, its README; and the bundle's."""

from dataclasses import dataclass
from typing import Any

from isthmus.deploy.checks import needs_keys
from isthmus.deploy.kubernetes.manifest import Manifest, as_yaml
from isthmus.deploy.kubernetes.names import LABEL_LEAF, LABEL_REGION, entry_of, leaf_name, object_name
from isthmus.deploy.kubernetes.pod import FILES, code_file, labels
from isthmus.deploy.pieces import Piece
from isthmus.deploy.region_files import coordinator_pieces, region_pieces
from isthmus.deploy.request import Request
from isthmus.deploy.sites import Site
from isthmus.errors import InputError

__all__ = ["Engine", "bundle_pieces", "metadata"]

_FILES_MOST = 1_000_000
"""Bytes of a ConfigMap: etcd takes 1 MiB with all that is around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What an engine adds.

    Attributes:
        name: In words.
        needs: What must be installed in the cluster.
        kind: Of its job, as kubectl takes it.
        labels_nodes: Nodes must carry our labels for its topology.
    """

    name: str
    needs: str
    kind: str
    labels_nodes: bool = False


def metadata(site: Site, request: Request, suffix: str = "", *, namespaced: bool = True) -> dict[str, Any]:
    """Name, namespace and labels of an object of a region."""
    found: dict[str, Any] = {"name": f"{object_name(site)}{suffix}"}
    if namespaced:
        found["namespace"] = entry_of(site, request.sites).namespace
    return found | {"labels": labels(site)}


def bundle_pieces(
    request: Request, engine: Engine, objects: dict[str, tuple[list[Manifest], list[Manifest]]]
) -> tuple[Piece, ...]:
    """All files: `objects` are, by region, those of the cluster's topology and the job's."""
    found = [*coordinator_pieces(request), _top_readme(request, engine)]
    for site in request.sites.sites:
        topology, job = objects[site.name]
        found += [
            Piece(f"{site.name}/10-files.yaml", as_yaml([_files(request, site)])),
            *(
                [Piece(f"{site.name}/20-checkpoints.yaml", as_yaml([_claim(request, site)]))]
                if _makes_claim(request, site)
                else []
            ),
            *([Piece(f"{site.name}/30-topology.yaml", as_yaml(topology))] if topology else []),
            Piece(f"{site.name}/40-job.yaml", as_yaml(job)),
            _readme(request, site, engine),
        ]
    return tuple(found)


def _files(request: Request, site: Site) -> Manifest:
    texts = {piece.path.rpartition("/")[2]: piece.text for piece in region_pieces(request, site)}
    data = {name: texts[name] for name in FILES}
    size = sum(len(text.encode()) for text in data.values())
    if size > _FILES_MOST:
        raise InputError(
            str(request.plan_path), f"plan and members of {site.name!r} are {size:,} bytes, a ConfigMap holds {_FILES_MOST:,}", ""
        )
    note = "The region's files, as every engine of isthmus deploy gives them; env.sh holds the reason for each variable."
    return Manifest(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(site, request, "-files"), "data": data}, (note,)
    )


def _makes_claim(request: Request, site: Site) -> bool:
    return entry_of(site, request.sites).claim is None


def _claim(request: Request, site: Site) -> Manifest:
    entry = entry_of(site, request.sites)
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": entry.storage}}}
    if entry.storage_class is not None:
        spec["storageClassName"] = entry.storage_class
    note = "Checkpoints, shared by the region's nodes (ReadWriteMany); kept when the job is deleted."
    content = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(site, request, "-checkpoints"), "spec": spec,
    }  # fmt: skip
    return Manifest(content, (note,))


def _kubectl(request: Request, site: Site) -> str:
    entry = entry_of(site, request.sites)
    context = f" --context {entry.context}" if entry.context else ""
    return f"kubectl{context} -n {entry.namespace}"


def _readme(request: Request, site: Site, engine: Engine) -> Piece:
    kubectl, name = _kubectl(request, site), object_name(site)
    entry = entry_of(site, request.sites)
    steps = [f"The cluster of {site.name} has {engine.needs}, and a device plug-in for its GPUs."]
    if engine.labels_nodes:
        steps.append("Label its nodes, for the topology:\n\n" + _code(_label_commands(request, site)))
    if needs_keys(request):
        folder = request.sites.document.certificates
        files = " ".join(f"--from-file={folder}/{file}" for file in ("ca.pem", f"{site.name}.pem", f"{site.name}.key"))
        command = f"{kubectl} create secret generic {name}-keys {files}"
        steps.append(f"Its certificate, from where `isthmus keys` left it:\n\n{_code([command])}")
    code = code_file(request)
    if code is not None:
        command = f"{kubectl} create configmap {name}-code --from-file={code.name}={code}"
        steps.append(f"Your script (its path is relative: it is taken from here, not from the image):\n\n{_code([command])}")
    look = [f"{kubectl} get {engine.kind} {name}", f"{kubectl} logs -l {LABEL_REGION}={name} -c node --prefix -f"]
    steps += [
        "Ask the cluster whether it takes the objects, then give them:\n\n"
        + _code([f"{kubectl} apply --dry-run=server -f {site.name}/", f"{kubectl} apply -f {site.name}/"]),
        f"Look:\n\n{_code(look)}",
        f"End it, or start anew after a failure:\n\n{_code([f'{kubectl} delete {engine.kind} {name}'])}",
    ]
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    claim = f"the claim `{entry.claim}`" if entry.claim else f"`20-checkpoints.yaml` ({entry.storage})"
    text = f"""# {site.name}: {engine.name}, {len(site.nodes)} nodes, {site.ranks} ranks

{numbered}

Nodes meet at {site.rendezvous}; rank i of a node listens on port {site.entry.rail_port} + i of its node for the other regions:
open these ports between the regions. Checkpoints are in {claim}.

A pod that fails ends the region's ranks, and the region starts again, up to {site.entry.restarts} times. Exit code 78 ends the
job at once: the pod's log says what is missing.
"""
    return Piece(f"{site.name}/README.md", text)


def _code(lines: list[str]) -> str:
    return "\n".join(f"       {line}" for line in lines)


def _label_commands(request: Request, site: Site) -> list[str]:
    kubectl = _kubectl(request, site)
    return [
        f"{kubectl} label node {node.name} {LABEL_REGION}={object_name(site)}"
        + (f" {LABEL_LEAF}={leaf_name(site, node.switch)}" if node.switch else "")
        for node in site.nodes
    ]


def _top_readme(request: Request, engine: Engine) -> Piece:
    sites, plan = request.sites, request.plan
    rows = "\n".join(
        f"| {site.name} | {len(site.nodes)} | {site.ranks} | {entry_of(site, sites).context or 'kubectl as it is'} |"
        for site in sites.sites
    )
    steps: list[str] = []
    entry = sites.document.coordinator
    if entry is not None and len(sites.sites) > 1:
        if entry.address is not None:
            steps.append(
                f"On the machine that has {entry.address.rpartition(':')[0]}: `coordinator/start.sh` in `{entry.folder}`"
                + (
                    f", with `ca.pem`, `coordinator.pem` and `coordinator.key` in `{entry.folder}/keys`."
                    if needs_keys(request)
                    else "."
                )
            )
        else:
            steps.append(f"etcd runs at {', '.join(entry.etcd or [])}.")
    steps += [f"What `{site.name}/README.md` says, in its cluster." for site in sites.sites]
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    lost = (
        f"A lost region: the others go on without it after {plan.survival.detect_s:g} s and let it in when it comes back."
        if request.coordinator is not None
        else "A lost region ends the run: no coordinator takes part. Checkpoints are where it goes on."
    )
    text = f"""# {plan.fabric}: {plan.strategy.name}, {plan.workload}, on {engine.name}

Written by `isthmus deploy`: one cluster a region, each with its own objects. `isthmus deploy --check .` says whether these files
still fit each other and what the engines take.

| region | nodes | ranks | context |
|---|---|---|---|
{rows}

{numbered}

All regions have to come within {plan.survival.start_s:g} s of each other.{" " + lost if len(sites.sites) > 1 else ""}
"""
    return Piece("README.md", text)
