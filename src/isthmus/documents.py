"""Documents on disk: YAML whose every value knows its line, checked against a pydantic model.

One door for fabric, workload and plan files. It bounds size, nesting and alias expansion before anything is
built, refuses duplicate and unknown keys, and turns every fault into `file:line`, what was found, what was
expected and the nearest valid name.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from re import escape, fullmatch, search
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from isthmus.errors import InputError, nearest
from isthmus.units import (
    BYTES,
    BYTES_PER_SECOND,
    FRACTION,
    METRES,
    SECONDS,
    WATTS,
    QuantityError,
    Unit,
    quantity,
)

__all__ = [
    "Count",
    "Document",
    "Fraction",
    "LengthM",
    "Lines",
    "PowerW",
    "RateBytesPerS",
    "SizeBytes",
    "TimeS",
    "json_schema",
    "load_document",
    "parse_document",
    "read_text",
]

SIZE_LIMIT_BYTES = 1_000_000
NODE_LIMIT = 50_000
DEPTH_LIMIT = 32
Path_ = tuple[str | int, ...]


class Document(BaseModel):
    """Base of every document model: unknown keys are errors, values are frozen, truth values are never
    numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_elsewhere(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and annotation is not bool and bool not in get_args(annotation):
            raise QuantityError(f"found {_describe(value)}, a truth value", "write numbers in digits, put text in quotes")
        return value


def _reader(unit: Unit) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise QuantityError(f"found {_describe(value)}, expected {unit.name}", f"such as {unit.example!r}")
        if isinstance(value, str):
            return quantity(value, unit)
        if not isfinite(value):
            raise QuantityError(f"{value!r} is not a finite number", f"write {unit.name} such as {unit.example!r}")
        if unit is not FRACTION and value != 0:
            raise QuantityError(f"{value!r} has no unit", f"write {unit.name} such as {unit.example!r}")
        return float(value)

    suffixes = "|".join(escape(name) for name in unit.factors if name)
    text = Annotated[str, Field(pattern=rf"^\s*[+-]?\.?[0-9][0-9_.eE+-]*\s*({suffixes}){'?' if '' in unit.factors else ''}\s*$")]
    # A bare number has no unit, and only zero needs none.
    return BeforeValidator(read, json_schema_input_type=text | float if unit is FRACTION else text | Literal[0])


def _whole(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"found {_describe(value)}, expected a whole number")
    return value


Count = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
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


def json_schema(model: type[Document]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of files of type `model`, with the keys as the file writes them."""
    schema = model.model_json_schema(by_alias=True)
    _drop_bounds_on_text(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _drop_bounds_on_text(schema: object) -> None:
    """Bounds hold for the SI number a text stands for, and mean nothing in a schema: pydantic leaves them behind."""
    if isinstance(schema, dict):
        found = cast(dict[str, object], schema)
        for word in ("gt", "ge", "lt", "le"):
            if word in found and not isinstance(found[word], dict):
                del found[word]
        for value in found.values():
            _drop_bounds_on_text(value)
    elif isinstance(schema, list):
        for value in cast(list[object], schema):
            _drop_bounds_on_text(value)


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
        raise InputError(
            source,
            f"is larger than {SIZE_LIMIT_BYTES // 1_000_000} MB, the most a document may have",
            "isthmus documents are a few kB; is this another file?",
        )
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
    expected = f"expected the keys {', '.join(_names(model))}"
    if data is None:
        raise InputError(source, "is empty", expected)
    if not isinstance(data, dict):
        raise InputError(lines.where(), f"expected keys and values, found {_describe(data)}", expected)
    try:
        return model.model_validate(data), lines
    except ValidationError as error:
        raise _explain(error, model, cast(dict[str, Any], data), lines) from None


def _tree(text: str, source: str) -> tuple[Any, Lines]:
    lines = Lines(source, {})
    try:
        _bound_nesting(text, source)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text, source) from None
    except ReaderError as error:
        raise InputError(f"{source}:{_line_of_control(text)}", f"is not YAML: {error.reason}", "is this a text file?") from None
    if root is None:
        return None, lines
    return _Builder(lines).build(root, (), ()), lines


def _not_yaml(error: yaml.MarkedYAMLError, text: str, source: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "unreadable"
    hint = "check the indentation, colons and quotes near this line"
    if mark is None:
        return InputError(source, f"is not YAML: {problem}", hint)
    if mark.column < len(line := (text.splitlines() or [""])[min(mark.line, text.count("\n"))]) and line[mark.column] == "\t":
        problem, hint = "a tab is used to indent", "indent with spaces"
    elif "another document" in problem:
        problem, hint = "a second document begins", "keep one document in a file: remove the line '---'"
    elif "nesting depth" in problem:
        hint = "isthmus documents are at most a few levels deep; is this another file?"
    elif "undefined alias" in problem:
        hint = "an alias *name needs an anchor &name before it; put text that begins with * in quotes"
    return InputError(f"{source}:{mark.line + 1}", f"is not YAML: {problem}", hint)


def _line_of_control(text: str) -> int:
    """The line of the first character that YAML does not allow."""
    bad = search("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    return text[: bad.start()].count("\n") + 1 if bad else 1


def _bound_nesting(text: str, source: str) -> None:
    """Refuse deep nesting while it is still a stream of events, before the recursive composer meets it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise InputError(
                f"{source}:{line}",
                f"is nested more than {DEPTH_LIMIT} deep",
                "isthmus documents are at most a few levels deep; is this another file?",
            )


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
            raise self.error(line, "an alias refers to something that contains it", "write the value out instead of *alias")
        if self.count > NODE_LIMIT:
            raise self.error(
                line,
                f"holds more than {NODE_LIMIT} values, aliases written out",
                "isthmus documents hold a few hundred; aliases of aliases grow exponentially",
            )
        if len(path) > DEPTH_LIMIT:
            raise self.error(line, f"is nested more than {DEPTH_LIMIT} deep through aliases", "write the values out")
        if node.tag not in _PLAIN_TAGS:
            raise self.error(
                line,
                f"the YAML tag {_describe(node.tag)} is not read here",
                "write the plain value without a tag",
            )
        match node:
            case MappingNode():
                return self.mapping(node, path, (*above, id(node)))
            case SequenceNode():
                return [self.build(item, (*path, index), (*above, id(node))) for index, item in enumerate(node.value)]
            case ScalarNode():
                return self.scalar(node, line)
            case _:
                raise AssertionError(f"unexpected YAML node {node!r}")

    def error(self, line: int, found: str, hint: str = "") -> InputError:
        return InputError(f"{self.lines.source}:{line}", found, hint)

    def mapping(self, node: MappingNode, path: Path_, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise self.error(line, "a key must be a plain word", "write key: value, the key without brackets or braces")
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise self.error(line, "merge keys ('<<') are not read", "write the values out")
            if key in result:
                raise self.error(
                    line,
                    f"the key {_describe(key)} is given twice",
                    f"first at line {self.lines.at[(*path, key)]}; keep one",
                )
            self.lines.at[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), above)
        return result

    def scalar(self, node: ScalarNode, line: int) -> Any:
        """A plain value; numbers only as people write them, not octal 010 or base-60 1:30."""
        if node.tag.endswith((":int", ":float")) and not fullmatch(_PLAIN_NUMBER, node.value):
            raise self.error(
                line,
                f"{_describe(node.value)} is a number in a notation that is not read here",
                "write it in base 10, without leading zeros; put text in quotes",
            )
        try:
            value = cast(object, self.safe.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
        except (yaml.YAMLError, ValueError):
            raise self.error(line, f"{_describe(node.value)} cannot be read as {node.tag.rpartition(':')[2]}") from None
        # Dates are YAML's idea of what the user meant, never ours: keep the text.
        return value if isinstance(value, str | int | float | bool | None) else node.value


_PLAIN_NUMBER = r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_PLAIN_KINDS = ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in _PLAIN_KINDS}
_SIGNS = {"regions": "fabric", "wan": "fabric", "strategy": "plan", "prediction": "plan", "model": "workload"}
_NAME_HINT = "use letters, digits, dots, hyphens and underscores"
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "finite_number": "a finite number",
    "model_attributes_type": "keys and values",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _explain(error: ValidationError, model: type[Document], data: dict[str, Any], lines: Lines) -> InputError:
    """The first fault of a pydantic report in our words; unknown keys first, they explain missing ones."""
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = _path_in_file(fault["loc"], lines)
    name = str(path[-1]) if path else str(fault["loc"][-1])
    if path and isinstance(path[-1], int):
        name = f"entry {path[-1] + 1} of {path[-2] if len(path) > 1 else 'the list'}"
    more = f" ({len(faults) - 1} more fault{'s' * (len(faults) > 2)} in this file)" if len(faults) > 1 else ""
    said, hint = _fault_in_words(fault, name, _describe(_value_at(data, path)))
    if fault["type"] == "extra_forbidden":
        hint = _key_hint(model, path, data)
    elif fault["type"] == "missing":
        hint = f"every {_holder(path)} needs it"
    return lines.error(path, said + more, hint or _field_hint(model, path))


def _fault_in_words(fault: ErrorDetails, name: str, found: str) -> tuple[str, str]:
    """What is wrong with the value called `name`, and a hint where the fault itself gives one."""
    context, hint = fault.get("ctx", {}), ""
    match fault["type"]:
        case "extra_forbidden":
            said = f"unknown key {_describe(name)}"
        case "missing":
            said = f"the key {str(fault['loc'][-1])!r} is missing"
        case "literal_error" | "enum":
            choices = [word.strip("'\" ") for word in str(context.get("expected", "")).replace(" or ", ", ").split(",")]
            said, hint = (
                f"{name}: found {found}, expected one of {', '.join(choices)}",
                _near_choice(fault["input"], choices),
            )
        case "value_error":
            cause = context.get("error")
            said = f"{name}: {cause.found if isinstance(cause, QuantityError) else cause}"
            hint = cause.hint if isinstance(cause, QuantityError) else ""
        case kind:
            said = f"{name}: found {found}, {_expectation(kind, context, fault['msg'])}"
            if fault["loc"][-1] == "[key]":
                said, hint = f"the name {_describe(name)} is not allowed", _NAME_HINT
    return said, hint


def _expectation(kind: str, context: dict[str, Any], message: str) -> str:
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"expected {words} {context[key]:g}"
    match kind:
        case "string_pattern_mismatch":
            return f"expected text that matches {context['pattern']}"
        case "string_too_short" | "too_short":
            return f"expected at least {_amount(context['min_length'], kind == 'too_short')}"
        case "string_too_long" | "too_long":
            return f"expected at most {_amount(context['max_length'], kind == 'too_long')}"
        case _:
            return message[0].lower() + message[1:]


def _near_choice(wrong: object, choices: list[str]) -> str:
    hint = nearest(wrong, choices) if isinstance(wrong, str) else ""
    return hint if hint.startswith("did you mean") else ""


def _field_hint(model: type[Document], path: Path_) -> str:
    """What the key at `path` is for; where it holds keys of its own, which."""
    last = max((index for index, part in enumerate(path) if isinstance(part, str)), default=None)
    if last is None:
        return ""
    for candidate in _models_at(model, path[:last]):
        for name, field in candidate.model_fields.items():
            if path[last] == (field.alias or name):
                return f"{path[last]}: {field.description}" if field.description else ""
    return ""


def _amount(number: int, listed: bool) -> str:
    one, many = ("entry", "entries") if listed else ("character", "characters")
    return f"{number} {one if number == 1 else many}"


def _key_hint(model: type[Document], path: Path_, data: dict[str, Any]) -> str:
    """The nearest key; or, where the file is another kind of document, which one."""
    siblings = _fields_at(model, path[:-1])
    own = model.__name__.removesuffix("Document").lower()
    others = {_SIGNS[key] for key in data if key in _SIGNS and key not in siblings and _SIGNS[key] != own}
    if len(path) == 1 and others:
        return f"this looks like a {min(others)}; expected the keys {', '.join(_names(model))}"
    return nearest(str(path[-1]), siblings) if siblings else ""


def _path_in_file(loc: tuple[str | int, ...], lines: Lines) -> Path_:
    """The parts of a pydantic location that are keys and indices of the file (others name union members)."""
    path: Path_ = ()
    for part in loc:
        if (*path, part) in lines.at:
            path = (*path, part)
    return path


def _value_at(data: Any, path: Path_) -> Any:
    for part in path:
        data = data[part]
    return data


def _holder(path: Path_) -> str:
    named = [part for part in path if isinstance(part, str)]
    return f"entry of {named[-1]!r}" if named else "document of this kind"


def _describe(value: object) -> str:
    """A value of the file in a few words, however long it is."""
    match value:
        case str():
            shown = repr(value) if len(value) < 80 else repr(value[:77]) + "..."
        case bool():
            shown = str(value).lower()
        case int() if abs(value) >= 10**40:
            shown = "a number of more than 40 digits"
        case _:
            names = {"NoneType": "nothing", "dict": "keys and values", "list": "a list"}
            empty = {"dict": "no keys", "list": "an empty list"}
            kind = type(value).__name__
            shown = (empty if not value else names).get(kind) or names.get(kind, repr(value))
    return shown


def _names(model: type[BaseModel]) -> list[str]:
    """Keys as the file writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    """Keys allowed in the mapping at `path` of a document of type `model`."""
    return sorted({name for candidate in _models_at(model, path) for name in _names(candidate)})


def _models_at(model: type[BaseModel], path: Path_) -> list[type[BaseModel]]:
    candidates: list[type[BaseModel]] = [model]
    for part in path:
        deeper: list[type[BaseModel]] = []
        for candidate in candidates:
            for name, field in candidate.model_fields.items():
                if part == (field.alias or name):
                    deeper += _models_in(field.annotation)
        candidates = deeper or candidates  # an index or a free key (a region's name) stays on the same models
    return candidates


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, list, dict, tuple, Annotated):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []
