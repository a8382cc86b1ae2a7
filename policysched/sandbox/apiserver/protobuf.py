"""Decodes bodies in Kubernetes' protobuf encoding to JSON values.

kubectl's generators (`kubectl create configmap`, `kubectl create deployment`, ...) always send protobuf;
responses may be JSON. A body has four magic bytes and an envelope with the kind and the message. The
fields are in `protobuf_fields.json`, generated from the API's Go types by
`tests/contract/protobuf_fields/main.go`.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from policysched.protobuf_wire import wire_fields
from policysched.sandbox.apiserver.errors import bad_request, unsupported_media_type

Json = dict[str, Any]
WireFields = dict[int, Any]
"""Field numbers to raw values."""

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


@cache
def _fields() -> Json:
    text = files("policysched.sandbox.apiserver").joinpath("protobuf_fields.json").read_text(encoding="utf-8")
    fields: Json = json.loads(text)
    return fields


def read_protobuf(body: bytes) -> Json:
    """Decode a protobuf body. Raises a 400 `StatusError` if it is malformed, a 415 for an unknown kind."""
    if not body.startswith(_MAGIC):
        raise bad_request(f"a body of type {MEDIA_TYPE} begins with k8s and a zero byte")
    try:
        envelope = dict(wire_fields(body[len(_MAGIC) :]))
        type_meta = {number: bytes(value).decode() for number, value in wire_fields(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        kinds = _fields()["kinds"]
        message = kinds.get(f"{api_version}/{kind}") or kinds.get(kind)
        if message is None:
            raise unsupported_media_type(
                f"the sandbox reads {api_version} {kind} as JSON only, not as {MEDIA_TYPE}"
            )
        return {"apiVersion": api_version, "kind": kind, **_message(message, envelope.get(2, b""))}
    except (IndexError, TypeError, ValueError) as error:
        raise bad_request(f"couldn't read the body as {MEDIA_TYPE}: {error}") from None


def _message(name: str, data: bytes) -> Any:
    if name in _SPECIAL:
        return _SPECIAL[name](dict(wire_fields(data)))
    table = _fields()["messages"][name]
    obj: Json = {}
    for number, raw in wire_fields(data):
        field = table.get(str(number))
        if field is None:
            continue
        json_name, field_type, flags = field
        if field_type.startswith("map:"):
            entry = dict(wire_fields(raw))
            key = bytes(entry.get(1, b"")).decode()
            obj.setdefault(json_name, {})[key] = _value(field_type[4:], entry.get(2, b""))
            continue
        value = _value(field_type, raw)
        if "n" in flags:
            obj.update(value)
        elif "r" in flags:
            obj.setdefault(json_name, []).append(value)
        elif value is not None and not ("z" in flags and value in ("", 0, False)):
            obj[json_name] = value
    return obj


def _value(field_type: str, raw: Any) -> Any:
    match field_type:
        case "s":
            return bytes(raw).decode()
        case "i":
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "b":
            return bool(raw)
        case "y":
            return b64encode(raw).decode()
    return _message(field_type, raw)


def _time(fields: WireFields) -> str | None:
    """A zero time has no fields."""
    if not fields:
        return None
    return datetime.fromtimestamp(_value("i", fields.get(1, 0)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(fields: WireFields) -> str | None:
    timestamp = _time(fields)
    return None if timestamp is None else f"{timestamp[:-1]}.{fields.get(2, 0) // 1000:06d}Z"


def _int_or_string(fields: WireFields) -> int | str:
    return bytes(fields.get(3, b"")).decode() if fields.get(1, 0) else int(_value("i", fields.get(2, 0)))


_SPECIAL: dict[str, Callable[[WireFields], Any]] = {
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": lambda fields: bytes(fields.get(1, b"")).decode(),
    "IntOrString": _int_or_string,
    "Duration": lambda fields: _value("i", fields.get(1, 0)),
    "RawExtension": lambda fields: json.loads(fields.get(1, b"") or b"null"),
    "FieldsV1": lambda fields: json.loads(fields.get(1, b"") or b"{}"),
}
