"""From a fabric file to the model."""

from pathlib import Path

from isthmus.documents import parse_document, read_text
from isthmus.fabric.document import FabricDocument
from isthmus.fabric.model import Fabric
from isthmus.fabric.resolve import resolve

__all__ = ["parse_fabric", "read_fabric"]


def read_fabric(path: Path | str) -> Fabric:
    """The fabric described by the file at `path`.

    Raises:
        InputError: The file cannot be read, is not a fabric, or names what the catalogue does not know.
    """
    return parse_fabric(read_text(path), str(path))


def parse_fabric(text: str, source: str) -> Fabric:
    """As `read_fabric`, for text already in hand; `source` is its name in messages."""
    return resolve(*parse_document(text, source, FabricDocument))
