"""Manifests against what we know of the engines' schemas (fields.yaml), and against `rules` beyond them; needs no cluster."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml

from isthmus.deploy.kubernetes.names import is_label, is_subdomain
from isthmus.deploy.kubernetes.rules import broken_rules
from isthmus.deploy.pieces import Finding
from isthmus.deploy.request import Request
from isthmus.deploy.scripts import check_scripts
from isthmus.errors import nearest

__all__ = ["check_manifests", "faults_of"]

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)?")
_AT_LEAST = re.compile(r"int>=(\d+)")


def check_manifests(folder: Path, request: Request) -> list[Finding]:
    """Everything in a bundle's manifests that a cluster would refuse, and what they say against each other."""
    found: list[Finding] = list(check_scripts(folder, ["coordinator/start.sh"]))
    for site in request.sites.sites:
        objects: list[tuple[str, dict[str, Any]]] = []
        for path in sorted((folder / site.name).glob("*.yaml")):
            try:
                documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))
            except yaml.YAMLError as error:
                found.append(Finding("error", str(path), f"is not YAML: {' '.join(str(error).split())}"))
                continue
            for document in documents:
                faults = list(faults_of(document))
                found += [Finding("error", str(path), fault) for fault in faults]
                if not faults:
                    objects.append((str(path), document))
        found += broken_rules(objects, len(site.nodes))
    return found


def faults_of(document: object) -> Iterator[str]:
    """What is wrong with one object, by its schema; each names the object and the field."""
    if not isinstance(document, dict):
        yield f"holds no object but {document!r}"
        return
    content = cast(dict[str, Any], document)
    kind = f"{content.get('apiVersion')} {content.get('kind')}"
    known = _known()["objects"]
    if kind not in known:
        yield f"{kind} is no object that isthmus writes; {nearest(kind, known)}"
        return
    name = cast(dict[str, Any], content.get("metadata") or {}).get("name", "?")
    rest = {key: value for key, value in content.items() if key not in ("apiVersion", "kind")}
    for fault in _faults(rest, known[kind], ""):
        yield f"{content['kind']} {name}: {fault}"


@cache
def _known() -> dict[str, Any]:
    text = files("isthmus.deploy.kubernetes").joinpath("fields.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.CSafeLoader)


def _faults(value: Any, form: Any, where: str) -> Iterator[str]:
    if isinstance(form, dict):
        yield from _of_fields(value, cast(dict[str, Any], form), where)
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{where} is {value!r}, expected a list"
            return
        for number, each in enumerate(cast(list[Any], value)):
            yield from _faults(each, form[0], f"{where}[{number}]")
    elif form.startswith("$"):
        yield from _faults(value, _known()["definitions"][form[1:]], where)
    elif not _fits(value, form):
        yield f"{where} is {value!r}, expected {form}"


def _of_fields(value: Any, form: dict[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is {value!r}, expected fields"
        return
    fields = cast(dict[str, Any], value)
    known = {name.removesuffix("!"): shape for name, shape in form.items()}
    for name, each in fields.items():
        place = f"{where}.{name}".removeprefix(".")
        if name not in known:
            yield f"{place} is unknown; {nearest(name, known)}"
        else:
            yield from _faults(each, known[name], place)
    for name in form:
        if name.endswith("!") and name[:-1] not in fields:
            yield f"{where}.{name[:-1]} is missing".removeprefix(".")


def _fits(value: Any, form: str) -> bool:
    match form:
        case "bool":
            return isinstance(value, bool)
        case "map":
            return isinstance(value, dict) and all(isinstance(each, str) for each in cast(dict[str, Any], value).values())
        case "int" | "int>=0" | "int>=1":
            least = _AT_LEAST.fullmatch(form)
            return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= int(least.group(1)))
        case _:
            return isinstance(value, str) and _fits_text(value, form)


_TEXTS: dict[str, Callable[[str], object]] = {
    "text": lambda text: True,
    "path": lambda text: text.startswith("/"),
    "label": is_label,
    "subdomain": is_subdomain,
    "env": _ENV.fullmatch,
    "identifier": _IDENTIFIER.fullmatch,
    "quantity": _QUANTITY.fullmatch,
}


def _fits_text(value: str, form: str) -> bool:
    return bool(_TEXTS[form](value)) if form in _TEXTS else value in form.split("|")
