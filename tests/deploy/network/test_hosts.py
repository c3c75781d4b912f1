"""What nodes run: shell that every sh reads, commands in the forms that are documented."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.deploy.network import pieces
from isthmus.deploy.network.hosts import adapter_settings, host_script
from isthmus.deploy.network.roce import Roce
from isthmus.deploy.request import Request
from isthmus.fabric import Region, parse_fabric

EXAMPLES = Path(__file__).parents[3] / "examples"
# NVIDIA EN documentation and community DOC-2792 (mlnx_qos); MLNX_OFED (ecn folders); restated.
FORMS = (
    r'ip link set dev "\$net" mtu \d+',
    r'mlnx_qos -i "\$net" --trust (dscp|pcp)',
    r'mlnx_qos -i "\$net" --dscp2prio set,([0-9]|[1-5][0-9]|6[0-3]),[0-7]',
    r'mlnx_qos -i "\$net" --pfc [01](,[01]){7}',
    r'mlnx_qos -i "\$net" --cable_len \d+',
    r'cma_roce_tos -d "\$dev" -t \d+',
    r'echo \d+ > "/sys/class/infiniband/\$dev/tc/1/traffic_class"',
    r'echo 1 > "/sys/class/net/\$net/ecn/roce_(np|rp)/enable/[0-7]"',
    r'echo \d+ > "/sys/class/net/\$net/ecn/roce_np/(cnp_dscp|cnp_802p_prio)"',
)


def region(nodes: str = "kind: hgx-h100") -> Region:
    text = f"name: one\nregions:\n  east:\n    nodes: [{{count: 4, {nodes}}}]\n    network: {{kind: roce, rate: 400 Gb/s}}\n"
    return parse_fabric(text, "fabric.yaml").regions[0]


def test_every_adapter_command_has_a_documented_form(make_roce: Callable[..., Roce]) -> None:
    found = [each for _, group in adapter_settings(region(), make_roce("rate: 400 Gb/s")) for each in group]
    assert found
    for command in found:
        assert any(re.fullmatch(form, command) for form in FORMS), command


def test_switch_adapter_and_nccl_use_one_class(make_roce: Callable[..., Roce]) -> None:
    text = host_script(region(), make_roce("rate: 400 Gb/s"), (), sysctl=True)
    assert "--dscp2prio set,26,3" in text
    assert "--dscp2prio set,48,6" in text
    assert 'cma_roce_tos -d "$dev" -t 106' in text
    assert "NCCL_IB_TC=106" in text.replace("\n    # ", " ")


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_sh_reads_the_script_of_every_example(make_request: Callable[..., Request], example: str) -> None:
    request = make_request((EXAMPLES / f"{example}.yaml").read_text(encoding="utf-8"))
    scripts = [piece for piece in pieces(request) if piece.path.endswith(".sh")]
    assert scripts
    for piece in scripts:
        assert piece.executable
        checked = subprocess.run(["sh", "-n"], input=piece.text, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), piece.path


def test_only_the_named_adapters_are_set_where_sites_names_them(make_roce: Callable[..., Roce]) -> None:
    roce = make_roce("rate: 400 Gb/s")
    assert 'devices="mlx5_0 mlx5_3:1"' in host_script(region(), roce, ("mlx5_0", "mlx5_3:1"), sysctl=False)
    assert 'devices="$(ls /sys/class/infiniband)"' in host_script(region(), roce, (), sysctl=False)


def test_adapters_of_another_maker_get_no_commands_of_nvidias(make_roce: Callable[..., Roce]) -> None:
    other = region("kind: hgx-h100, nics: {kind: bcm57608}")
    assert adapter_settings(other, make_roce("rate: 400 Gb/s")) == []
    assert "mlnx_qos" not in host_script(other, make_roce("rate: 400 Gb/s"), (), sysctl=False)


def test_amd_gpus_are_set_by_amds_tool(make_roce: Callable[..., Roce]) -> None:
    text = host_script(region("kind: mi300x-8, nics: {count: 8, kind: connectx-7}"), None, (), sysctl=False)
    assert "rocm-smi --setperflevel high" in text
    assert "nvidia-smi" not in text
