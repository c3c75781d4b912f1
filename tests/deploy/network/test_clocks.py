"""Clocks: read by chronyd and ptp4l themselves, the latter over a wire of its own where namespaces can be made."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.deploy.network.clocks import Role, chrony_client, chrony_server, phc2sys_unit, ptp_text

CHRONYD = shutil.which("chronyd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PTP4L = shutil.which("ptp4l", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
ROLES: tuple[Role, ...] = ("grandmaster", "boundary", "client")
FILES = {"server": chrony_server(("10.1.0.12", "10.1.0.13")), "client": chrony_client("10.1.0.11")}


@pytest.mark.skipif(CHRONYD is None, reason="chronyd is not installed (Debian: chrony)")
@pytest.mark.parametrize("name", FILES)
def test_chronyd_reads_the_file_and_prints_it_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "chrony.conf"
    path.write_text(FILES[name], encoding="utf-8")
    result = subprocess.run([str(CHRONYD), "-p", "-f", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [line.strip() for line in result.stdout.splitlines()] == [
        line for line in FILES[name].splitlines() if not line.startswith("#")
    ]


@pytest.mark.skipif(CHRONYD is None, reason="chronyd is not installed (Debian: chrony)")
def test_chronyd_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "chrony.conf"
    path.write_text(FILES["client"] + "makesteps 1 3\n", encoding="utf-8")
    assert subprocess.run([str(CHRONYD), "-p", "-f", str(path)], capture_output=True, check=False).returncode == 1


def parsed(path: Path) -> str:
    """What ptp4l says of a file on an interface that has no hardware stamps: options are read before that."""
    result = subprocess.run([str(PTP4L), "-m", "-f", str(path)], capture_output=True, text=True, check=False, timeout=20)
    return result.stdout + result.stderr


@pytest.mark.skipif(PTP4L is None, reason="ptp4l is not installed (Debian: linuxptp)")
@pytest.mark.parametrize("role", ROLES)
def test_ptp4l_takes_every_option_of_its_own_version(tmp_path: Path, role: Role) -> None:
    version = subprocess.run([str(PTP4L), "-v"], capture_output=True, text=True, check=True).stdout
    major = int(re.search(r"\d+", version).group())  # type: ignore[union-attr]
    interfaces = ("lo", "none0") if role == "boundary" else ("lo",)
    path = tmp_path / "ptp4l.conf"
    path.write_text(ptp_text(role, major, interfaces), encoding="utf-8")
    said = parsed(path)
    assert "option" not in said
    assert "does not support requested timestamping mode" in said
    path.write_text(ptp_text(role, major, interfaces).replace("domainNumber", "domainNumbre"), encoding="utf-8")
    assert "unknown option domainNumbre" in parsed(path)


def test_names_follow_the_version() -> None:
    # linuxptp 3.1.1 refuses serverOnly and clientOnly; 4.0 renamed masterOnly and slaveOnly to them.
    assert "masterOnly 1" in ptp_text("grandmaster", 3, ("eth0",))
    assert "serverOnly 1" in ptp_text("grandmaster", 4, ("eth0",))
    assert "slaveOnly 1" in ptp_text("client", 3, ("eth0",))
    assert "clientOnly 1" in ptp_text("client", 4, ("eth0",))


def test_only_a_grandmaster_claims_to_be_one() -> None:
    for role in ROLES:
        text = ptp_text(role, 4, ("eth0", "eth1"))
        assert ("clockClass 6" in text) == (role == "grandmaster")
        assert ("boundary_clock_jbod 1" in text) == (role == "boundary")


def test_the_grandmasters_system_clock_leads_and_the_others_follow() -> None:
    assert "phc2sys -a -r -r -n 24" in phc2sys_unit("grandmaster")
    assert "phc2sys -a -r -n 24" in phc2sys_unit("client")


@pytest.fixture
def wire() -> Iterator[tuple[str, str]]:
    """Two namespaces with a wire between them: `ptp0` in the first, `ptp1` in the second."""
    names = f"isthmus-ptp-{os.getpid()}-a", f"isthmus-ptp-{os.getpid()}-b"
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        ends = ["ptp0", "netns", names[0], "type", "veth", "peer", "name", "ptp1", "netns", names[1]]
        subprocess.run(["ip", "link", "add", *ends], check=True, capture_output=True)
        for number, name in enumerate(names):
            subprocess.run(["ip", "-n", name, "link", "set", f"ptp{number}", "up"], check=True)
        yield names
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces cannot be made here: {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.mark.tunnel
@pytest.mark.skipif(PTP4L is None, reason="ptp4l is not installed (Debian: linuxptp)")
def test_a_client_follows_the_grandmaster_over_a_wire(wire: tuple[str, str], tmp_path: Path) -> None:
    for number, role in enumerate(("grandmaster", "client")):
        # A virtual wire has no hardware stamps; the rest is the file as written.
        text = ptp_text(role, 3, (f"ptp{number}",)).replace("time_stamping hardware", "time_stamping software")  # type: ignore[arg-type]
        (tmp_path / f"{role}.conf").write_text(text, encoding="utf-8")

    def command(number: int, role: str) -> list[str]:
        # Free running: the stamps of a virtual wire are those of this machine's own clock, which is left alone.
        options = ["--free_running=1", f"--uds_address={tmp_path / role}.sock", "-f", str(tmp_path / f"{role}.conf")]
        return ["ip", "netns", "exec", wire[number], str(PTP4L), "-m", *options]

    with subprocess.Popen(command(0, "grandmaster"), stdout=subprocess.DEVNULL) as server:
        try:
            with subprocess.Popen(command(1, "client"), stdout=subprocess.PIPE, text=True) as client:
                try:
                    assert client.stdout is not None
                    said: list[str] = []
                    for line in client.stdout:
                        said.append(line)
                        if "on RS_SLAVE" in line:
                            break
                    assert any("selected best master clock" in each for each in said), said
                    assert "LISTENING to UNCALIBRATED on RS_SLAVE" in said[-1], said
                finally:
                    client.terminate()
        finally:
            server.terminate()
