"""The identity of an object that has a megabyte of metadata: finalizers, owners or managed fields.

The rest of such an answer is not parsed, which takes up to 13 ms of the main loop for a megabyte.
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
"""The API server writes the fields of metadata in this order, and all that a tenant makes long after them."""


def large_metadata(body: bytes) -> Json | None:
    """The UID, the version and the generation of the object in a large answer that has metadata alone, or of the object that was
    selected by its name in a list. None: the answer is small, or another one."""
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
    return {"uid": uid.decode(), "resourceVersion": version.decode(), **generated}
