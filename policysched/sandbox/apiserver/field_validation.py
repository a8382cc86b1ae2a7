"""Warnings that a client gets about its object: unknown fields, and what the sandbox keeps without enforcing it.

A warning is a header that kubectl prints. `fieldValidation` decides whether unknown fields of a custom
resource are an error, a warning or ignored. Those of built-in kinds, and of a JSON patch, are not looked for.
"""

import copy
import json
from collections.abc import Mapping

from policysched.sandbox.apiserver.custom_schema import uses_rules
from policysched.sandbox.apiserver.errors import bad_request
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.requests import ServerRequest, read_body

_KEPT = {
    "limitranges": "the sandbox keeps a LimitRange and does not enforce it",
    "resourcequotas": "the sandbox keeps a ResourceQuota and does not enforce it",
}


def validate_fields(kind: ResourceKind, call: ServerRequest) -> Mapping[str, str]:
    """The header with the warnings for a write, or none. Raises a 400 `StatusError` for unknown fields with
    `fieldValidation=Strict`.
    """
    if kind.rules in _KEPT:
        return _header([_KEPT[kind.rules]])
    if kind.rules == "customresourcedefinitions":
        used = uses_rules(read_body(call))
        return _header(["the sandbox does not evaluate x-kubernetes-validations"] if used else [])
    if kind.custom is None:
        return {}
    body, level = read_body(call), call.params.get("fieldValidation", "Warn")
    if call.method in ("POST", "PUT") and not (isinstance(body, dict) and body.get("kind")):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.name}): Object 'Kind' is missing"
        )
    if level == "Ignore":
        return {}
    dropped = kind.custom.schema.prune(copy.deepcopy(body)) if isinstance(body, dict) else []
    unknown = [f'unknown field "{path}"' for path in dropped]
    if unknown and level == "Strict":
        raise bad_request(f"strict decoding error: {', '.join(unknown)}")
    return _header(unknown)


def _header(texts: list[str]) -> Mapping[str, str]:
    """In quotes of JSON: no line end and no letter beyond ASCII."""
    return {"warning": ", ".join(f"299 - {json.dumps(text)}" for text in texts)} if texts else {}
