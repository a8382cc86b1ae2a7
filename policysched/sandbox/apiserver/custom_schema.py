"""The schema of a custom resource: checks, prunes and completes objects as kube-apiserver does.

The OpenAPI v3 schema of a CustomResourceDefinition becomes one for `jsonschema`; the messages are
kube-apiserver's. Not evaluated: rules in CEL (`x-kubernetes-validations`), formats, and the uniqueness of
keys in lists of the types `map` and `set`.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft4Validator, ValidationError

from policysched.sandbox.apiserver.errors import Cause, bad_value, not_supported, required

Json = dict[str, Any]

_COPIED = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "required"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
_MANY = ("allOf", "anyOf", "oneOf")
_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_EMBEDDED: Json = {"apiVersion": {}, "kind": {}, "metadata": {"x-kubernetes-preserve-unknown-fields": True}}


class CustomSchema:
    """The `openAPIV3Schema` of one version."""

    def __init__(self, schema: Json):
        self._schema = schema
        properties = {
            name: field
            for name, field in (schema.get("properties") or {}).items()
            if name not in ("metadata", "apiVersion", "kind")
        }
        self._validator = Draft4Validator(_to_json_schema({**schema, "properties": properties}))

    def complete(self, obj: Json) -> None:
        """Set the defaults, in place."""
        _set_defaults(obj, self._schema)

    def prune(self, obj: Json) -> list[str]:
        """Remove the fields that the schema does not have, in place, and return their paths."""
        dropped: list[str] = []
        _prune(obj, {**self._schema, "x-kubernetes-embedded-resource": True}, "", dropped)
        return dropped

    def causes(self, obj: Json) -> list[Cause]:
        """What is wrong with the object. One error of `required` names one field."""
        causes: list[Cause] = []
        for error in self._validator.iter_errors(obj):
            causes += (cause for cause in _causes(error) if cause not in causes)
        return sorted(causes, key=lambda cause: cause[1])


def uses_rules(schema: Any) -> bool:
    """Whether a schema has rules in CEL anywhere."""
    if isinstance(schema, dict):
        return "x-kubernetes-validations" in schema or any(map(uses_rules, schema.values()))
    return isinstance(schema, list) and any(map(uses_rules, schema))


def _to_json_schema(schema: Json) -> Json:
    converted = {word: schema[word] for word in _COPIED if word in schema}
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        kind = ["integer", "string"]
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        converted["type"] = [*kinds, "null"] if schema.get("nullable") else kinds
    if "enum" in schema:
        converted["enum"] = [*schema["enum"], *([None] if schema.get("nullable") else ())]
    if "pattern" in schema and _compiles(schema["pattern"]):
        converted["pattern"] = schema["pattern"]
    if "properties" in schema:
        converted["properties"] = {
            name: _to_json_schema(field) for name, field in schema["properties"].items()
        }
    for word in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(word), dict):
            converted[word] = _to_json_schema(schema[word])
    for word in _MANY:
        if word in schema and not schema.get("x-kubernetes-int-or-string"):
            converted[word] = [_to_json_schema(choice) for choice in schema[word]]
    return converted


def _compiles(pattern: str) -> bool:
    """A few expressions of Go do not exist in Python; they are not checked."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _set_defaults(value: Any, schema: Json) -> None:
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, field in properties.items():
            if name not in value and "default" in field:
                value[name] = copy.deepcopy(field["default"])
        for name, item in value.items():
            field = properties.get(name, schema.get("additionalProperties"))
            if isinstance(field, dict):
                _set_defaults(item, field)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            _set_defaults(item, schema["items"])


def _prune(value: Any, schema: Json, path: str, dropped: list[str]) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for at, item in enumerate(value):
                _prune(item, items, f"{path}[{at}]", dropped)
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    if schema.get("x-kubernetes-embedded-resource"):
        properties = {**properties, **_EMBEDDED}
    additional = schema.get("additionalProperties")
    keeps_unknown = additional is True or schema.get("x-kubernetes-preserve-unknown-fields")
    for name in tuple(value):
        field = properties.get(name, additional)
        below = f"{path}.{name}" if path else name
        if isinstance(field, dict):
            _prune(value[name], field, below, dropped)
        elif not keeps_unknown:
            dropped.append(below)
            del value[name]


def _causes(error: ValidationError) -> Iterator[Cause]:
    field = _path(error)
    value: Any = error.instance
    bound: Any = error.validator_value
    schema: Any = error.schema
    body = f"{field} in body"
    match error.validator:
        case "required":
            for name in bound:
                if name not in value:
                    yield required(f"{field}.{name}" if field else name)
        case "type":
            actual = _TYPE_NAMES.get(type(value), "null")
            wanted = ",".join(name for name in bound if name != "null")
            yield (
                "FieldValueTypeInvalid",
                field,
                f'Invalid value: "{actual}": {body} must be of type {wanted}: "{actual}"',
            )
        case "enum":
            yield not_supported(field, value, tuple(str(choice) for choice in bound if choice is not None))
        case "minimum" | "maximum":
            side = "greater" if error.validator == "minimum" else "less"
            exclusive = schema.get(f"exclusive{error.validator.capitalize()}")
            yield bad_value(
                field, value, f"{body} should be {side} than {'' if exclusive else 'or equal to '}{bound}"
            )
        case "pattern":
            yield bad_value(field, value, f"{body} should match '{bound}'")
        case "minLength":
            yield bad_value(field, value, f"{body} should be at least {bound} chars long")
        case "maxLength":
            yield ("FieldValueTooLong", field, f"Too long: may not be more than {bound} bytes")
        case "minItems":
            yield bad_value(field, len(value), f"{body} should have at least {bound} items")
        case "maxItems":
            yield ("FieldValueTooMany", field, f"Too many: {len(value)}: must have at most {bound} items")
        case _:
            yield bad_value(field, value, f"{body} {error.message.partition(' ')[2]}")


def _path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
