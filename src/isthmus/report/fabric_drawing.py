"""The fabric as a drawing: regions with their nodes and GPUs, joined by WAN links with rate and round trip.

Two layouts, both fit for any number of links. `row`: regions side by side; a single link runs between its two
boxes, more links hang below as brackets. `column` (phones, or more than four regions): regions one under the
other, brackets on the right, and each link's words in a list underneath.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.report.svg import BOLD, Drawing, Svg, drawing, fit, label, line, rectangle, tag, words
from isthmus.units import show_rate, show_seconds

__all__ = ["DrawnLink", "DrawnRegion", "fabric_svg"]

BOX_HEIGHT = 186.0
NODES_DRAWN = 8
LINK_ROW = 58.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRegion:
    """One region; `note` is one more line under it (what the tunnel made of it), and may be empty."""

    name: str
    city: str | None
    nodes: int
    gpus: int
    gpu_kind: str | None
    network_kind: str | None
    network_rate_bytes_per_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLink:
    """One WAN link; `note` is a second line under its rate and round trip, and may be empty."""

    between: tuple[str, str]
    rate_bytes_per_s: float
    rtt_s: float
    note: str = ""

    @property
    def figures(self) -> str:
        """Rate and round trip, as the drawing writes them."""
        return f"{show_rate(self.rate_bytes_per_s)} · {show_seconds(self.rtt_s)} RTT"


@dataclass(frozen=True, slots=True)
class Box:
    """Where a region stands."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """Its horizontal middle."""
        return self.x + self.width / 2


def fabric_svg(regions: Sequence[DrawnRegion], links: Sequence[DrawnLink], *, width_px: float, ident: str) -> Svg:
    """Draw `regions` and the WAN `links` between them, laid out for `width_px`.

    Args:
        regions: At least one; names are unique.
        links: Each joins two of the regions.
        width_px: Width the text is sized for; below 600 the regions stand in a column.
        ident: Unique in the page; names the title and description.
    """
    about = Drawing(ident, "The fabric", _description(regions, links))
    if width_px < 600 or len(regions) > 4:
        return _column(about, regions, links, width_px)
    return _row(about, regions, links, width_px)


def _description(regions: Sequence[DrawnRegion], links: Sequence[DrawnLink]) -> str:
    parts = [f"{region.name}: {_size(region)}, {_network(region)}" for region in regions]
    parts += [
        f"{link.between[0]} to {link.between[1]}: {link.figures}" + (f" ({link.note})" if link.note else "") for link in links
    ]
    return "; ".join(parts) + "."


def _size(region: DrawnRegion) -> str:
    kind = f" · {region.gpu_kind}" if region.gpu_kind else ""
    return f"{region.nodes} node{'s' * (region.nodes != 1)} · {region.gpus} GPU{'s' * (region.gpus != 1)}{kind}"


def _network(region: DrawnRegion) -> str:
    spelt = {"infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet", "efa": "EFA", "slingshot": "Slingshot"}
    if not region.network_kind or region.nodes == 1:
        return "one node, no network between nodes" if region.nodes == 1 else "network not stated"
    rate = f" {show_rate(region.network_rate_bytes_per_s)} a port" if region.network_rate_bytes_per_s else ""
    return spelt.get(region.network_kind, region.network_kind) + rate


def _row(about: Drawing, regions: Sequence[DrawnRegion], links: Sequence[DrawnLink], width: float) -> Svg:
    count = len(regions)
    gap = 250.0 if count == 2 and len(links) == 1 else 22.0
    box_width = min((width - 2 - gap * (count - 1)) / count, 320.0)
    left = (width - box_width * count - gap * (count - 1)) / 2
    boxes = {region.name: Box(left + index * (box_width + gap), 1.0, box_width) for index, region in enumerate(regions)}
    shapes = [_region(region, boxes[region.name]) for region in regions]
    if count == 2 and len(links) == 1:
        return drawing(about, (width, BOX_HEIGHT + 2), *shapes, _straight(links[0], boxes))
    rows = _bracket_rows(links, [region.name for region in regions])
    shapes += [_bracket(link, boxes, row) for link, row in zip(links, rows, strict=True)]
    shapes += [_bracket_words(link, boxes, row) for link, row in zip(links, rows, strict=True)]
    height = BOX_HEIGHT + 2 + (LINK_ROW * (max(rows) + 1) + 6 if rows else 0)
    return drawing(about, (width, height), *shapes)


def _straight(link: DrawnLink, boxes: dict[str, Box]) -> Svg:
    left, right = sorted((boxes[name] for name in link.between), key=lambda box: box.x)
    start, end, y = left.x + left.width, right.x, BOX_HEIGHT / 2
    middle, room = (start + end) / 2, end - start - 16
    return tag(
        "g",
        line(start, y, end, y, "wan"),
        _dot(start, y),
        _dot(end, y),
        label(middle, y - 14, fit(link.figures, room, 14 * BOLD), "ink strong", "middle"),
        label(middle, y - 34, "WAN", "muted small", "middle"),
        label(middle, y + 24, fit(link.note, room, 12), "muted small", "middle"),
    )


def _dot(x: float, y: float) -> Svg:
    return tag("circle", cx=x, cy=y, r=4, class_="wan-end")


def _bracket_rows(links: Sequence[DrawnLink], names: Sequence[str]) -> list[int]:
    """The row of each link's bracket: the shortest spans on top, spans that do not overlap side by side."""
    spans = [tuple(sorted((names.index(link.between[0]), names.index(link.between[1])))) for link in links]
    taken: list[list[tuple[int, ...]]] = []
    rows = [0] * len(links)
    for index in sorted(range(len(links)), key=lambda i: (spans[i][1] - spans[i][0], spans[i])):
        low, high = spans[index]
        free = (row for row, others in enumerate(taken) if all(high <= other[0] or other[1] <= low for other in others))
        rows[index] = next(free, len(taken))
        if rows[index] == len(taken):
            taken.append([])
        taken[rows[index]].append(spans[index])
    return rows


def _bracket(link: DrawnLink, boxes: dict[str, Box], row: int) -> Svg:
    start, end = _feet(link, boxes, row)
    top, y = BOX_HEIGHT + 1, BOX_HEIGHT + 24 + LINK_ROW * row
    path = f"M{start:.1f} {top}V{y - 8:.1f}q0 8 8 8H{end - 8:.1f}q8 0 8 -8V{top}"
    return tag("g", tag("path", d=path, class_="wan"), _dot(start, top), _dot(end, top))


def _feet(link: DrawnLink, boxes: dict[str, Box], row: int) -> tuple[float, float]:
    """Where a bracket meets its boxes: each row a little further out, so that no two share a vertical."""
    left, right = sorted((boxes[name] for name in link.between), key=lambda box: box.x)
    return left.middle + 28 - 22 * row, right.middle - 28 + 22 * row


def _bracket_words(link: DrawnLink, boxes: dict[str, Box], row: int) -> Svg:
    start, end = _feet(link, boxes, row)
    y, middle, room = BOX_HEIGHT + 24 + LINK_ROW * row, (start + end) / 2, end - start + 30
    return tag(
        "g",
        label(middle, y + 18, fit(link.figures, room, 13 * BOLD), "ink strong halo", "middle"),
        label(middle, y + 34, fit(link.note, room, 12), "muted small halo", "middle"),
    )


def _column(about: Drawing, regions: Sequence[DrawnRegion], links: Sequence[DrawnLink], width: float) -> Svg:
    gap, lane = 16.0, 24.0
    rows = _bracket_rows(links, [region.name for region in regions])
    edge = min(width - lane * (max(rows, default=0) + 1), 420.0)
    boxes = {region.name: Box(1.0, 1 + index * (BOX_HEIGHT + gap), edge - 1) for index, region in enumerate(regions)}
    shapes = [_region(region, boxes[region.name]) for region in regions]
    bottom = 1 + len(regions) * (BOX_HEIGHT + gap) - gap
    for index, (link, row) in enumerate(zip(links, rows, strict=True)):
        upper, lower = sorted(boxes[name].y for name in link.between)
        start, end, x = upper + BOX_HEIGHT - 50 + 16 * row, lower + 50 - 16 * row, edge + lane * row + 13
        path = f"M{edge} {start:.1f}H{x - 6:.1f}q6 0 6 6V{end - 6:.1f}q0 6 -6 6H{edge}"
        shapes += [tag("path", d=path, class_="wan"), _dot(edge, start), _dot(edge, end)]
        if len(links) > 1:
            shapes.append(_badge(x, (start + end) / 2, index))
        shapes.append(_link_words(link, bottom + 24 + 62 * index, width, index if len(links) > 1 else None))
    return drawing(about, (width, bottom + 62 * len(links) + 8), *shapes)


def _badge(x: float, y: float, index: int) -> Svg:
    circle = tag("circle", cx=x, cy=y, r=9, class_="wan-end")
    return tag("g", circle, label(x, y + 4, str(index + 1), "on-wan small", "middle"))


def _link_words(link: DrawnLink, y: float, width: float, index: int | None) -> Svg:
    """A link's line in the list under the regions, with the number of its bracket where there are several."""
    left = 0.0 if index is None else 26.0
    badge = Svg("") if index is None else _badge(9, y - 4, index)
    names = f"{link.between[0]} – {link.between[1]}"
    return tag(
        "g",
        badge,
        label(left, y, fit(names, width - left, 13), "ink"),
        label(left, y + 18, fit(link.figures, width - left, 13 * BOLD), "ink strong"),
        label(left, y + 35, fit(link.note, width - left, 12), "muted small"),
    )


def _region(region: DrawnRegion, box: Box) -> Svg:
    room = box.width - 28
    place = region.city if region.city and region.city.lower() != region.name.lower() else ""
    bus = box.y + 118
    return tag(
        "g",
        tag("title", words(f"{region.name}: {_size(region)}")),
        rectangle((box.x, box.y, box.width, BOX_HEIGHT - 1), "box", 10),
        label(box.x + 14, box.y + 26, fit(region.name, room * (0.6 if place else 1), 15 * BOLD), "ink head"),
        label(box.x + box.width - 14, box.y + 26, fit(place, room * 0.38, 12), "muted small", "end"),
        label(box.x + 14, box.y + 46, fit(_size(region), room, 12), "muted small"),
        *_nodes(region, box, bus),
        label(box.x + 14, bus + 20, fit(_network(region), room, 12), "ink small"),
        line(box.x + 14, bus + 34, box.x + box.width - 14, bus + 34, "grid"),
        label(box.x + 14, bus + 54, fit(region.note, room, 12), "muted small"),
    )


def _nodes(region: DrawnRegion, box: Box, bus: float) -> list[Svg]:
    """Up to `NODES_DRAWN` nodes on the region's network, each with up to eight GPUs; the rest as a count."""
    room, cell = box.width - 28, 46.0
    drawn = min(region.nodes, NODES_DRAWN, int(room // cell))
    if drawn < region.nodes:
        drawn = max(min(drawn, int((room - 48) // cell)), 1)
    each = -(-region.gpus // region.nodes) if region.nodes else 0
    shapes = [line(box.x + 14, bus, box.x + box.width - 14, bus, "bus")] if region.nodes > 1 else []
    for index in range(drawn):
        x, y = box.x + 14 + index * cell, bus - 50
        if region.nodes > 1:
            shapes.append(line(x + 20, y + 32, x + 20, bus, "bus"))
        shapes.append(rectangle((x, y, 40, 32), "node", 4, f"a node of {each} GPUs"))
        columns = min(max(each, 1), 4)
        offset = (40 - columns * 9 + 2) / 2
        shapes += [
            rectangle((x + offset + 9 * (gpu % 4), y + (7 if each > 4 else 12) + 11 * (gpu // 4), 7, 8), "gpu", 1.5)
            for gpu in range(min(each, 8))
        ]
    if drawn < region.nodes:
        shapes.append(label(box.x + 14 + drawn * cell + 2, bus - 29, f"+ {region.nodes - drawn}", "muted small"))
    return shapes
