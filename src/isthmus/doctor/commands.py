"""What to ask a node: (name of the output, command). Everything only reads; `live` runs it, the collect script is made of it."""

__all__ = ["COMMANDS", "SAMPLED", "collect_script"]

COMMANDS: tuple[tuple[str, str], ...] = (
    ("nvidia-smi-L", "nvidia-smi -L"),
    ("nvidia-smi-q", "nvidia-smi -q"),
    ("nvidia-smi-topo", "nvidia-smi topo -m"),
    ("nvidia-smi-p2p", "nvidia-smi topo -p2p r"),
    ("nvlink-status", "nvidia-smi nvlink -s"),
    ("nvidia-driver", "cat /proc/driver/nvidia/version"),
    ("fabricmanager", "systemctl status nvidia-fabricmanager --no-pager"),
    ("fabricmanager-log", "tail -n 400 /var/log/fabricmanager.log"),
    ("imex", "nvidia-imex-ctl -N"),
    ("dmesg", "dmesg -T"),
    ("ibstat", "ibstat"),
    ("ibv_devinfo", "ibv_devinfo -v"),
    ("ibdev2netdev", "ibdev2netdev"),
    ("show_gids", "show_gids"),
    ("rdma-link", "rdma link show"),
    ("ip-link", "ip link show"),
    ("lspci", "lspci -D -nn -vv"),
    ("lstopo", "lstopo-no-graphics"),
    ("numactl", "numactl -H"),
    ("lsmod", "lsmod"),
    ("cmdline", "cat /proc/cmdline"),
    ("uname", "uname -a"),
    ("governor", "grep -H . /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("clocksource", "grep -H . /sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("limits", "cat /proc/self/limits"),
    ("shm", "df -h /dev/shm"),
    ("sysctl", "sysctl net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.core.rmem_max net.core.wmem_max net.ipv4.ip_local_port_range"),
    ("chrony", "chronyc tracking"),
    ("ntpq", "ntpq -pn"),
    ("logind", "grep -h RemoveIPC /etc/systemd/logind.conf"),
    ("virt", "lscpu"),
    ("nccl.conf", "cat /etc/nccl.conf"),
    ("mlnx-qos", 'for n in $(ls /sys/class/net); do echo "mlnx_qos -i $n"; mlnx_qos -i $n; done'),
    ("ofed", "ofed_info -s"),
)
SAMPLED: tuple[tuple[str, str], ...] = (
    ("nvlink-errors", "nvidia-smi nvlink -e"),
    ("ib-counters", "grep -H . /sys/class/infiniband/*/ports/*/counters/* /sys/class/infiniband/*/ports/*/hw_counters/*"),
    ("ethtool", 'for n in $(ls /sys/class/net); do echo "ethtool -S $n"; ethtool -S $n; done'),
)
"""Counters, asked twice with a pause between: only their growth says something."""

_HEAD = r"""#!/usr/bin/env bash
# isthmus doctor collect: asks this node's tools what they see and packs the answers. It only reads; it needs no root
# (with root dmesg, lspci and ethtool say more) and no isthmus. Every command ends after 30 s.
# Usage: bash collect.sh [-o BUNDLE.tar.gz] [-w SECONDS between two samples of counters] [-r]   (-r blanks addresses, serials)
set -u
out=""; wait_s=20; redact=0
while getopts "o:w:r" option; do
  case "$option" in o) out="$OPTARG" ;; w) wait_s="$OPTARG" ;; r) redact=1 ;; *) exit 2 ;; esac
done
host="$(hostname -s 2>/dev/null || uname -n)"; host="${host//[^A-Za-z0-9._-]/_}"
out="${out:-isthmus-$host.tar.gz}"
work="$(mktemp -d)" || exit 2
trap 'rm -rf "$work"' EXIT
dir="$work/isthmus-$host"; mkdir -p "$dir"
ask() {
  { echo "# at $(date +%s)"; timeout 30 bash -c "$2"; } > "$dir/$1.txt" 2> "$dir/$1.err"
  grep -qv '^# at ' "$dir/$1.txt" || rm -f "$dir/$1.txt"
  rm -f "$dir/$1.err"
}
echo "isthmus: asking the tools of $host" >&2
"""
_TAIL = r"""
# Communication settings of this shell only; nothing else of the environment leaves the node.
env | grep -E '^(NCCL|UCX|FI|OFI_NCCL|GLOO|TORCH_NCCL|CUDA_VISIBLE|SHARP|NVSHMEM)_' |
  grep -viE 'token|secret|passw|key=' > "$dir/env.txt"
if [ "$redact" = 1 ]; then
  for file in "$dir"/*; do
    sed -i -E -e 's/\b([0-9]{1,3}\.[0-9]{1,3})\.[0-9]{1,3}\.[0-9]{1,3}\b/\1.0.0/g' \
      -e 's/(([0-9a-fA-F]{2}:){3})([0-9a-fA-F]{2}:){2}[0-9a-fA-F]{2}\b/\100:00:00/g' \
      -e 's/(GPU-[0-9a-f]{8})-[0-9a-f-]{27}/\1-0000-0000-0000-000000000000/g' \
      -e 's/((Serial Number|serial number|S\/N)[^:|]*[:|] *).*/\1REDACTED/' "$file"
  done
fi
tar -C "$work" -czf "$out" "isthmus-$host" && echo "$out"
"""


def collect_script() -> str:
    """The script, as one text."""
    lines = [_HEAD]
    lines += [f"ask {name}-1 {_quoted(command)}" for name, command in SAMPLED]
    lines += [f"ask {name} {_quoted(command)}" for name, command in COMMANDS]
    lines.append('sleep "$wait_s"')
    lines += [f"ask {name}-2 {_quoted(command)}" for name, command in SAMPLED]
    return "\n".join(lines) + "\n" + _TAIL


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"
