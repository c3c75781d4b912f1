"""A bundle on disk: written whole or not at all, recognised by its manifest, checked against it later.

The manifest (`manifest.json`) holds the SHA-256 of every file, so that an edit is seen, and what was written by somebody else is
never taken for ours.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from isthmus import __version__
from isthmus.deploy.pieces import Bundle, Finding
from isthmus.errors import InputError

__all__ = ["MANIFEST", "Manifest", "edits", "read_manifest", "write_bundle"]

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        target: What it is for.
        files: SHA-256 in hex by path.
        made_from: See `Bundle`.
    """

    target: str
    files: dict[str, str]
    made_from: dict[str, Any]


def write_bundle(bundle: Bundle, folder: Path, *, force: bool = False) -> list[Path]:
    """Write `bundle` as `folder`; the files written, in order.

    Everything is written beside it first. A new folder appears whole; in one of an earlier bundle file after file is renamed
    into place, the manifest last, and files of the earlier bundle that this one lacks go. What was never ours stays.

    Args:
        bundle: What to write.
        folder: Made when missing.
        force: Replace also files that were edited, and those of others that stand in the way.

    Raises:
        InputError: Such files stand there, or the folder holds files and no bundle, and not `force`.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "is no folder", "choose another -o")
    earlier = _earlier(bundle, folder, force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        for piece in bundle.pieces:
            path = fresh / piece.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(piece.text, encoding="utf-8")
            path.chmod(0o755 if piece.executable else 0o644)
        (fresh / MANIFEST).write_text(_manifest(bundle), encoding="utf-8")
        if not folder.exists():
            os.rename(fresh, folder)
        else:
            _into(fresh, folder, [piece.path for piece in bundle.pieces], earlier)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return [folder / piece.path for piece in bundle.pieces] + [folder / MANIFEST]


def _into(fresh: Path, folder: Path, paths: list[str], earlier: list[str]) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(fresh / path, folder / path)
    for path in sorted(set(earlier) - set(paths)):
        (folder / path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # still holds something
            (folder / path).parent.rmdir()
    os.replace(fresh / MANIFEST, folder / MANIFEST)


def _manifest(bundle: Bundle) -> str:
    files = {piece.path: hashlib.sha256(piece.text.encode()).hexdigest() for piece in bundle.pieces}
    content = {
        "isthmus": __version__, "version": 1, "target": bundle.target, "made_from": bundle.made_from, "files": files,
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _earlier(bundle: Bundle, folder: Path, force: bool) -> list[str]:
    """Files of the bundle that stands in `folder`; refuses to touch what is not ours as we wrote it, unless `force`."""
    if not folder.exists() or not any(folder.iterdir()):
        return []
    hint = "choose another -o, or give --force to replace it"
    if not (folder / MANIFEST).exists():
        if not force:
            found = sorted(path.name for path in folder.iterdir())
            raise InputError(str(folder), f"holds files that isthmus deploy did not write, such as {found[0]}", hint)
        return []
    manifest = read_manifest(folder)
    if not force:
        for finding in edits(folder, manifest):
            if finding.severity == "warning":
                raise InputError(finding.where, finding.found, hint)
        for piece in bundle.pieces:
            if piece.path not in manifest.files and (folder / piece.path).exists():
                raise InputError(str(folder / piece.path), "stands where a new file goes, and isthmus did not write it", hint)
    return list(manifest.files)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        InputError: There is none, or it is not one of ours.
    """
    path = folder / MANIFEST
    if not path.is_file():
        hint = "name a folder that isthmus deploy -o wrote"
        raise InputError(str(folder), f"is no bundle: there is no {MANIFEST} in it", hint)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != 1:
            raise InputError(str(path), f"has version {content['version']!r}, expected 1", "write the bundle anew")
        files, made_from = content["files"], content["made_from"]
        if not all(isinstance(each, dict) for each in (files, made_from)) or not isinstance(content["target"], str):
            raise TypeError
        return Manifest(content["target"], cast(dict[str, str], files), cast(dict[str, Any], made_from))
    except (ValueError, KeyError, TypeError):
        raise InputError(str(path), "is not a manifest of isthmus deploy", "write the bundle anew") from None


def edits(folder: Path, manifest: Manifest) -> list[Finding]:
    """What differs from what was written: a missing file is an error, an edited one a warning."""
    findings: list[Finding] = []
    for name, digest in manifest.files.items():
        path = folder / name
        if not path.is_file():
            findings.append(Finding("error", str(path), "is missing", "write the bundle anew"))
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            findings.append(Finding("warning", str(path), "was edited since it was written", "isthmus deploy writes it anew"))
    return findings
