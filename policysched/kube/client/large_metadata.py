"""Reads the identity of an object whose metadata (finalizers, owners, managed fields) can be a megabyte.

The rest of such an answer is not parsed: a megabyte would take up to 13 ms of the main loop.
"""

import re
from typing import Any

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
