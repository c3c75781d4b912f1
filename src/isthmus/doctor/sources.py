"""Paths, standard input, folders and bundles (tar, tar.gz, gz) -> documents, one after another.

In a folder or bundle of many nodes the name of a node is taken from its folder: `isthmus-NODE` as the collect script
writes it, or the parent folder when sibling folders hold files of the same names.
"""

import gzip
import io
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from isthmus.doctor.text import Document, document, read_bounded
from isthmus.errors import InputError

__all__ = ["documents"]

_MOST_FILES = 200_000
_COLLECTED = "isthmus-"


def documents(paths: Iterable[str], stdin: BinaryIO) -> Iterator[Document]:
    """Documents of all paths; `-` is standard input. Raises InputError for what cannot be read at all."""
    for path in paths:
        if path == "-":
            data, cut = read_bounded(stdin)
            yield from _unpacked(data, "<stdin>", cut)
        elif Path(path).is_dir():
            yield from _folder(Path(path))
        elif not Path(path).exists():
            raise InputError(path, "no such file", "a file, a folder, a bundle.tar.gz, or - for standard input")
        else:
            yield from _file(Path(path))


def _file(path: Path) -> Iterator[Document]:
    with path.open("rb") as stream:
        head = stream.read(512)
    if tarfile.is_tarfile(path):
        yield from _bundle(path)
    elif head[:2] == b"\x1f\x8b":
        yield _gzip(path.read_bytes(), str(path), "")
    else:
        with path.open("rb") as stream:
            data, cut = read_bounded(stream)
        yield document(data, str(path), cut=cut)


def _unpacked(data: bytes, name: str, cut: str) -> Iterator[Document]:
    """Standard input may be a bundle too."""
    if data[:2] == b"\x1f\x8b" or data[257:262] == b"ustar":
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
                yield from _members(archive, name)
            return
        except tarfile.TarError:
            if data[:2] == b"\x1f\x8b":
                yield _gzip(data, name, cut)
                return
    yield document(data, name, cut=cut)


def _gzip(data: bytes, name: str, cut: str) -> Document:
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            inside, more = read_bounded(stream)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(name, f"the gzip data are damaged: {error}", "copy it again") from None
    return document(inside, name.removesuffix(".gz"), cut=cut or more)


def _folder(path: Path) -> Iterator[Document]:
    files = sorted(
        p for p in path.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)
    )
    if not files:
        raise InputError(str(path), "the folder has no files", "outputs of tools, one a file")
    if len(files) > _MOST_FILES:
        raise InputError(str(path), f"the folder has {len(files)} files", f"at most {_MOST_FILES}")
    hosts = _hosts([str(PurePosixPath(*p.relative_to(path).parts)) for p in files])
    for file, host in zip(files, hosts, strict=True):
        for found in _file(file):
            found.host = found.host or host
            yield found


def _bundle(path: Path) -> Iterator[Document]:
    try:
        with tarfile.open(path, "r:*") as archive:
            yield from _members(archive, str(path))
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(str(path), f"the bundle is damaged: {error}", "copy it again") from None


def _members(archive: tarfile.TarFile, name: str) -> Iterator[Document]:
    members = [member for member in archive.getmembers() if member.isfile()]
    if len(members) > _MOST_FILES:
        raise InputError(name, f"the bundle has {len(members)} files", f"at most {_MOST_FILES}")
    hosts = _hosts([member.name for member in members])
    for member, host in zip(members, hosts, strict=True):
        stream = archive.extractfile(member)
        if stream is None:
            continue
        data, cut = read_bounded(stream)  # type: ignore[arg-type]
        inner = member.name.removeprefix("./")
        if data[257:262] == b"ustar" or (data[:2] == b"\x1f\x8b" and inner.endswith((".tar.gz", ".tgz"))):
            yield from _unpacked(data, inner, cut)  # bundles of single nodes, gathered into one
        elif data[:2] == b"\x1f\x8b":
            yield _gzip(data, inner, cut)
        else:
            yield document(data, inner, host, cut)


def _hosts(names: list[str]) -> list[str]:
    """The node of each file, or empty."""
    paths = [PurePosixPath(name) for name in names]
    collected = [
        next((part.removeprefix(_COLLECTED) for part in path.parts[:-1] if part.startswith(_COLLECTED)), "") for path in paths
    ]
    if any(collected):
        return collected
    folders: dict[str, set[str]] = {}
    for path in paths:
        if len(path.parts) > 1:
            folders.setdefault(path.parent.as_posix(), set()).add(path.name)
    times = Counter(name for files in folders.values() for name in files)
    shared = {name for name, count in times.items() if count > 1 and count * 2 >= len(folders)}
    return [path.parent.name if shared & folders.get(path.parent.as_posix(), set()) else "" for path in paths]
