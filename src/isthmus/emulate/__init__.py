"""The wind tunnel: nodes as network namespaces, regions as bridges, the WAN as a delay line in one Python process."""

from isthmus.emulate.network import TcpSettings
from isthmus.emulate.refusal import probe
from isthmus.emulate.state import Cleaned, clean
from isthmus.emulate.topology import EmulatedLink
from isthmus.emulate.tunnel import LineCounters, LinkCounters, Tunnel, open_tunnel

__all__ = [
    "Cleaned", "EmulatedLink", "LineCounters", "LinkCounters", "TcpSettings", "Tunnel", "clean", "open_tunnel", "probe",
]
