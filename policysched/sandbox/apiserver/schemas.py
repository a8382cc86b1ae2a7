"""OpenAPI schemas of the kinds, for `kubectl explain`: from the models of the Python client, which were generated from
Kubernetes' own."""

import re
from functools import lru_cache
from typing import Any

from policysched.sandbox.apiserver.kinds import ResourceKind

Json = dict[str, Any]

_SCALARS: dict[str, Json] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "datetime": {"type": "string", "format": "date-time"},
    "object": {"type": "object"},
}


@lru_cache(maxsize=64)  # a changed CustomResourceDefinition makes new kinds
def schemas_of(kinds: tuple[ResourceKind, ...]) -> Json:
    """Those of the kinds that the client has a model of, and of everything that they contain."""
    from kubernetes.client import models  # its import takes a second, and only `kubectl explain` needs it

    schemas: Json = {}
    for kind in kinds:
        types = [{"group": kind.group, "version": kind.version, "kind": kind.name}]
        if kind.custom is not None:
            name = f"{'.'.join(reversed(kind.group.split('.')))}.{kind.version}.{kind.name}"
            schemas[name] = _custom_schema(kind.custom.openapi, models, schemas)
            schemas[name]["x-kubernetes-group-version-kind"] = types
        elif (model := _model_name(kind, models)) is not None:
            _add(model, models, schemas)
            schemas[_schema_name(model)]["x-kubernetes-group-version-kind"] = types
    return schemas


def _custom_schema(schema: Json, models: Any, schemas: Json) -> Json:
    """The schema of a definition with the fields that every object has."""
    common: Json = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": _schema("V1ObjectMeta", models, schemas),
    }
    return {**schema, "properties": {**(schema.get("properties") or {}), **common}}


def _model_name(kind: ResourceKind, models: Any) -> str | None:
    if "." in kind.group and not kind.group.endswith(".k8s.io"):
        return None  # a CRD's
    version = kind.version[0].upper() + kind.version[1:]
    group = kind.group.partition(".")[0].capitalize() or "Core"
    names = (f"{version}{kind.name}", f"{group}{version}{kind.name}")
    return next((name for name in names if hasattr(models, name)), None)


def _schema_name(model: str) -> str:
    """With a dot behind the version: `kubectl explain` shows the last part."""
    return re.sub(r"^([A-Za-z]*?V\d+(?:alpha\d+|beta\d+)?)(?=[A-Z])", r"\1.", model)


def _add(model_name: str, models: Any, schemas: Json) -> None:
    name = _schema_name(model_name)
    if name in schemas:
        return
    model = getattr(models, model_name)
    properties: Json = {}
    schemas[name] = {
        "type": "object",
        "description": _first_paragraph(model.__doc__),
        "properties": properties,
    }
    fields = getattr(model, "model_fields", {})
    required = []
    for field, type_name in model.openapi_types.items():
        schema = _schema(type_name, models, schemas)
        described = fields.get(field)
        if described is not None:
            schema = {**schema, "description": described.description or ""}
            if described.is_required():
                required.append(model.attribute_map[field])
        properties[model.attribute_map[field]] = schema
    if required:
        schemas[name]["required"] = required


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def _schema(type_name: str, models: Any, schemas: Json) -> Json:
    if type_name in _SCALARS:
        return dict(_SCALARS[type_name])
    match = re.fullmatch(r"[Ll]ist\[(.+)\]|[Dd]ict[\[(]str, ?(.+)[\])]", type_name)
    if match is None:
        _add(type_name, models, schemas)
        return {"allOf": [{"$ref": f"#/components/schemas/{_schema_name(type_name)}"}]}
    item, value = match.groups()
    if item is not None:
        return {"type": "array", "items": _schema(item, models, schemas)}
    return {"type": "object", "additionalProperties": _schema(value, models, schemas)}
