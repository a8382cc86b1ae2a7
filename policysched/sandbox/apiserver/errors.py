"""Errors of the API server, with the messages and codes of kube-apiserver.

A `StatusError` is raised below `ApiServer.handle` and becomes a `Status` object there. kubectl prints
its message after "Error from server (REASON):", so messages copy kube-apiserver's.
"""

from typing import Any

import orjson

Json = dict[str, Any]
Cause = tuple[str, str, str]
"""One reason of a refusal with a 422: the word for it, the field, and the message."""


class StatusError(Exception):
    """A failure Status. `code` is the HTTP status; `reason` is what client libraries test."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None, meta: Json | None = None
    ):
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.meta = meta

    def status(self) -> Json:
        """The `Status` object, as a response body or in a watch's ERROR event."""
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.meta or {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body

    def body(self) -> bytes:
        return orjson.dumps(self.status())


def success_status(details: Json | None = None, *, code: int | None = None) -> Json:
    """The `Status` that answers a deletion or a binding."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def _details(name: str, group: str, resource: str) -> Json:
    return {"name": name, **({"group": group} if group else {}), "kind": resource}


def qualified(group: str, resource: str) -> str:
    """A resource as kube-apiserver names it in messages: `deployments.apps`, `pods`."""
    return f"{resource}.{group}" if group else resource


def not_found(group: str, resource: str, name: str) -> StatusError:
    message = f'{qualified(group, resource)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_details(name, group, resource))


def not_served(name: str) -> StatusError:
    """A resource that this server does not have. Clients read the reason NotFound as "no such API"."""
    message = f"the server could not find the requested resource: the sandbox does not serve {name}"
    return StatusError(404, "NotFound", message)


def not_implemented(feature: str) -> StatusError:
    return StatusError(501, "NotImplemented", f"the sandbox does not serve {feature}")


def already_exists(group: str, resource: str, name: str) -> StatusError:
    message = f'{qualified(group, resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(name, group, resource))


def conflict(group: str, resource: str, name: str, reason: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {reason}'
    return StatusError(409, "Conflict", message, details=_details(name, group, resource))


def version_conflict(group: str, resource: str, name: str) -> StatusError:
    reason = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, resource, name, reason)


def forbidden(group: str, resource: str, name: str, reason: str) -> StatusError:
    message = f'{qualified(group, resource)} "{name}" is forbidden: {reason}'
    return StatusError(403, "Forbidden", message, details=_details(name, group, resource))


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def gone(message: str, *, meta: Json | None = None) -> StatusError:
    return StatusError(410, "Expired", message, meta=meta)


def method_not_allowed(message: str) -> StatusError:
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(message: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", message)


def resource_version_too_large(requested: int, current: int) -> StatusError:
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(504, "Timeout", message, details={"retryAfterSeconds": 1, "causes": causes})


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> StatusError:
    """Field errors as a 422. A cause is `(reason, field, message)` with kube-apiserver's message."""
    assert causes, f"an invalid {kind} {name!r} without a cause"
    texts = [f"{field}: {message}" for _, field, message in causes]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    kind_word = f"{kind}.{group}" if group else kind
    details = _details(name, group, kind)
    details["causes"] = [
        {"reason": reason, "message": message, "field": field} for reason, field, message in causes
    ]
    return StatusError(422, "Invalid", f'{kind_word} "{name}" is invalid: {listed}', details=details)


def required(field: str, message: str = "Required value") -> Cause:
    return (
        "FieldValueRequired",
        field,
        message if message.startswith("Required") else f"Required value: {message}",
    )


def bad_value(field: str, value: object, reason: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else orjson.dumps(value).decode()
    return ("FieldValueInvalid", field, f"Invalid value: {shown}: {reason}")


def not_supported(field: str, value: object, allowed: tuple[str, ...]) -> Cause:
    choices = ", ".join(f'"{word}"' for word in allowed)
    return ("FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {choices}')


def duplicate(field: str, value: object) -> Cause:
    return ("FieldValueDuplicate", field, f'Duplicate value: "{value}"')


def forbidden_field(field: str, reason: str) -> Cause:
    return ("FieldValueForbidden", field, f"Forbidden: {reason}")
