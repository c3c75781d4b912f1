"""NCCL's topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) and graph files: read, check, draw, write.

The format is a small subset of XML: elements with quoted attributes and comments, no text and no entities. Limits and
required attributes are those of NCCL 2.30.7 (src/graph/xml.h, xml.cc): at most 16 attributes an element, 256 characters
a name or value, `<system version="1">`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from isthmus.errors import InputError, nearest

__all__ = ["Element", "draw", "find_all", "parse_elements", "read_topology", "write_elements"]

_TOKEN = re.compile(
    r"<(?P<close>/)?(?P<tag>[A-Za-z][\w.-]*)(?P<rest>(?:[^<>\"]|\"[^\"]*\")*?)(?P<empty>/)?>|<(?P<declaration>[?!])[^>]*>"
)
_ATTRIBUTE = re.compile(r"\s*(?P<name>[A-Za-z_][\w.-]*)\s*=\s*\"(?P<value>[^\"]*)\"")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_MOST_ATTRIBUTES, _MOST_CHARACTERS, _MOST_DEPTH = 16, 255, 64
_TAGS = frozenset(["system", "cpu", "pci", "gpu", "nvlink", "c2c", "nic", "net", "pcilink", "graphs", "graph", "channel"])


@dataclass(frozen=True, slots=True)
class Element:
    """One element. Attributes keep the order they are written in; `line` is 0 for elements made by us."""

    tag: str
    attributes: dict[str, str]
    children: tuple["Element", ...] = ()
    line: int = field(default=0, compare=False)


def parse_elements(text: str, where: str) -> tuple[Element, ...]:
    """Top-level elements of a file or of a fragment. Raises InputError with the line for what NCCL would not read."""
    text = _COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    stack: list[tuple[str, dict[str, str], int, list[Element]]] = [("", {}, 0, [])]
    line, position = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        if token["declaration"]:
            continue
        tag = token["tag"]
        if token["close"]:
            if stack[-1][0] != tag:
                raise InputError(
                    f"{where}:{line}",
                    f"</{tag}> closes <{stack[-1][0] or 'nothing'}>",
                    "close elements in the order they were opened",
                )
            name, attributes, opened, children = stack.pop()
            stack[-1][3].append(Element(name, attributes, tuple(children), opened))
            continue
        attributes = _attributes(token["rest"], f"{where}:{line}", tag)
        if token["empty"]:
            stack[-1][3].append(Element(tag, attributes, (), line))
        elif len(stack) > _MOST_DEPTH:
            raise InputError(
                f"{where}:{line}", f"elements are nested more than {_MOST_DEPTH} deep", "PCI trees are not that deep"
            )
        else:
            stack.append((tag, attributes, line, []))
    if len(stack) > 1:
        raise InputError(f"{where}:{stack[-1][2]}", f"<{stack[-1][0]}> is never closed", "the file was cut off")
    return tuple(stack[0][3])


def _attributes(text: str, where: str, tag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while match := _ATTRIBUTE.match(text, position):
        found[match["name"]] = match["value"]
        position = match.end()
        if len(match["name"]) > _MOST_CHARACTERS or len(match["value"]) > _MOST_CHARACTERS:
            raise InputError(
                where, f"an attribute of <{tag}> is longer than {_MOST_CHARACTERS} characters", "NCCL reads no longer ones"
            )
    if text[position:].strip():
        raise InputError(where, f"<{tag}> has {text[position:].strip()[:40]!r}", 'attributes are written name="value"')
    if len(found) > _MOST_ATTRIBUTES:
        raise InputError(where, f"<{tag}> has {len(found)} attributes", f"NCCL reads at most {_MOST_ATTRIBUTES}")
    return found


def find_all(elements: Iterable[Element], tag: str) -> list[Element]:
    """All elements with this tag, in document order, however deep."""
    found: list[Element] = []
    for element in elements:
        if element.tag == tag:
            found.append(element)
        found += find_all(element.children, tag)
    return found


def read_topology(text: str, where: str) -> Element:
    """The `<system>` of a whole topology file, checked as NCCL checks it. Raises InputError."""
    elements = parse_elements(text, where)
    if len(elements) != 1 or elements[0].tag != "system":
        raise InputError(
            where,
            f"found {', '.join(f'<{e.tag}>' for e in elements[:3]) or 'no element'}",
            'the file is one <system version="1">',
        )
    system = elements[0]
    if system.attributes.get("version") != "1":
        raise InputError(
            f"{where}:{system.line}",
            f"version is {system.attributes.get('version', 'not given')!r}",
            'NCCL reads version="1" only',
        )
    for element in find_all(elements, "pci"):
        if not re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", element.attributes.get("busid", "")):
            raise InputError(
                f"{where}:{element.line}", f"busid is {element.attributes.get('busid', 'not given')!r}", "e.g. 0000:19:00.0"
            )
    for element in _unknown(elements):
        raise InputError(f"{where}:{element.line}", f"unknown element <{element.tag}>", nearest(element.tag, _TAGS))
    return system


def _unknown(elements: Iterable[Element]) -> list[Element]:
    found: list[Element] = []
    for element in elements:
        found += [element] if element.tag not in _TAGS else []
        found += _unknown(element.children)
    return found


def write_elements(elements: Iterable[Element]) -> str:
    """The text of a file, two blanks a level, as NCCL dumps it."""
    lines: list[str] = []
    for element in elements:
        _write(element, 0, lines)
    return "\n".join(lines) + "\n"


def _write(element: Element, depth: int, lines: list[str]) -> None:
    inside = "".join(f' {name}="{value}"' for name, value in element.attributes.items())
    indent = "  " * depth
    if not element.children:
        lines.append(f"{indent}<{element.tag}{inside}/>")
        return
    lines.append(f"{indent}<{element.tag}{inside}>")
    for child in element.children:
        _write(child, depth + 1, lines)
    lines.append(f"{indent}</{element.tag}>")


_CLASSES = {"0x0604": "bridge", "0x0680": "NVSwitch", "0x0302": "GPU", "0x0300": "GPU", "0x0200": "NIC", "0x0207": "NIC"}


def draw(elements: Iterable[Element]) -> str:
    """The tree as text: one line an element, with what people look for."""
    lines: list[str] = []
    for element in elements:
        _draw(element, "", "", lines)
    return "\n".join(lines)


def _draw(element: Element, lead: str, below: str, lines: list[str]) -> None:
    lines.append(f"{lead}{_words(element)}")
    for number, child in enumerate(element.children):
        last = number == len(element.children) - 1
        _draw(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "), lines)


def _words(element: Element) -> str:
    get = element.attributes.get
    match element.tag:
        case "cpu":
            return f"NUMA node {get('numaid', '?')} ({get('arch', '?')} {get('vendor', '')})".replace(" )", ")")
        case "pci":
            what = _CLASSES.get(get("class", "")[:6], "device")
            speed = get("link_speed", "").removesuffix(" PCIe")
            return f"{what} {get('busid', '?')}" + (f" at {speed} x{get('link_width')}" if speed else "")
        case "gpu":
            return f"GPU {get('dev', '?')}, sm_{get('sm', '?')}" + (f", rank {get('rank')}" if get("rank") else "")
        case "nvlink":
            return f"{get('count', '?')} NVLinks to {get('target', '?')}"
        case "net":
            speed = get("speed", "")
            return f"{get('name', '?')}, {int(speed) / 1000:g} Gb/s" if speed.isdecimal() else get("name", "?")
        case _:
            return " ".join([element.tag, *(f"{name}={value}" for name, value in element.attributes.items())])
