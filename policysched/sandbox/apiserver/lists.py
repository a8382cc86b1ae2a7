"""Lists: selection, resource version and pagination.

A continue token holds a version and the key where the next page starts. A page is made from the
collection as it was at that version, so all pages show one state. A token older than the history is
rejected with 410 and a new token that continues at the current state, as in kube-apiserver.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from policysched.sandbox.apiserver.errors import (
    StatusError,
    bad_request,
    forbidden_field,
    gone,
    invalid,
    resource_version_too_large,
)
from policysched.sandbox.apiserver.selectors import ObjectFilter
from policysched.sandbox.apiserver.store import (
    CollectionSnapshot,
    Key,
    ObjectStore,
    StoredCollection,
    StoredObject,
)


@dataclass(frozen=True, slots=True)
class ObjectListPage:
    """Objects in key order, their version, and a token for the next page (empty: the last page)."""

    entries: list[StoredObject]
    version: int
    continue_token: str = ""
    remaining: int | None = None


_CURRENT_VERSION = -1
"""The version in a token that gave up consistency."""


def read_version(text: str | None) -> int | None:
    """Read a resourceVersion parameter; None if absent. Raises a 400 `StatusError` if it is not a number."""
    if text is None or text == "":
        return None
    if not text.isdigit():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def read_number(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"{name} is not a whole number: {text!r}") from None


def list_page(
    store: ObjectStore, resource: str, wanted: ObjectFilter, params: Mapping[str, str]
) -> ObjectListPage:
    """One page of a list, by `limit`, `continue`, `resourceVersion` and `resourceVersionMatch`."""
    collection = store.collection(resource)
    limit = read_number(params, "limit") or 0
    version = read_version(params.get("resourceVersion"))
    match = params.get("resourceVersionMatch", "")
    if params.get("continue"):
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        return _continue_page(store, collection, wanted, params["continue"], limit)
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_request(f"unknown resourceVersionMatch {match!r}")
    if match and version is None:
        raise _forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and version == 0:
        raise _forbidden_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    exact = version and (match == "Exact" or (limit and not match))
    if version and version > store.version:
        raise resource_version_too_large(version, store.version)
    if exact:
        assert version is not None
        if version < collection.compacted:
            raise gone(
                f"The resourceVersion for the provided list is too old: {version} ({collection.compacted})."
            )
        return _page_of(collection.snapshot_at(version, wanted.namespace), version, limit, wanted)
    if version == 0:
        limit = 0
    return _page_of(collection.snapshot_at(store.version, wanted.namespace), store.version, limit, wanted)


def _forbidden_match(reason: str) -> StatusError:
    return invalid("meta.k8s.io", "ListOptions", "", [forbidden_field("resourceVersionMatch", reason)])


def _page_of(snapshot: CollectionSnapshot, version: int, limit: int, wanted: ObjectFilter) -> ObjectListPage:
    """The first `limit` selected objects (0: all), and a token if there are more."""
    entries: list[StoredObject] = []
    for entry in snapshot:
        if not wanted.matches_all and not wanted.matches(entry.obj):
            continue
        if limit > 0 and len(entries) == limit:
            remaining = len(snapshot) - limit if wanted.matches_all else None
            return ObjectListPage(entries, version, _token(version, entries[-1].key), remaining)
        entries.append(entry)
    return ObjectListPage(entries, version)


def _continue_page(
    store: ObjectStore, collection: StoredCollection, wanted: ObjectFilter, token: str, limit: int
) -> ObjectListPage:
    version, after = _read_token(token)
    if version == _CURRENT_VERSION:
        version = store.version
    elif version < collection.compacted:
        message = (
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
            "the results. Continuing with the provided token results in an inconsistent list - objects that were "
            "created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
        )
        raise gone(message, meta={"continue": _token(_CURRENT_VERSION, after)})
    return _page_of(collection.snapshot_at(version, wanted.namespace, after), version, limit, wanted)


def _token(version: int, after: Key) -> str:
    return urlsafe_b64encode(
        orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": list(after)})
    ).decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        read = orjson.loads(urlsafe_b64decode(token.encode()))
        namespace, name = read["start"]
        return int(read["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid: the token was not made by this server") from None
