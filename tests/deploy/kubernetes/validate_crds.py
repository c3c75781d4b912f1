"""Every manifest of every example against the engines' own CRDs: `make validate-crds CRDS=folder`, a folder of their YAML.

The schemas are made strict (a field they do not know is an error, as with kubectl --validate=strict); core kinds are
kubernetes-validate's. Written objects come from `isthmus deploy`, as a user gets them.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import yaml

TARGETS = ("volcano", "jobset", "trainjob", "kueue")


def strict(schema: Any) -> Any:
    """A CRD's schema as JSON Schema: unknown fields refused, int-or-string and nullable written out."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if found.get("x-kubernetes-int-or-string"):
        found = {key: value for key, value in found.items() if key != "anyOf"} | {"type": ["integer", "string"]}
    if found.get("nullable") and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    pattern = found.get("pattern")
    if isinstance(pattern, str) and "(?i)" in pattern[1:]:  # Go takes the flag anywhere, Python at the start
        found["pattern"] = "(?i)" + pattern.replace("(?i)", "")
    open_ended = found.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in found
    if found.get("type") == "object" and isinstance(found.get("properties"), dict) and not open_ended:
        found["additionalProperties"] = False
    return found


def read_crds(folder: Path) -> dict[tuple[str, str], Any]:
    """Strict schemas by apiVersion and kind."""
    found: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.rglob("*.yaml")):
        for document in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def faults(document: dict[str, Any], crds: dict[tuple[str, str], Any]) -> list[str]:
    """What the object's own schema says against it."""
    key = document["apiVersion"], document["kind"]
    if key in crds:
        errors = jsonschema.Draft202012Validator(crds[key]).iter_errors(document)
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors]
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, "1.37", strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'/'.join(map(str, error.path))}: {error.message[:200]}"]
    except kubernetes_validate.InvalidSchemaError:
        return [f"{key[0]} {key[1]}: no schema"]
    return []


def main(crd_folder: str) -> int:
    """Write every bundle, hold every object against its schema, say how many there were."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import EXAMPLES, prepare  # type: ignore[import-not-found]
    from isthmus.deploy.request import Request
    from isthmus.deploy.sites import read_sites
    from isthmus.deploy.targets import make_bundle
    from isthmus.plan import load_plan

    crds, counts, bad = read_crds(Path(crd_folder)), dict[str, int](), 0
    for example in sorted(path.stem for path in EXAMPLES.glob("*.yaml")):
        with tempfile.TemporaryDirectory() as place:
            folder = prepare(Path(place), example)
            plan = folder / "plan.yaml"
            request = Request(plan=load_plan(plan), plan_path=plan, sites=read_sites(folder / "sites.yaml"), script=("train.py",))
            for target in TARGETS:
                for piece in make_bundle(target, request).pieces:
                    if not piece.path.endswith(".yaml") or "/" not in piece.path:
                        continue
                    for document in yaml.safe_load_all(piece.text):
                        kind = f"{document['apiVersion']} {document['kind']}"
                        counts[kind] = counts.get(kind, 0) + 1
                        for fault in faults(document, crds):
                            bad += 1
                            print(f"{example} {target} {piece.path} {kind}: {fault}")
    for kind, count in sorted(counts.items()):
        print(f"{count:5} {kind}")
    print(f"{sum(counts.values())} objects, {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
