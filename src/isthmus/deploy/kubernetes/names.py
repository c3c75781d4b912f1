"""Names that Kubernetes takes, made from those of regions and nodes."""

import re

from isthmus.deploy.sites import KubernetesEntry, Site, Sites
from isthmus.errors import InputError

__all__ = ["LABEL_LEAF", "LABEL_REGION", "entry_of", "is_label", "is_subdomain", "leaf_name", "object_name"]

LABEL_REGION = "isthmus-region"
LABEL_LEAF = "isthmus-leaf"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MOST = 40
"""Of a region's object: what engines append (`-node-0-12-abcde`) must stay within a label's 63."""


def is_label(text: str) -> bool:
    """A DNS label (RFC 1123): objects, containers, volumes."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """A DNS subdomain: nodes, most objects."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def _cleaned(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def object_name(site: Site) -> str:
    """`isthmus-REGION`, in lower case and with hyphens: the job, and the stem of what belongs to it."""
    return f"isthmus-{_cleaned(site.name)}"


def leaf_name(site: Site, switch: str) -> str:
    """Of a leaf switch among a region's HyperNodes."""
    return f"{object_name(site)}-{_cleaned(switch)}"


def entry_of(site: Site, sites: Sites) -> KubernetesEntry:
    """The region's part of sites.yaml about Kubernetes.

    Raises:
        InputError: There is none; or a name in the region is none that Kubernetes takes, or is another region's too.
    """
    where = ("regions", site.name)
    found = site.entry.kubernetes
    if found is None:
        hint = "kubernetes: {image: registry.example/train:1}, an image with Python, isthmus[runtime] and your script"
        raise sites.lines.error(where, f"{site.name!r} says nothing about Kubernetes", hint)
    name = object_name(site)
    if not is_label(name) or len(name) > _MOST:
        hint = f"a region's name is made of a-z, 0-9 and -, and has at most {_MOST - len('isthmus-')} characters there"
        raise sites.lines.error(where, f"{site.name!r} makes no name for Kubernetes ({name!r})", hint)
    if [object_name(other) for other in sites.sites].count(name) > 1:
        raise sites.lines.error(
            where, f"{site.name!r} becomes {name!r} in Kubernetes, as another region does", "names must differ"
        )
    for number, node in enumerate(site.entry.nodes):
        if not is_subdomain(node.name):
            raise sites.lines.error(
                (*where, "nodes", number, "name"), f"{node.name!r} is no name of a Kubernetes node", "see kubectl get nodes"
            )
    leaves = {node.switch for node in site.nodes if node.switch}
    for leaf in sorted(leaves):
        if not is_label(leaf_name(site, leaf)):
            hint = "region and switch together make a label of at most 63 characters, a-z, 0-9 and -"
            raise sites.lines.error(where, f"the switch {leaf!r} makes no name for Kubernetes ({leaf_name(site, leaf)!r})", hint)
    if len({leaf_name(site, leaf) for leaf in leaves}) < len(leaves):
        raise InputError(
            sites.lines.where(where), "two switches have one name in Kubernetes", "they differ by case or . _ - only"
        )
    return found
