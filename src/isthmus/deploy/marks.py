"""How RoCE's packets are marked: one set of values from which switches, adapters and NCCL all take theirs."""

from dataclasses import dataclass

__all__ = ["MARKS", "PRIORITIES", "Marks"]

PRIORITIES = 8
_ECN_CAPABLE = 2
"""ECT(0), the lower two bits of the traffic class (RFC 3168)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """DSCP of data and of congestion notification packets (CNP), and the priority that each takes, which is also its queue.

    Defaults: those that adapters and Cumulus come with. Source: NVIDIA Cumulus Linux 5.14, RoCE (DSCP 26 -> 3, 48 -> 6).
    """

    data_dscp: int = 26
    data_priority: int = 3
    cnp_dscp: int = 48
    cnp_priority: int = 6

    @property
    def traffic_class(self) -> int:
        """The IP header's byte, as NCCL_IB_TC, `cma_roce_tos -t` and verbs take it: DSCP x 4 + ECT(0)."""
        return self.data_dscp << 2 | _ECN_CAPABLE

    def priority(self, dscp: int) -> int:
        """Of a packet with this DSCP; everything that is neither data nor CNP shares 0."""
        return {self.data_dscp: self.data_priority, self.cnp_dscp: self.cnp_priority}.get(dscp, 0)

    @property
    def pfc(self) -> str:
        """One bit a priority, 0 first, as `mlnx_qos --pfc` takes it."""
        return ",".join("1" if priority == self.data_priority else "0" for priority in range(PRIORITIES))


MARKS = Marks()
"""What every file of a hand-over uses."""
