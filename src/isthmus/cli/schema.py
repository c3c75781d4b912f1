"""`isthmus schema`: the JSON Schema of a document, for editors and other programs."""

import json
from typing import Annotated, Literal, assert_never

import typer

from isthmus.documents import Document, json_schema

EXAMPLES = """Examples:

isthmus schema fabric > fabric.schema.json
"""

DocumentKind = Literal["fabric", "workload", "plan", "sites"]


def schema(document: Annotated[DocumentKind, typer.Argument(help="Which document.")]) -> None:
    """Print the JSON Schema of a document."""
    print(json.dumps(json_schema(_model(document)), indent=2, ensure_ascii=False))


def _model(document: DocumentKind) -> type[Document]:
    match document:
        case "fabric":
            from isthmus.fabric.document import FabricDocument

            return FabricDocument
        case "workload":
            from isthmus.workload.document import WorkloadDocument

            return WorkloadDocument
        case "plan":
            from isthmus.plan import Plan

            return Plan
        case "sites":
            from isthmus.deploy.sites import SitesDocument

            return SitesDocument
        case _:
            assert_never(document)
