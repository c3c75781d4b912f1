"""All documents of one hand-over together, as targets are given them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from isthmus.deploy.sites import Site, Sites
from isthmus.fabric import Fabric
from isthmus.plan import Plan
from isthmus.runtime.environment import RankEnvironment

__all__ = ["FabricRequest", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRequest:
    """What a target is given that sets up a fabric, whatever runs on it.

    Attributes:
        fabric: From `fabric_path`.
    """

    fabric: Fabric
    fabric_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a target is given that runs a plan.

    Attributes:
        plan: From `plan_path`.
        sites: Regions as they stand, with the fabric.
        script: The training script and its arguments, as the nodes find it: a relative path is relative to the region's folder.
        health_check: `isthmus doctor` looks at every node before it starts.
    """

    plan: Plan
    plan_path: Path
    sites: Sites
    script: tuple[str, ...] = ()
    health_check: bool = True

    @property
    def command(self) -> str:
        """The script and its arguments as a shell takes them."""
        return shlex.join(self.script)

    @property
    def coordinator(self) -> str | None:
        """As ISTHMUS_COORDINATOR takes it; None where there is none."""
        return self.sites.coordinator

    def environment(self, site: Site) -> RankEnvironment:
        """What rank 0 of a region will find there, for the runtime's own checks."""
        members = self.sites.members
        return RankEnvironment(
            rank=0,
            world_size=site.ranks,
            master=None,
            region=site.name,
            region_index=members.index(site.name),
            members=members,
            plan_path=None,
            metrics_dir=None,
            blocks=None,
            coordinator=self.coordinator,
            insecure=self.sites.document.insecure,
        )
