"""Stores over TLS with the keys that `isthmus keys` makes; whoever has none of this authority is refused."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.keys import make_keys
from isthmus.runtime.federation.coordinator import serving
from isthmus.runtime.federation.store import Store, StoreLostError, open_store
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.wan.identity import Identity

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(["east"], folder)
    return folder


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    make_keys(["east"], tmp_path / "strangers")
    return tmp_path / "strangers"


@pytest.fixture(params=["coordinator", pytest.param("etcd", marks=[pytest.mark.tunnel, needs_etcd])])
def address(request: pytest.FixtureRequest, keys: Path, tmp_path: Path) -> Iterator[str]:
    """Of a store that speaks TLS only and asks for a certificate of the authority in `keys`."""
    (port,) = free_ports(1)
    if request.param == "coordinator":
        with serving(("127.0.0.1", port), None, Identity.coordinator(keys).answering):
            yield f"tcp://127.0.0.1:{port}"
        return
    (peer,) = free_ports(1)
    command = ["etcd", "--data-dir", str(tmp_path / "data"), "--listen-client-urls", f"https://127.0.0.1:{port}"]
    command += ["--advertise-client-urls", f"https://127.0.0.1:{port}", "--client-cert-auth", "--trusted-ca-file"]
    command += [str(keys / "ca.pem"), "--cert-file", str(keys / "coordinator.pem"), "--key-file", str(keys / "coordinator.key")]
    command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
    command += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"etcd+https://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _opened(address: str, folder: Path, patience_s: float) -> Store:
    return open_store(address, Identity.load(folder, "east").calling, patience_s=patience_s)


def test_a_region_with_keys_of_the_authority_is_served_and_others_are_not(address: str, keys: Path, strangers: Path) -> None:
    store = _opened(address, keys, 20.0)
    assert store.txn({"a": 0}, {"a": "1"})
    lease = store.grant(5.0)
    assert store.keep_alive(lease)
    found = store.get("a")
    assert found is not None
    assert found.value == "1"
    stranger = _opened(address, strangers, 0.5)
    with pytest.raises(StoreLostError):
        stranger.get("a")
    plain = address.replace("etcd+https", "etcd+http")
    in_the_clear = open_store(plain, patience_s=0.5)
    with pytest.raises(StoreLostError):
        in_the_clear.get("a")
    assert store.get("a") == found, "whoever was refused has not disturbed those who were not"
    for each in (store, stranger, in_the_clear):
        each.close()


def test_a_region_s_certificate_does_not_make_a_coordinator(keys: Path) -> None:
    (port,) = free_ports(1)
    with serving(("127.0.0.1", port), None, Identity.load(keys, "east").answering):
        store = _opened(f"tcp://127.0.0.1:{port}", keys, 0.5)
        with pytest.raises((StoreLostError, InputError), match=r"coordinator|certificate"):
            store.get("a")
        store.close()


def test_keys_and_https_go_together(keys: Path) -> None:
    with pytest.raises(InputError, match="https takes keys and http none"):
        open_store("etcd+https://127.0.0.1:1")
    with pytest.raises(InputError, match="https takes keys and http none"):
        _opened("etcd+http://127.0.0.1:1", keys, 0.5)
