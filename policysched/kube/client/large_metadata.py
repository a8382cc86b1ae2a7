"""Reads the identity of an object whose metadata (finalizers, owners, managed fields) can be a megabyte.

The rest of such an answer is not parsed: a megabyte would take up to 13 ms of the main loop.
"""

import re
from typing import Any

import orjson

Json = dict[str, Any]

LARGE_METADATA_BYTES = 32 * 1024

_IDENTITY = (
    rb'\{"name":"[^"\\]*",(?:"generateName":"[^"\\]*",)?(?:"namespace":"[^"\\]*",)?'
    rb'"uid":"([^"\\]*)","resourceVersion":"([^"\\]*)"(?:,"generation":([0-9]{1,18}))?[,}]'
)
_TYPE = rb'"kind":"PartialObjectMetadata","apiVersion":"[\w./]+",'
_OBJECT = re.compile(rb'\{%b"metadata":%b' % (_TYPE, _IDENTITY))
_LIST_OF_ONE = re.compile(
    rb'\{"kind":"PartialObjectMetadataList","apiVersion":"[\w./]+","metadata":\{"resourceVersion":"[^"\\]*"\},'
    rb'"items":\[\{(?:%b)?"metadata":%b' % (_TYPE, _IDENTITY)
)
"""The API server writes the fields of metadata in this order, and those that a tenant can make long after them."""
_METADATA_LIST = re.compile(rb'\{"kind":"PartialObjectMetadataList",[^\[]*"items":\[')
_METADATA = b'"metadata":{"name":"'
_NAMED = re.compile(
    rb'"metadata":\{"name":"([^"\\]*)",(?:"generateName":"[^"\\]*",)?(?:"namespace":"([^"\\]*)",)?'
    rb'"uid":"([^"\\]*)","resourceVersion":"([^"\\]*)"'
)
"""No tenant can write its begin: the values of labels and annotations are texts, and all fields of managed fields have a prefix."""


def large_metadata(body: bytes) -> Json | None:
    """The answer with only the UID, version and generation of its object: a large PartialObjectMetadata, or a list of one that was
    selected by name. None if the answer is small or of another kind."""
    if len(body) < LARGE_METADATA_BYTES:
        return None
    if (begun := _OBJECT.match(body)) is not None:
        return {"metadata": _identity(begun)}
    if (begun := _LIST_OF_ONE.match(body)) is not None:
        return {"items": [{"metadata": _identity(begun)}]}
    return None


def _identity(begun: re.Match[bytes]) -> Json:
    uid, version, generation = begun.groups()
    generated = {} if generation is None else {"generation": int(generation)}
    return {
        "uid": uid.decode(errors="replace"),
        "resourceVersion": version.decode(errors="replace"),
        **generated,
    }


def metadata_list(body: bytes) -> Json | None:
    """The answer with only the name, namespace, UID and version of each object. None if it is not a PartialObjectMetadataList,
    or written otherwise."""
    begun = _METADATA_LIST.match(body)
    if begun is None:
        return None
    items, at = list[Json](), begun.end()
    while (at := body.find(_METADATA, at)) >= 0:
        named = _NAMED.match(body, at)
        if named is None:
            return None
        name, namespace, uid, version = (text.decode(errors="replace") for text in named.groups(default=b""))
        items.append(
            {"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}}
        )
        at = named.end()
    if not items and not body.endswith((b"[]}", b"[]}\n")):
        return None
    try:
        return {**orjson.loads(body[: begun.end()] + b"]}"), "items": items}
    except orjson.JSONDecodeError:
        return None
