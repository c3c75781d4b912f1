"""Fingerprints of a fabric's parts, by which a document made for it recognises it again."""

from hashlib import sha256

from isthmus.fabric.model import Fabric

__all__ = ["fabric_digests"]


def fabric_digests(fabric: Fabric) -> dict[str, str]:
    """A fingerprint of each region by its name, and of each WAN link by the names it joins (`east-west`): 12 hexadecimal digits.

    Of what the description means, catalogue figures included, in SI units: comments, order of keys, units and prices change
    nothing, a figure does.
    """
    parts: dict[str, object] = {region.name: region for region in fabric.regions}
    parts |= {"-".join(sorted(link.between)): link for link in fabric.wan}
    return {name: sha256(repr(part).encode()).hexdigest()[:12] for name, part in parts.items()}
