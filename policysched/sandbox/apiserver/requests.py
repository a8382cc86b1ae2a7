"""Requests: the resource that a path names, and the response format that the Accept header selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from policysched.files import UnreadableFile
from policysched.sandbox.apiserver.errors import (
    StatusError,
    bad_request,
    not_implemented,
    not_served,
    unsupported_media_type,
)
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.protobuf import MEDIA_TYPE, read_protobuf
from policysched.yaml_values import parse_yaml

Form = Literal["json", "table"]


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request. `path` starts with `/`, `params` are decoded, `accept` is the header or empty."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = ""


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """What a path names: a collection (empty `name`), an object, or a subresource."""

    kind: ResourceKind
    namespace: str
    name: str
    subresource: str


class RouteTable:
    """Maps paths to resources."""

    def __init__(self, kinds: Sequence[ResourceKind]):
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        self._cache: dict[str, RequestTarget] = {}

    def find(self, path: str) -> RequestTarget:
        """Find the target of a path. Raises a 404 or 501 `StatusError` if it is not supported."""
        address = self._cache.get(path)
        if address is None:
            address = self._parse(path)
            if not address.name:
                # Cache collections only: they are few and requested often.
                self._cache[path] = address
        return address

    def _parse(self, path: str) -> RequestTarget:
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise not_served(path)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = (*rest, "", "")[:3]
        kind = self._kinds.get((group, version, plural))
        resource = f"{plural}.{version}.{group}" if group else f"{plural}.{version}"
        if kind is None or (len(rest) > 3 and subresource != "proxy"):
            raise not_served(resource if kind is None else path)
        if subresource and subresource not in kind.subresources:
            resource = f"{plural}/{subresource}"
            raise not_implemented(resource) if kind.custom is None else not_served(resource)
        if namespace and not kind.namespaced:
            raise not_served(f"{resource} in a namespace")
        if name and kind.namespaced and not namespace:
            raise not_served(f"{resource} without a namespace")
        return RequestTarget(kind, namespace, name, subresource)


def wanted_form(accept: str) -> Form:
    """The first supported format of the Accept header. Raises a 406 `StatusError` if there is none."""
    if not accept:
        return "json"
    for choice in accept.split(","):
        media_type, *parameters = (part.strip() for part in choice.split(";"))
        options = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media_type == "application/json" and options.get("as") == "Table":
            if options.get("g") == "meta.k8s.io" and options.get("v") == "v1":
                return "table"
        elif media_type in ("application/json", "application/*", "*/*") and "as" not in options:
            return "json"
    message = f"only the following media types are accepted: application/json (asked for: {accept})"
    raise StatusError(406, "NotAcceptable", message)


def wants_aggregated_discovery(accept: str) -> bool:
    return "as=APIGroupDiscoveryList" in accept and "v=v2" in accept.replace("v=v2beta1", "")


def read_body(call: ServerRequest) -> Any:
    """Decode a body of JSON, YAML or protobuf to JSON values."""
    media_type = call.content_type.partition(";")[0].strip()
    if not call.body:
        return {}
    if media_type == MEDIA_TYPE:
        return read_protobuf(call.body)
    try:
        if media_type in ("application/yaml", "application/apply-patch+yaml"):
            return parse_yaml(call.body.decode())
        if media_type == "application/json" or media_type.endswith("patch+json"):
            body = orjson.loads(call.body)
            return without_nulls(body) if media_type == "application/json" and b"null" in call.body else body
    except (orjson.JSONDecodeError, UnreadableFile, ValueError, RecursionError) as error:
        raise bad_request(f"couldn't read the body as {media_type}: {error}") from None
    raise unsupported_media_type(
        f"the body of the request was in an unknown format - accepted media types include: application/json, "
        f"application/yaml (not {media_type or 'nothing'})"
    )


def without_nulls(value: Any) -> Any:
    """Remove null fields, which kube-apiserver treats as absent. Statuses keep them, as kube-apiserver shows them."""
    if isinstance(value, dict):
        return {
            key: item if key == "status" else without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
