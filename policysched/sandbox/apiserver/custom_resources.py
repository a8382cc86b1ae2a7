"""CustomResourceDefinitions: their own rules, and the kinds that they add to the server.

A definition is established when it is created. Not supported: webhooks that convert between versions, so a
definition that serves several versions by a webhook is rejected; between versions only `apiVersion` changes.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson

from policysched.sandbox.apiserver.custom_schema import CustomSchema
from policysched.sandbox.apiserver.errors import (
    Cause,
    bad_value,
    forbidden_field,
    not_supported,
    qualified,
    required,
)
from policysched.sandbox.apiserver.json_path import parse_json_path
from policysched.sandbox.apiserver.kinds import KINDS, CustomVersion, PrinterColumn, ResourceKind, ScalePaths

Json = dict[str, Any]

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_BUILT_IN = {kind.stored_as for kind in KINDS}
_SCOPES = ("Cluster", "Namespaced")


def custom_kinds(definitions: Iterable[Json]) -> tuple[ResourceKind, ...]:
    """The kinds of all served versions. The newest version of a resource is first, as in discovery."""
    return tuple(
        kind
        for definition in definitions
        for kind in _kinds_of(orjson.dumps(definition["spec"], option=orjson.OPT_SORT_KEYS))
    )


@lru_cache(maxsize=256)
def _kinds_of(encoded_spec: bytes) -> tuple[ResourceKind, ...]:
    """Cached, because every change of a definition or its status asks for all."""
    spec = orjson.loads(encoded_spec)
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    return tuple(
        ResourceKind(
            names["plural"],
            names["kind"],
            spec["group"],
            version["name"],
            namespaced=spec["scope"] == "Namespaced",
            singular=names["singular"],
            list_kind=names["listKind"],
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(
                name for name in ("status", "scale") if name in (version.get("subresources") or {})
            ),
            selectable_fields=tuple(
                field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
            ),
            has_generation=True,
            replaced_with_version_only=True,
            custom=_custom_version(version),
        )
        for version in sorted(served, key=lambda version: _version_rank(version["name"]))
    )


def _custom_version(version: Json) -> CustomVersion:
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    scale = (version.get("subresources") or {}).get("scale")
    return CustomVersion(
        CustomSchema(schema),
        schema,
        tuple(
            PrinterColumn(
                column["name"],
                column["type"],
                parse_json_path(column["jsonPath"]) or (lambda _: []),
                wide=column.get("priority", 0) > 0,
            )
            for column in version.get("additionalPrinterColumns") or ()
        ),
        None
        if scale is None
        else ScalePaths(
            scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")
        ),
    )


def _version_rank(name: str) -> tuple[int, int, int, str]:
    """Stable versions first, then beta, then alpha, the highest number first; other names at the end."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", name)
    if match is None:
        return (3, 0, 0, name)
    level = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (level, -int(match[1]), -int(match[3] or 0), name)


def default_definition(obj: Json) -> None:
    """Set the defaults of a definition, and the names in its status when they changed."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if isinstance(names, dict) and isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})
    if obj.get("status"):
        stored = obj["status"].get("storedVersions") or []
        obj["status"] = {
            **obj["status"],
            "acceptedNames": names,
            "storedVersions": [*stored, *(name for name in _storage_versions(spec) if name not in stored)],
        }


def first_definition_status(obj: Json) -> Json:
    time = obj["metadata"]["creationTimestamp"]
    conditions = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    return {
        "conditions": [
            {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": time}
            for kind, reason, message in conditions
        ],
        "acceptedNames": obj["spec"]["names"],
        "storedVersions": _storage_versions(obj["spec"]),
    }


def _storage_versions(spec: Json) -> list[str]:
    return [version["name"] for version in spec["versions"] if version.get("storage")]


def definition_causes(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    names = spec["names"]
    causes = [
        required(f"spec.{path}")
        for path, value in (
            ("group", spec.get("group")),
            ("names.plural", names.get("plural") if isinstance(names, dict) else None),
            ("names.kind", names.get("kind") if isinstance(names, dict) else None),
        )
        if not isinstance(value, str) or not value
    ]
    if spec.get("scope") not in _SCOPES:
        causes.append(not_supported("spec.scope", spec.get("scope", ""), _SCOPES))
    if causes:
        return causes
    name = qualified(spec["group"], names["plural"])
    if obj["metadata"]["name"] != name:
        reason = f'must be spec.names.plural+"."+spec.group ({name})'
        causes.append(bad_value("metadata.name", obj["metadata"]["name"], reason))
    if name in _BUILT_IN:
        causes.append(forbidden_field("metadata.name", "the sandbox serves this resource itself"))
    try:
        causes += _version_causes(spec)
        if not causes:
            custom_kinds([obj])
    except KeyError as error:
        causes.append(required("spec.versions", f"Required value: {error.args[0]}"))
    except (AttributeError, TypeError, ValueError) as error:
        causes.append(("FieldValueInvalid", "spec.versions", f"Invalid value: {error}"))
    return causes


def _version_causes(spec: Json) -> list[Cause]:
    versions = spec.get("versions")
    if not isinstance(versions, list) or not all(
        isinstance(version, dict) and isinstance(version.get("name"), str) for version in versions
    ):
        return [required("spec.versions", "a list of objects with names")]
    causes: list[Cause] = []
    if len(_storage_versions(spec)) != 1:
        causes.append(
            bad_value("spec.versions", versions and [version["name"] for version in versions], _ONE_STORED)
        )
    for at, version in enumerate(versions):
        path = f"spec.versions[{at}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            causes.append(required(f"{path}.schema.openAPIV3Schema"))
        elif schema.get("type") != "object":
            field = f"{path}.schema.openAPIV3Schema.type"
            causes.append(bad_value(field, schema.get("type", ""), "must be object at the root"))
        for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
            if parse_json_path(str(column.get("jsonPath", ""))) is None:
                field = f"{path}.additionalPrinterColumns[{number}].jsonPath"
                causes.append(
                    bad_value(field, column.get("jsonPath"), "the sandbox does not support this JSON path")
                )
    served = [version["name"] for version in versions if version.get("served")]
    if (spec.get("conversion") or {}).get("strategy") == "Webhook" and len(served) > 1:
        reason = (
            f"the sandbox does not convert between versions by a webhook; serve one of {', '.join(served)}"
        )
        causes.append(forbidden_field("spec.conversion.strategy", reason))
    return causes


_ONE_STORED = "must have exactly one version marked as storage version"


def changed_definition_causes(old: Json, new: Json) -> list[Cause]:
    return [
        bad_value(f"spec.{field}", new["spec"].get(field), "field is immutable")
        for field in ("group", "scope")
        if old["spec"].get(field) != new["spec"].get(field)
    ]
