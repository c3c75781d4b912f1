"""What RDMA and NCCL keep in flight over distance, and what passing through a host costs. Rates are bytes/s."""

from dataclasses import dataclass
from math import ceil, log2

from isthmus.cost.transport import window_rate_bytes_per_s

__all__ = [
    "CHANNEL_SOCKET_BYTES_PER_S",
    "HOST_MEMORY_BYTES_PER_S",
    "NCCL_CHANNELS_MOST",
    "QP_UNACKED_BYTES",
    "NcclSettings",
    "go_back_n_share",
    "host_relay_bytes_per_s",
    "nccl_buffer_to_fill_bytes",
    "nccl_in_flight_bytes",
    "nccl_rate_bytes_per_s",
    "qps_to_fill",
    "rdma_rate_bytes_per_s",
]

QP_UNACKED_BYTES = 0.6e6
"""What one QP of a ConnectX-7 or BlueField-3 leaves unacknowledged: under 1 Gb/s seen with one QP writing 100 MB over 5 ms
(forums.developer.nvidia.com/t/345696): 1 Gb/s x 5 ms = 0.625 MB. One report; a guess until measured on your adapter.
"""
CHANNEL_SOCKET_BYTES_PER_S = 2.0e9
"""What one socket thread of NCCL copies: 1.9 to 2.1 GB/s a channel seen (NVIDIA/nccl issues 209 and 438, nccl-tests 83)."""
HOST_MEMORY_BYTES_PER_S = 307e9
"""One socket with eight channels of DDR5-4800: 8 x 38.4 GB/s, peak (JEDEC JESD79-5)."""
NCCL_CHANNELS_MOST = 64
"""MAXCHANNELS, NVIDIA/nccl src/include/device.h."""
NCCL_BUFFER_BYTES = 4 * 2**20
"""NCCL_BUFFSIZE by default (DEFAULT_BUFFSIZE, src/init.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """NCCL as a link between two peers sees it; NCCL's own defaults.

    Attributes:
        channels: Of one ring: two a NIC on nodes of eight.
        buffer_bytes: NCCL_BUFFSIZE, of one channel.
        qps: NCCL_IB_QPS_PER_CONNECTION.
        socket_threads: NCCL_SOCKET_NTHREADS; 1 but on AWS (2) and Google Cloud (4).
        sockets: NCCL_NSOCKS_PERTHREAD; 1 but on AWS (8).
    """

    channels: int = 16
    buffer_bytes: float = NCCL_BUFFER_BYTES
    qps: int = 1
    socket_threads: int = 1
    sockets: int = 1


def rdma_rate_bytes_per_s(queue_pairs: int, depth: int, message_bytes: float, rtt_s: float) -> tuple[float, str]:
    """What `queue_pairs` QPs carry whatever the link's rate, and what binds: the send queue, or the NIC's acknowledgements.

        min(Q d m, Q u) / RTT

    d = depth (perftest: 128), m = message_bytes, u = QP_UNACKED_BYTES.
    """
    queued, unacked = queue_pairs * depth * message_bytes, queue_pairs * QP_UNACKED_BYTES
    bind = "send queue" if queued < unacked else "NIC's unacknowledged bytes"
    return window_rate_bytes_per_s(min(queued, unacked), rtt_s), bind


def qps_to_fill(rate_bytes_per_s: float, rtt_s: float) -> int:
    """Fewest QPs whose unacknowledged bytes cover the bandwidth-delay product."""
    return max(1, ceil(rate_bytes_per_s * rtt_s / QP_UNACKED_BYTES))


def go_back_n_share(loss: float, packets_in_flight: float) -> float:
    """Share of what is sent that is new when every lost packet is sent again with all that follow it in flight.

        (1 - p) / (1 + p (W - 1))

    What RoCE adapters do unless selective repeat is on. Source: go-back-N, Bertsekas & Gallager, Data Networks, 2nd ed.,
    section 2.4.1.
    """
    return (1 - loss) / (1 + loss * max(0.0, packets_in_flight - 1))


def nccl_in_flight_bytes(settings: NcclSettings, sockets: bool, own_bytes: float) -> tuple[float, str]:
    """Bytes that NCCL keeps in flight to one peer, and what bounds them.

        channels x min(buffer, threads x sockets x W)   over TCP;   channels x min(buffer, QPs x W)   over RDMA

    W = own_bytes: the window of a TCP socket, or what the adapter leaves unacknowledged on a QP (infinite: no limit).
    """
    lines = settings.socket_threads * settings.sockets if sockets else settings.qps
    word = "TCP window of its sockets" if sockets else "NIC's unacknowledged bytes"
    buffer = settings.buffer_bytes
    return settings.channels * min(buffer, lines * own_bytes), "NCCL_BUFFSIZE" if buffer <= lines * own_bytes else word


def nccl_rate_bytes_per_s(
    link_bytes_per_s: float, rtt_s: float, settings: NcclSettings, sockets: bool, stream: tuple[float, float]
) -> tuple[float, str]:
    """What one ring of NCCL carries between two peers, and what binds.

    Args:
        link_bytes_per_s: Payload of the link.
        rtt_s: Round trip.
        settings: NCCL's.
        sockets: TCP sockets, else RDMA.
        stream: (window in bytes, most by loss in bytes/s) of one TCP stream; of RDMA what a QP leaves unacknowledged.
    """
    window, lossy = stream
    in_flight, bound = nccl_in_flight_bytes(settings, sockets, window)
    limits = [(link_bytes_per_s, "link"), (window_rate_bytes_per_s(in_flight, rtt_s), bound)]
    if sockets:
        streams = settings.channels * settings.socket_threads * settings.sockets
        limits.append((streams * lossy, "loss"))
        limits.append((settings.channels * settings.socket_threads * CHANNEL_SOCKET_BYTES_PER_S, "socket threads"))
    return min(limits, key=lambda limit: limit[0])


def nccl_buffer_to_fill_bytes(rate_bytes_per_s: float, rtt_s: float, channels: int) -> int:
    """NCCL_BUFFSIZE at which `channels` cover the bandwidth-delay product: the next power of two, 4 MiB at least."""
    wanted = rate_bytes_per_s * rtt_s / channels
    return max(NCCL_BUFFER_BYTES, 2 ** ceil(log2(max(wanted, 1.0))))


def host_relay_bytes_per_s(slot_bytes_per_s: float, memory_bytes_per_s: float, network_bytes_per_s: float, copies: int) -> float:
    """What passes when data goes through a host's memory, its parts pipelined: the slowest of slot, memory and network.

        min(P, M / (2 + 2 c), N)

    P = slot of the GPU, M = the host's memory bandwidth, N = network. DMA in and out touch memory once each, every copy by the
    CPU twice (read, write): c = copies, 0 for a bounce buffer that the adapter reads, 1 for sockets, 2 with TLS in user space.
    """
    return min(slot_bytes_per_s, memory_bytes_per_s / (2 + 2 * copies), network_bytes_per_s)

