"""Keys: one authority, one certificate a region; nothing is overwritten; a region can come later; TLS takes them."""

import stat

import pytest

from isthmus.errors import InputError
from isthmus.keys import make_keys


def test_every_region_and_the_coordinator_get_a_certificate_and_private_keys_are_private(tmp_path):
    folder = tmp_path / "keys"
    written = make_keys(["shenzhen", "上海"], folder)
    assert sorted(path.name for path in written) == sorted(
        f"{stem}.{kind}" for stem in ("ca", "coordinator", "shenzhen", "上海") for kind in ("key", "pem")
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.suffix == ".key"} == {0o600}


def test_a_region_can_be_added_later_by_the_same_authority_and_nothing_is_overwritten(tmp_path):
    first = {path: path.read_bytes() for path in make_keys(["a", "b"], tmp_path)}
    later = make_keys(["c"], tmp_path)
    assert [path.name for path in later] == ["c.key", "c.pem"]
    with pytest.raises(InputError, match=r"a\.pem: exists, and keys are never overwritten"):
        make_keys(["d", "a"], tmp_path)
    assert not (tmp_path / "d.pem").exists()
    assert {path: path.read_bytes() for path in first} == first


@pytest.mark.parametrize("name", ["", "ca", "coordinator", "../x", ".hidden", "a/b", "-o"])
def test_a_name_that_cannot_be_a_file_of_keys_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="cannot name a file of keys"):
        make_keys([name], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_authoritys_private_key_no_region_can_be_added(tmp_path):
    make_keys(["a"], tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(InputError, match="its authority cannot be used"):
        make_keys(["b"], tmp_path)
    assert not (tmp_path / "b.pem").exists()


def test_an_authority_of_two_halves_is_refused(tmp_path):
    make_keys(["a"], tmp_path / "one")
    make_keys(["a"], tmp_path / "two")
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(InputError, match=r"does not belong to ca\.pem"):
        make_keys(["b"], tmp_path / "one")
