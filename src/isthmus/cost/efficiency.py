"""What share of a line rate arrives, and other figures that no data sheet states: each with its source.

Values are `plan.Assumption`s, so that a plan can list those it used as they stand here.
"""

from isthmus.plan import Assumption

__all__ = [
    "BACKWARD_FRACTION",
    "BLOCKING_IN_MFU",
    "BUCKET_WORK",
    "DEFAULT_MFU",
    "MEMORY_RESERVE",
    "NCCL_BUFFER",
    "NCCL_CHANNELS",
    "NETWORK_EFFICIENCY",
    "NVLINK_EFFICIENCY",
    "NVLS_EFFICIENCY",
    "NVLS_EFFICIENCY_BLACKWELL",
    "NVLS_LATENCY",
    "NVLS_RAMP",
    "OUTER_STATE",
    "PCIE_EFFICIENCY",
    "RDMA_PAYLOAD",
    "TCP_WINDOW",
]

_ML_ENGINEERING = "stas00/ml-engineering 744d01e, network/README.md"
_NCCL = "NVIDIA/nccl 2.30, src/graph/tuning.cc and topo.h"

NVLINK_EFFICIENCY = Assumption(
    name="NVLink ring, share of line rate",
    value=0.81,
    unit="",
    source=f"8 x H200: ring 0.82, all-gather 0.80, reduce-scatter 0.81 ({_ML_ENGINEERING})",
)
NVLS_EFFICIENCY = Assumption(
    name="NVSwitch reduction, share of line rate",
    value=0.824 * 0.85,
    unit="",
    source=f"NVLink 4: 20.6 of 25 GB/s a link, 0.85 for NVLS on Hopper ({_NCCL})",
)
NVLS_EFFICIENCY_BLACKWELL = Assumption(
    name="NVSwitch reduction on NVLink 5, share of line rate",
    value=0.802 * 0.74,
    unit="",
    source=f"40.1 of 50 GB/s a link, 0.74 for NVLS on Blackwell ({_NCCL})",
)
NVLS_LATENCY = Assumption(name="NVSwitch reduction, latency", value=25e-6, unit="s", source=_NCCL)
NVLS_RAMP = Assumption(
    name="NVSwitch reduction, ramp",
    value=7e-9,
    unit="s/sqrt(B)",
    source=f"fitted to 8 x H200 ({_ML_ENGINEERING}): within 16 % from 16 MiB, 6 % from 64 MiB",
)
PCIE_EFFICIENCY = Assumption(
    name="PCIe, share of line rate",
    value=0.88,
    unit="",
    source="55.4 of 63 GB/s on PCIe 5.0 x16 (nccl-tests reports)",
)
NETWORK_EFFICIENCY = Assumption(
    name="network in the region, share of line rate",
    value=0.92,
    unit="",
    source=f"8 x 400G InfiniBand: 365 to 391 of 400 GB/s ({_ML_ENGINEERING}; public H100 nccl-tests logs)",
)
RDMA_PAYLOAD = Assumption(
    name="RDMA over the WAN, payload share",
    value=0.98,
    unit="",
    source="RoCE v2 headers at MTU 4096, computed",
)
TCP_WINDOW = Assumption(
    name="window of one TCP stream",
    value=4 * 2**20,
    unit="B",
    source="Linux default of net.ipv4.tcp_wmem, maximum (kernel Documentation/networking/ip-sysctl)",
)
NCCL_CHANNELS = Assumption(
    name="NCCL channels a NIC, of one ring",
    value=2,
    unit="",
    source="16 on 8-NIC nodes; judgement, NCCL_DEBUG=INFO shows it",
)
NCCL_BUFFER = Assumption(
    name="NCCL buffer of one channel",
    value=4 * 2**20,
    unit="B",
    source="DEFAULT_BUFFSIZE, NVIDIA/nccl 2.30 src/init.cc",
)
DEFAULT_MFU = Assumption(
    name="MFU inside one region",
    value=0.40,
    unit="",
    source="Llama 3 405B on H100: 0.38 to 0.43 (arXiv 2407.21783, table 4)",
)
BLOCKING_IN_MFU = Assumption(
    name="blocking in-region traffic that MFU holds, share of compute",
    value=0.10,
    unit="",
    source="tp 8 of that same Llama 3 405B run: per token and block 8 x 7/8 x 32 KiB over NVLink at 0.81 = 0.63 us "
    "beside 6.1 us of compute at 0.40; computed",
)
BACKWARD_FRACTION = Assumption(
    name="backward pass, share of a micro-batch",
    value=2 / 3,
    unit="",
    source="twice the forward FLOPs (arXiv 2104.04473)",
)
BUCKET_WORK = Assumption(
    name="host work of one bucket's exchange between regions",
    value=0.3e-3,
    unit="s",
    source="guess: thread wake-ups, frame headers and launches; not yet measured beside a GPU",
)
MEMORY_RESERVE = Assumption(
    name="GPU memory kept free",
    value=4e9,
    unit="B",
    source="judgement: CUDA context 1-2 GB, NCCL buffers, fragmentation",
)
OUTER_STATE = Assumption(
    name="outer optimizer of local steps, host memory a parameter",
    value=8.0,
    unit="B",
    source="fp32 copy and momentum, sharded over a region's ranks, kept in host memory, not the GPU's",
)
