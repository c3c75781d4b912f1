"""Environment variables wherever people set them: shells, sbatch, mpirun -x, Dockerfiles, YAML, nccl.conf, Python, `env`.

Only variables of communication libraries are taken. Lines that merely advise (`you can set NCCL_X=1`) set nothing, and what
stands behind a comment sign is off.
"""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.host import HostSetting, Version
from isthmus.doctor.facts.nccl import EnvSetting
from isthmus.doctor.text import Document

__all__ = ["PREFIXES", "read_environment"]

PREFIXES = (
    "NCCL_",
    "UCX_",
    "FI_",
    "OFI_",
    "GLOO_",
    "TORCH_NCCL_",
    "TORCH_DIST",
    "RCCL_",
    "BCCL_",
    "HCCL_",
    "ACCL_",
    "SHARP_",
    "TP_SOCKET",
    "CUDA_DEVICE_",
    "CUDA_VISIBLE",
    "NVSHMEM_",
    "RDMAV_",
    "MLX5_",
    "IBV_",
    "OMPI_MCA_",
    "ISTHMUS_",
)
_NAME = r"(?:" + "|".join(PREFIXES) + r")[A-Za-z0-9_]*"
_ASSIGN = re.compile(
    r"(?<![\w$@{/.-])[\"']?(?P<name>"
    + _NAME
    + r")[\"']?\]?\s*(?:(?P<equals>\+?=)|:(?!-)\s|\)?\s*,\s*(?=[\"'])|(?<==)|\s(?=(?:\S+)\s*$))\s*"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|`\"']*)"
)
_YAML_NAME = re.compile(r"\s*-?\s*\"?name\"?:\s*[\"']?(?P<name>" + _NAME + r")[\"']?,?\s*$")
_YAML_VALUE = re.compile(r"\s*-?\s*\"?value\"?:\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\s#,]*)")
_YAML_INLINE = re.compile(r"name:\s*[\"']?(?P<name>" + _NAME + r")[\"']?\s*,\s*value:\s*(?P<value>\"[^\"]*\"|'[^']*'|[^\s,}]*)")
_ENV_SPACE = re.compile(r"\s*(?:ENV|setenv|env)\s+(?P<name>" + _NAME + r")\s+(?P<value>\"[^\"]*\"|'[^']*'|\S+)\s*$")
_UNSET = re.compile(r"\b(?:unset|export -n)\s+(?P<names>[\w ]+)")
_ADVICE = re.compile(
    r"NCCL (?:WARN|INFO|TRACE)|for details|[Ii]f you (?:wish|still|want)|[Yy]ou can (?:use|set|repress"
    r"|disable)|Last error|set by environment|set (?:by|to) "
)
_COMMENT = re.compile(r"\s*(?:#|//|--\s|;)(?!SBATCH|!)")
_CONTAINER_MARKS = {"NCCL_VERSION": "image-nccl"}


def read_environment(document: Document) -> Iterator[EnvSetting | HostSetting | Version]:
    """Settings in the order of the text; the last one of a name and scope is the one in force."""
    waiting = ""
    conf = document.file.endswith("nccl.conf")
    for index, line in enumerate(document.lines):
        if waiting:
            name, waiting = waiting, ""
            if value := _YAML_VALUE.match(line):
                yield _setting(document, index, name, value["value"])
                continue
        if "_" not in line or not any(prefix in line for prefix in PREFIXES):
            continue
        if named := _YAML_NAME.match(line):
            waiting = named["name"]
        elif not _COMMENT.match(line) and not _ADVICE.search(line):
            yield from _line(document, index, line)
    if conf:
        yield HostSetting(at=document.place(0), name=f"file {document.file}", value=document.text.strip()[:2000])


def _line(document: Document, index: int, line: str) -> Iterator[EnvSetting | Version]:
    if unset := _UNSET.search(line):
        for name in unset["names"].split():
            if re.fullmatch(_NAME, name):
                yield EnvSetting(at=document.place(index), name=name, value="", scope=_scope(document, index), unset=True)
        return
    found = _ENV_SPACE.match(line) or _YAML_INLINE.search(line)
    if found:
        yield _setting(document, index, found["name"], found["value"])
        return
    for match in _ASSIGN.finditer(_without_comment(line)):
        if not match["equals"] and not match["value"].startswith(("'", '"')) and not _looks_set(line, match):
            continue
        if match["name"] in _CONTAINER_MARKS and (version := re.match(r"[\"']?(\d+\.\d+\.\d+)", match["value"])):
            yield Version(at=document.place(index), software="nccl", version=version[1], rank="image")
        yield _setting(document, index, match["name"], match["value"])


def _looks_set(line: str, match: re.Match[str]) -> bool:
    """Without `=`: only YAML's and JSON's `NAME: value`, with nothing before it but indentation."""
    return ":" in line[match.end("name") : match.start("value")] and not line[: match.start()].strip(" -{\"'\t")


def _without_comment(line: str) -> str:
    found = re.search(r"\s#\s", line)
    return line[: found.start()] if found else line


def _setting(document: Document, index: int, name: str, value: str) -> EnvSetting:
    value = value.strip()
    value = value[1:-1] if value[:1] in {"'", '"'} and value[-1:] == value[:1] else value.rstrip(",\\)]}")
    return EnvSetting(at=document.place(index), name=name, value=value.strip(), scope=_scope(document, index))


def _scope(document: Document, index: int) -> str:
    return document.labels.get(index, "")
