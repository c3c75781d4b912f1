"""A bundle is written whole or not at all, and nothing of anybody else's goes with it."""

from pathlib import Path

import pytest

from isthmus.deploy.folder import read_manifest, write_bundle
from isthmus.deploy.pieces import Bundle, Piece
from isthmus.errors import InputError

ONE = Bundle("torchrun", (Piece("a/run.sh", "echo 1\n", executable=True), Piece("README.md", "one\n")))
TWO = Bundle("torchrun", (Piece("a/run.sh", "echo 2\n", executable=True), Piece("b/new.txt", "new\n")))


def _content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"}


def test_a_bundle_takes_the_place_of_an_earlier_one_and_leaves_what_was_never_ours(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write_bundle(ONE, folder)
    assert [(folder / name).stat().st_mode & 0o777 for name in ("a/run.sh", "README.md")] == [0o755, 0o644]
    (folder / "a" / "train.log").write_text("step 1\n")
    write_bundle(TWO, folder)
    assert _content(folder) == {"a/run.sh": "echo 2\n", "b/new.txt": "new\n", "a/train.log": "step 1\n"}
    assert sorted(read_manifest(folder).files) == ["a/run.sh", "b/new.txt"]
    assert list(tmp_path.iterdir()) == [folder]  # nothing is left beside it


@pytest.mark.parametrize("what", ["edited", "in the way", "no bundle"])
def test_nothing_of_the_users_is_overwritten_without_force(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "bundle"
    if what == "no bundle":
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "run.sh").write_text("mine\n")
    else:
        write_bundle(ONE, folder)
        place = folder / ("a/run.sh" if what == "edited" else "b/new.txt")
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine\n")
    before = _content(folder)
    with pytest.raises(InputError, match="--force"):
        write_bundle(TWO, folder)
    assert _content(folder) == before
    write_bundle(TWO, folder, force=True)
    assert {"a/run.sh": "echo 2\n", "b/new.txt": "new\n"}.items() <= _content(folder).items()


def test_what_stops_halfway_leaves_no_folder_and_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chmod = Path.chmod

    def full(path: Path, mode: int) -> None:
        if path.name == "README.md":
            raise OSError(28, "No space left on device", str(path))
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OSError, match="No space"):
        write_bundle(ONE, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
