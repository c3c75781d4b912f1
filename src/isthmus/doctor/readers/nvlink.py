"""NVLink state, errors and firmware: `nvidia-smi nvlink -s | -e | --info` and `dcgmi nvlink -s | -e [-j]`."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.gpu import NvlinkErrors, NvlinkFirmware, NvlinkStatus
from isthmus.doctor.readers.json_text import entries, json_values, text_of
from isthmus.doctor.text import Document, Place, count, decimal

__all__ = ["read_nvlink", "read_nvlink_dcgm"]

_GPU = re.compile(r"\s*GPU (?P<gpu>\d+): (?P<name>[^(]+?)\s*(?:\(UUID:.*)?$")
_STATE = re.compile(
    r"\s*Link (?P<link>\d+):\s*(?:(?P<speed>[\d.,]+) GB/s|(?P<off><?inactive>?|<?disabled>?|down))\s*$", re.IGNORECASE
)
_NUMBERED = re.compile(r"\s*Link \d")
_ERROR = re.compile(r"\s*Link (?P<link>\d+):\s*(?P<name>[A-Z][\w ()/-]+?)\s*:\s*(?P<value>\S+)\s*$")
_VERSION = re.compile(r"\s+(?P<part>[A-Z][A-Z ]+?): (?P<version>\d+(?:[:.]\d+)+)\s*$")
_NOT_ERRORS = re.compile(r"packets|bytes|data|tx |rx ", re.IGNORECASE)


class _Gpu:
    def __init__(self, document: Document, index: int, gpu: str, name: str) -> None:
        self.at, self.gpu, self.name = document.place(index), gpu, name
        self.links: dict[int, float | None] = {}
        self.link_places: dict[int, Place] = {}
        self.counts: dict[tuple[int, str], int] = {}
        self.rates: dict[tuple[int, str], float] = {}
        self.places: dict[tuple[int, str], Place] = {}
        self.versions: dict[str, str] = {}
        self.all_inactive = False

    def facts(self) -> Iterator[NvlinkStatus | NvlinkErrors | NvlinkFirmware]:
        if self.links or self.all_inactive:
            yield NvlinkStatus(
                at=self.at,
                gpu=self.gpu,
                name=self.name,
                links=self.links,
                places=self.link_places,
                all_inactive=self.all_inactive or all(speed is None for speed in self.links.values()),
            )
        if self.counts or self.rates:
            yield NvlinkErrors(at=self.at, gpu=self.gpu, counts=self.counts, rates=self.rates, places=self.places, time_s=None)
        if self.versions:
            yield NvlinkFirmware(at=self.at, gpu=self.gpu, versions=self.versions)


def read_nvlink(document: Document) -> Iterator[NvlinkStatus | NvlinkErrors | NvlinkFirmware]:
    """nvidia-smi's forms; a paste without its `GPU n:` line counts as one unnamed GPU."""
    gpu: _Gpu | None = None
    for index, line in enumerate(document.lines):
        if "GPU " in line and (head := _GPU.match(line)):
            if gpu:
                yield from gpu.facts()
            gpu = _Gpu(document, index, head["gpu"], head["name"])
        elif "Link " in line and _NUMBERED.match(line):
            gpu = gpu or _Gpu(document, index, "", "")
            _link(gpu, document, index, line)
        elif gpu and "all links are in" in line.lower():
            gpu.all_inactive, gpu.at = True, document.place(index)
        elif gpu and (version := _VERSION.match(line)):
            gpu.versions[version["part"]] = version["version"]
    if gpu:
        yield from gpu.facts()


def _link(gpu: _Gpu, document: Document, index: int, line: str) -> None:
    if state := _STATE.match(line):
        link = int(state["link"])
        gpu.links[link] = decimal(state["speed"]) if state["speed"] else None
        gpu.link_places[link] = document.place(index)
    elif error := _ERROR.match(line):
        key = (int(error["link"]), error["name"])
        if "BER" in error["name"]:
            rate = bit_error_rate(error["value"])
            if rate is not None:
                gpu.rates[key] = rate
                gpu.places[key] = document.place(index)
        elif not _NOT_ERRORS.search(error["name"]) or "CRC" in error["name"]:
            number = count(error["value"])
            if number is not None:
                gpu.counts[key] = number
                gpu.places[key] = document.place(index)


def bit_error_rate(text: str) -> float | None:
    """A printed bit error rate; mantissa 15 with exponent 255 is the tools' way to write zero."""
    match = re.fullmatch(r"(\d+(?:[.,]\d+)?)[eE]-0*(\d{1,3})", text.strip())
    if match is None:
        value = decimal(text)
        return value if value is not None and 0 <= value < 1 else None
    mantissa, exponent = decimal(match[1]), int(match[2])
    return None if mantissa is None else 0.0 if exponent >= 250 else mantissa * 10.0**-exponent


_ENTITY = re.compile(r"\s*(?P<kind>gpuId|physicalId) (?P<id>\d+):\s*(?P<links>(?:[UDX_]\s*)*)$")
_STATES = re.compile(r"\s*[UDX_](?:\s+[UDX_])+\s*$")
_TABLE_GPU = re.compile(r"\|.*\|\s*GPU (?P<gpu>\d+)\s*\|")
_TABLE_ROW = re.compile(r"\|\s*Link (?P<link>\d+)\s*\|\s*(?P<name>[\w ]+?)\s*\|\s*(?P<value>[\d,.]+)\s*\|")


def read_nvlink_dcgm(document: Document) -> Iterator[NvlinkStatus | NvlinkErrors]:
    """dcgmi's link letters (U up, D down, X disabled, _ not there), error table and error JSON."""
    entity = ""
    table: _Gpu | None = None
    for index, line in enumerate(document.lines):
        if (found := _ENTITY.match(line)) and found["kind"] == "gpuId":
            entity = found["id"]
            if found["links"].strip():
                yield _letters(document, index, entity, found["links"])
        elif found:
            entity = ""
        elif entity and _STATES.match(line):
            yield _letters(document, index, entity, line)
            entity = ""
        elif head := _TABLE_GPU.match(line):
            table = _Gpu(document, index, head["gpu"], "")
        elif row := _TABLE_ROW.match(line):
            table = table or _Gpu(document, index, "", "")
            key, number = (int(row["link"]), row["name"]), count(row["value"])
            if number is not None:
                table.counts[key], table.places[key] = number, document.place(index)
    if table and table.counts:
        yield NvlinkErrors(at=table.at, gpu=table.gpu, counts=table.counts, rates={}, places=table.places, time_s=None)
    yield from _dcgm_json(document)


def _letters(document: Document, index: int, gpu: str, letters: str) -> NvlinkStatus:
    links: dict[int, float | None] = {}
    for number, letter in enumerate(letters.split()):
        if letter in "UD":
            links[number] = 0.0 if letter == "U" else None
    at = document.place(index)
    return NvlinkStatus(
        at=at,
        gpu=gpu,
        name="",
        links=links,
        places=dict.fromkeys(links, at),
        all_inactive=bool(links) and set(links.values()) == {None},
    )


def _dcgm_json(document: Document) -> Iterator[NvlinkErrors]:
    for index, value in json_values(document, "NVLINK Error Counts"):
        header = [text_of(item) for item in value.get("header", [])]
        gpu = next((word.split()[1] for word in header if re.fullmatch(r"GPU \d+", word)), "")
        counts: dict[tuple[int, str], int] = {}
        for link, node in entries(value.get("body")):
            number = re.fullmatch(r"Link (\d+)", link)
            for name, leaf in entries(dict(entries(node)).get("children")):
                found = count(text_of(dict(entries(leaf)).get("value", "")))
                if number and found is not None:
                    counts[(int(number[1]), name)] = found
        at = document.place(index)
        yield NvlinkErrors(at=at, gpu=gpu, counts=counts, rates={}, places=_json_places(document, index, counts), time_s=None)


def _json_places(document: Document, start: int, counts: dict[tuple[int, str], int]) -> dict[tuple[int, str], Place]:
    places: dict[tuple[int, str], Place] = {}
    link, name = -1, ""
    for index in range(start, len(document.lines)):
        if found := re.search(r'"Link (\d+)"', document.lines[index]):
            link = int(found[1])
        elif found := re.search(r'"([\w ]+ Error)"', document.lines[index]):
            name = found[1]
        elif '"value"' in document.lines[index] and (link, name) in counts:
            places.setdefault((link, name), document.place(index))
    return places
