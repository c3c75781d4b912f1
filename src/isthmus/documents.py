"""Documents on disk: YAML whose every value knows its line, checked against a pydantic model.

One door for fabric, workload and plan files. It bounds size, nesting and alias expansion before anything is built,
refuses duplicate and unknown keys, and turns every fault into `file:line`, what was found, what was expected and
the nearest valid name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from isthmus.errors import InputError, nearest
from isthmus.units import BYTES, BYTES_PER_SECOND, FRACTION, METRES, SECONDS, WATTS, Unit, quantity

__all__ = [
    "Document", "Fraction", "LengthM", "Lines", "PowerW", "RateBytesPerS", "SizeBytes", "TimeS",
    "load_document", "parse_document", "read_text",
]

SIZE_LIMIT_BYTES = 1_000_000
NODE_LIMIT = 50_000
DEPTH_LIMIT = 32
Path_ = tuple[str | int, ...]


class Document(BaseModel):
    """Base of every document model: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _reader(unit: Unit) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"expected {unit.name} such as {unit.example!r}")
        if isinstance(value, str):
            return quantity(value, unit)
        if unit is not FRACTION and value != 0:
            raise ValueError(f"{value!r} has no unit; write {unit.name} such as {unit.example!r}")
        return float(value)

    return BeforeValidator(read, json_schema_input_type=str | float if unit is FRACTION else str)


TimeS = Annotated[float, _reader(SECONDS)]
SizeBytes = Annotated[float, _reader(BYTES)]
RateBytesPerS = Annotated[float, _reader(BYTES_PER_SECOND)]
LengthM = Annotated[float, _reader(METRES)]
PowerW = Annotated[float, _reader(WATTS)]
Fraction = Annotated[float, _reader(FRACTION)]


@dataclass(frozen=True, slots=True)
class Lines:
    """Where each value of one document stands.

    Attributes:
        source: The file as the user named it.
        at: Path of keys and indices -> line, counted from 1.
    """

    source: str
    at: dict[Path_, int]

    def where(self, path: Path_ = ()) -> str:
        """`file:line` of the value at `path`, or of its nearest enclosing value."""
        while path and path not in self.at:
            path = path[:-1]
        return f"{self.source}:{self.at.get(path, 1)}"

    def error(self, path: Path_, found: str, hint: str = "") -> InputError:
        """An `InputError` that points at the value at `path`."""
        return InputError(self.where(path), found, hint)


ModelT = TypeVar("ModelT", bound=Document)


def read_text(path: Path | str) -> str:
    """The text of a UTF-8 file of at most `SIZE_LIMIT_BYTES`; every failure is an `InputError`."""
    source = str(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise InputError(source, "no such file") from None
    except IsADirectoryError:
        raise InputError(source, "is a folder, expected a file") from None
    except OSError as error:
        raise InputError(source, f"cannot be read: {error.strerror}") from error
    if len(raw) > SIZE_LIMIT_BYTES:
        raise InputError(source, f"is larger than {SIZE_LIMIT_BYTES // 1_000_000} MB, the most a document may have",
                         "isthmus documents are a few kB; is this another file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{source}:{line}", f"byte 0x{raw[error.start]:02x} is not UTF-8", "save the file as UTF-8") from None


def load_document(path: Path | str, model: type[ModelT]) -> tuple[ModelT, Lines]:
    """Read and check the document at `path`.

    Raises:
        InputError: The file cannot be read, is not YAML, or does not fit `model`.
    """
    return parse_document(read_text(path), str(path), model)


def parse_document(text: str, source: str, model: type[ModelT]) -> tuple[ModelT, Lines]:
    """As `load_document`, for text already in hand; `source` is its name in messages."""
    data, lines = _tree(text, source)
    if data is None:
        raise InputError(source, "is empty", f"expected the keys {', '.join(model.model_fields)}")
    if not isinstance(data, dict):
        raise InputError(lines.where(), f"expected keys and values, found {_describe(data)}",
                         f"expected the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(data), lines
    except ValidationError as error:
        raise _explain(error, model, lines) from None


def _tree(text: str, source: str) -> tuple[Any, Lines]:
    lines = Lines(source, {})
    try:
        _bound_nesting(text, source)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{source}:{line}", f"is not YAML: {error.problem or error.context}",
                         "check the indentation, colons and quotes near this line") from None
    except yaml.YAMLError as error:
        raise InputError(source, f"is not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        return None, lines
    return _Builder(lines).build(root, (), ()), lines


def _bound_nesting(text: str, source: str) -> None:
    """Refuse deep nesting while it is still a stream of events, before the recursive composer meets it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise InputError(f"{source}:{event.start_mark.line + 1}", f"is nested more than {DEPTH_LIMIT} deep")


class _Builder:
    """Turns YAML nodes into plain values, noting lines and counting what aliases expand to."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.count = lines, 0
        self.safe = yaml.SafeLoader("")

    def build(self, node: Node, path: Path_, above: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.lines.at.setdefault(path, line)
        self.count += 1
        if id(node) in above:
            raise InputError(f"{self.lines.source}:{line}", "an alias refers to something that contains it",
                             "write the value out instead of *alias")
        if self.count > NODE_LIMIT:
            raise InputError(f"{self.lines.source}:{line}", f"expands to more than {NODE_LIMIT} values",
                             "aliases that repeat aliases grow exponentially; write the values out")
        match node:
            case MappingNode():
                return self.mapping(node, path, (*above, id(node)))
            case SequenceNode():
                return [self.build(item, (*path, index), (*above, id(node))) for index, item in enumerate(node.value)]
            case ScalarNode():
                return self.scalar(node, line)
            case _:
                raise AssertionError(f"unexpected YAML node {node!r}")

    def mapping(self, node: MappingNode, path: Path_, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise InputError(f"{self.lines.source}:{line}", "a key must be a plain word")
            key = key_node.value
            if key in result:
                raise InputError(f"{self.lines.source}:{line}", f"the key {key!r} is given twice",
                                 f"first at line {self.lines.at[(*path, key)]}; keep one")
            self.lines.at[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), above)
        return result

    def scalar(self, node: ScalarNode, line: int) -> Any:
        try:
            value = self.safe.construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise InputError(f"{self.lines.source}:{line}", f"{node.value!r} cannot be read as {node.tag}") from None
        # Dates and binaries are YAML's idea of what the user meant, never ours: keep the text.
        return value if isinstance(value, str | int | float | bool | None) else node.value


def _explain(error: ValidationError, model: type[Document], lines: Lines) -> InputError:
    """The first fault of a pydantic report in our words; unknown keys first, since they explain missing ones."""
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = tuple(part for part in fault["loc"] if isinstance(part, int) or (part,) and _is_key(part, fault["loc"], lines))
    name = str(path[-1]) if path else str(fault["loc"][-1])
    more = f" ({len(faults) - 1} more fault{'s' * (len(faults) > 2)} in this file)" if len(faults) > 1 else ""
    match fault["type"]:
        case "extra_forbidden":
            siblings = _fields_at(model, path[:-1])
            return lines.error(path, f"unknown key {name!r}{more}", nearest(name, siblings) if siblings else "")
        case "missing":
            missing = str(fault["loc"][-1])
            return lines.error(path, f"the key {missing!r} is missing{more}", f"every {_holder(path)} needs it")
        case "literal_error" | "enum":
            expected = str(fault.get("ctx", {}).get("expected", ""))
            choices = [word.strip("'\" ") for word in expected.replace(" or ", ", ").split(",")]
            return lines.error(path, f"{name}: found {fault['input']!r}, expected one of {', '.join(choices)}{more}",
                               nearest(str(fault["input"]), choices))
        case "value_error":
            return lines.error(path, f"{name}: {fault['ctx']['error']}{more}")
        case _:
            return lines.error(path, f"{name}: found {_describe(fault['input'])}, {_sentence(fault['msg'])}{more}")


def _is_key(part: str | int, loc: tuple[str | int, ...], lines: Lines) -> bool:
    """Whether a part of a pydantic location is a key of the file (and not the name of a union member)."""
    return any(part in known for known in lines.at) or part == loc[-1]


def _sentence(message: str) -> str:
    lowered = message[0].lower() + message[1:]
    return lowered.replace("input should be", "expected").replace("should be", "expected", 1) if "nput should" in message else lowered


def _holder(path: Path_) -> str:
    named = [part for part in path if isinstance(part, str)]
    return f"entry of {named[-1]!r}" if named else "document of this kind"


def _describe(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "keys and values"
        case list():
            return "a list"
        case _:
            return repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "..."


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    """Names of the keys allowed in the mapping at `path` of a document of type `model`."""
    candidates: list[type[BaseModel]] = [model]
    for part in path:
        deeper: list[type[BaseModel]] = []
        for candidate in candidates:
            if isinstance(part, str) and part in candidate.model_fields:
                deeper += _models_in(candidate.model_fields[part].annotation)
        candidates = deeper or candidates  # an index or a free key (a region's name) stays on the same models
    return sorted({name for candidate in candidates for name in candidate.model_fields})


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, list, dict, tuple, Annotated):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []


Validator = Callable[[object], object]
