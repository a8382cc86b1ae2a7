"""The fields of the API types that a pod's placement could depend on, from the API server's OpenAPI.

    python -m tests.kube.api_fields --update DIRECTORY     the directory has the documents of a release, such as
                                                           kubernetes' `api/openapi-spec/v3`

`tests/kube/api_fields.json` has, for each type that a root reaches, the type of each field: "" for scalars, `map of T`
for maps, and that of the items for lists.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ApiTypes = Mapping[str, Mapping[str, str]]
"""Field names and their types, by type."""

DOCUMENTS = ("api/v1", "apis/resource.k8s.io/v1")
ROOTS = (
    "core.PodSpec",
    "core.NodeSpec",
    "resource.ResourceClaimSpec",
    "resource.ResourceSliceSpec",
    "resource.DeviceClassSpec",
)
MAP_OF = "map of "
RECORDED = Path(__file__).with_suffix(".json")


def recorded() -> ApiTypes:
    types: ApiTypes = json.loads(RECORDED.read_text(encoding="utf-8"))
    return types


def api_types(documents: Iterable[Json]) -> ApiTypes:
    """The types that the roots reach, from OpenAPI v3 documents."""
    schemas: dict[str, Json] = {}
    for document in documents:
        for name, schema in document["components"]["schemas"].items():
            schemas[_type_name(name)] = schema
    reached: dict[str, dict[str, str]] = {}
    pending = list(ROOTS)
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        fields = {
            field: referred
            if "properties" in schemas.get((referred := _referred(schema)).removeprefix(MAP_OF), {})
            else ""
            for field, schema in schemas[name]["properties"].items()
        }
        reached[name] = dict(sorted(fields.items()))
        pending += [referred.removeprefix(MAP_OF) for referred in fields.values() if referred]
    return dict(sorted(reached.items()))


def _referred(schema: Json) -> str:
    """The type of a field, of its items or of its values."""
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{MAP_OF}{_referred(schema['additionalProperties'])}"
    schema = schema.get("items") or schema
    references = [schema, *schema.get("allOf", ())]
    return next((_type_name(each["$ref"]) for each in references if "$ref" in each), "")


def _type_name(name: str) -> str:
    """`core.PodSpec` of `io.k8s.api.core.v1.PodSpec`."""
    *_, group, _version, kind = ("", "", *name.rsplit("/", 1)[-1].split("."))
    return f"{group}.{kind}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", type=Path, required=True, metavar="DIRECTORY")
    directory = parser.parse_args().update
    documents = [
        json.loads((directory / f"{name.replace('/', '__')}_openapi.json").read_text(encoding="utf-8"))
        for name in DOCUMENTS
    ]
    RECORDED.write_text(json.dumps(api_types(documents), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
