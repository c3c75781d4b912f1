"""What share of a line rate arrives, and other figures that no data sheet states: each with its source.

Values are `plan.Assumption`s, so that a plan can list those it used as they stand here.
"""

from isthmus.plan import Assumption

__all__ = [
    "BACKWARD_FRACTION",
    "BLOCKING_IN_MFU",
    "BUCKET_WORK",
    "CHECKPOINT_EVERY",
    "DEFAULT_MFU",
    "MEMORY_RESERVE",
    "NCCL_BUFFER",
    "NCCL_CHANNELS",
    "OUTER_STATE",
    "PCIE_EFFICIENCY",
    "RDMA_PAYLOAD",
    "REGION_SPREAD",
    "TCP_WINDOW",
    "TOKEN_BYTES",
    "WAN_LOSS_BAND",
    "WAN_RATE_BAND",
]

WAN_RATE_BAND = (0.85, 1.0)
"""p10 and p90 of what of a link's rate arrives over that its headers leave: in the wind tunnel 1, 2 and 4 streams a rail took
1.04, 1.05 and 1.18 times the limit's time (100 Mb/s, 18 ms). A line that others share may do worse: then state its rate so."""

WAN_LOSS_BAND = ((1.22 / 1.31) ** 2, (1.22 / 0.87) ** 2)
"""What loss counts for, as a multiple: the law's constant is 1.31 under random loss with every packet acknowledged and 0.87 under
periodic loss with every other one, beside the 1.22 that is used (Mathis et al., ACM CCR 27(3), 1997, table 1)."""

PCIE_EFFICIENCY = Assumption(
    name="PCIe, share of line rate",
    value=0.88,
    unit="",
    source="55.4 of 63 GB/s on PCIe 5.0 x16 (nccl-tests reports)",
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
REGION_SPREAD = Assumption(
    name="a region's step from step to step, standard deviation",
    value=0.005,
    unit="",
    source="guess: host jitter and clocks; what is slow inside a region is in the fitted steps. `isthmus watch` shows yours",
)
CHECKPOINT_EVERY = Assumption(
    name="time between checkpoints",
    value=1800.0,
    unit="s",
    source="judgement: a stop then costs a quarter of an hour on average",
)
TOKEN_BYTES = Assumption(
    name="data set, bytes a token",
    value=4.0,
    unit="B",
    source="32-bit token numbers, as Megatron's and nanoGPT's files hold them for vocabularies above 65,536",
)
