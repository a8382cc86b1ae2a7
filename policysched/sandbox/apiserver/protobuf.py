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
        type_meta = {number: _text(value) for number, value in _fields_of(envelope.get(1)).items()}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        kinds = _fields()["kinds"]
        message = kinds.get(f"{api_version}/{kind}") or kinds.get(kind)
        if message is None:
            raise unsupported_media_type(
                f"the sandbox reads {api_version} {kind} as JSON only, not as {MEDIA_TYPE}"
            )
        return {"apiVersion": api_version, "kind": kind, **_message(message, envelope.get(2))}
    except ValueError as error:
        raise bad_request(f"couldn't read the body as {MEDIA_TYPE}: {error}") from None


def _bytes(raw: object) -> bytes:
    """Raises ValueError: `bytes` of an integer is as many zeros."""
    if raw is not None and not isinstance(raw, bytes):
        raise ValueError(f"an integer in place of bytes: {raw}")
    return raw or b""


def _text(raw: object) -> str:
    return _bytes(raw).decode()


def _fields_of(raw: object) -> WireFields:
    return dict(wire_fields(_bytes(raw)))


def _integer(raw: object) -> int:
    if not isinstance(raw, int):
        raise ValueError("bytes in place of an integer")
    return raw - (1 << 64) if raw >= 1 << 63 else raw


def _message(name: str, data: object) -> Any:
    if name in _SPECIAL:
        return _SPECIAL[name](_fields_of(data))
    table = _fields()["messages"][name]
    obj: Json = {}
    for number, raw in wire_fields(_bytes(data)):
        field = table.get(str(number))
        if field is None:
            continue
        json_name, field_type, flags = field
        if field_type.startswith("map:"):
            entry = _fields_of(raw)
            obj.setdefault(json_name, {})[_text(entry.get(1))] = _value(field_type[4:], entry.get(2))
            continue
        value = _value(field_type, raw)
        if "n" in flags:
            obj.update(value)
        elif "r" in flags:
            obj.setdefault(json_name, []).append(value)
        elif value is not None and not ("z" in flags and value in ("", 0, False)):
            obj[json_name] = value
    return obj


def _value(field_type: str, raw: object) -> Any:
    match field_type:
        case "s":
            return _text(raw)
        case "i":
            return _integer(raw)
        case "b":
            return bool(_integer(raw))
        case "y":
            return b64encode(_bytes(raw)).decode()
    return _message(field_type, raw)


def _time(fields: WireFields) -> str | None:
    """A zero time has no fields."""
    if not fields:
        return None
    return datetime.fromtimestamp(_integer(fields.get(1, 0)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(fields: WireFields) -> str | None:
    timestamp = _time(fields)
    return None if timestamp is None else f"{timestamp[:-1]}.{_integer(fields.get(2, 0)) // 1000:06d}Z"


def _int_or_string(fields: WireFields) -> int | str:
    return _text(fields.get(3)) if fields.get(1, 0) else _integer(fields.get(2, 0))


_SPECIAL: dict[str, Callable[[WireFields], Any]] = {
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": lambda fields: _text(fields.get(1)),
    "IntOrString": _int_or_string,
    "Duration": lambda fields: _integer(fields.get(1, 0)),
    "RawExtension": lambda fields: json.loads(_bytes(fields.get(1)) or b"null"),
    "FieldsV1": lambda fields: json.loads(_bytes(fields.get(1)) or b"{}"),
}
