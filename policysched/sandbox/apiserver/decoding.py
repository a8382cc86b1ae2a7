"""Rejects bodies that kube-apiserver cannot decode into the type of their kind, with a 400."""

from collections.abc import Iterator
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError, bad_request
from policysched.sandbox.apiserver.field_types import field_type_errors
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.quantities import parse_quantity

Json = dict[str, Any]


def check_shape(kind: ResourceKind, obj: Any) -> Json:
    """Reject with a 400 a body that kube-apiserver cannot decode into its type."""
    if not isinstance(obj, dict):
        raise bad_request(f"a {kind.name} is an object, not {type(obj).__name__}")
    metadata = obj.setdefault("metadata", {})
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise _decode_error(kind, "metadata", "an object")
    for field in ("labels", "annotations"):
        value = metadata.get(field)
        if value is None:
            metadata.pop(field, None)
        elif not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise _decode_error(kind, f"metadata.{field}", "an object of strings")
    for field in ("spec", "status") if kind.custom is None else ():
        if obj.get(field, {}) is None:
            del obj[field]
        elif not isinstance(obj.get(field, {}), dict):
            raise _decode_error(kind, field, "an object")
    for field, expected in field_type_errors(kind.rules, obj):
        raise _decode_error(kind, field, expected)
    if kind.rules == "pods":
        _check_quantities(kind, obj.get("spec") or {})
    if kind.rules == "priorityclasses" and not isinstance(obj.get("value", 0), int):
        raise _decode_error(kind, "value", "a whole number")
    return obj


def _decode_error(kind: ResourceKind, field: str, expected: str) -> StatusError:
    return bad_request(
        f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: json: {field} must be {expected}'
    )


def _check_quantities(kind: ResourceKind, spec: Json) -> None:
    for path, container in _containers(kind, spec):
        resources = container.get("resources") or {}
        if not isinstance(resources, dict):
            raise _decode_error(kind, f"{path}.resources", "an object")
        for group in ("requests", "limits"):
            quantities = resources.get(group) or {}
            if not isinstance(quantities, dict):
                raise _decode_error(kind, f"{path}.resources.{group}", "an object")
            for quantity in quantities.values():
                try:
                    parse_quantity(quantity)
                except ValueError:
                    raise bad_request(
                        f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: quantities must '
                        r"match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                    ) from None


def _containers(kind: ResourceKind, spec: Json) -> Iterator[tuple[str, Json]]:
    for field in ("initContainers", "containers"):
        value = spec.get(field)
        if value is not None and not isinstance(value, list):
            raise _decode_error(kind, f"spec.{field}", "a list")
        for at, container in enumerate(value or ()):
            if not isinstance(container, dict):
                raise _decode_error(kind, f"spec.{field}[{at}]", "an object")
            yield f"spec.{field}[{at}]", container
