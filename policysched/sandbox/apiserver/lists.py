"""Lists: which objects, at which version, and how a list is continued.

A continue token names a version and the key after which the next page begins. The page is made from the collection as
it was at that version, so all pages of a list show one state; a token older than the history is refused with 410 and
comes with another that continues in the present, as the real server offers it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from policysched.sandbox.apiserver.errors import (
    Refusal,
    bad_request,
    gone,
    invalid,
    may_not,
    too_large_version,
)
from policysched.sandbox.apiserver.selectors import Filter
from policysched.sandbox.apiserver.store import Collection, Entry, Key, Past, Store


@dataclass(frozen=True, slots=True)
class Page:
    """Objects in key order, the version that they show, and what follows (`continue_token` empty: nothing)."""

    entries: list[Entry]
    version: int
    continue_token: str = ""
    remaining: int | None = None


_PRESENT = -1
"""The version in a token that gave up consistency."""


def read_version(text: str | None) -> int | None:
    """A resourceVersion parameter; None where there is none. Raises a 400 `Refusal` for anything but a number."""
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


def list_page(store: Store, resource: str, wanted: Filter, params: Mapping[str, str]) -> Page:
    """One page of a list, by `limit`, `continue`, `resourceVersion` and `resourceVersionMatch`."""
    collection = store.collection(resource)
    limit = read_number(params, "limit") or 0
    version = read_version(params.get("resourceVersion"))
    match = params.get("resourceVersionMatch", "")
    if params.get("continue"):
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        return _continued(store, collection, wanted, params["continue"], limit)
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_request(f"unknown resourceVersionMatch {match!r}")
    if match and version is None:
        raise _forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and version == 0:
        raise _forbidden_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    exact = version and (match == "Exact" or (limit and not match))
    if version and version > store.version:
        raise too_large_version(version, store.version)
    if exact:
        assert version is not None
        if version < collection.compacted:
            raise gone(
                f"The resourceVersion for the provided list is too old: {version} ({collection.compacted})."
            )
        return _cut(collection.as_of(version, wanted.namespace), version, limit, wanted)
    if version == 0:
        limit = 0
    return _cut(collection.as_of(store.version, wanted.namespace), store.version, limit, wanted)


def _forbidden_match(why: str) -> Refusal:
    return invalid("meta.k8s.io", "ListOptions", "", [may_not("resourceVersionMatch", why)])


def _cut(then: Past, version: int, limit: int, wanted: Filter) -> Page:
    """The first `limit` objects that are wanted (0: all of them), and a token if there are more."""
    entries: list[Entry] = []
    for entry in then:
        if not wanted.takes_all and not wanted.matches(entry.obj):
            continue
        if limit > 0 and len(entries) == limit:
            remaining = len(then) - limit if wanted.takes_all else None
            return Page(entries, version, _token(version, entries[-1].key), remaining)
        entries.append(entry)
    return Page(entries, version)


def _continued(store: Store, collection: Collection, wanted: Filter, token: str, limit: int) -> Page:
    version, after = _read_token(token)
    if version == _PRESENT:
        version = store.version
    elif version < collection.compacted:
        message = (
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
            "the results. Continuing with the provided token results in an inconsistent list - objects that were "
            "created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
        )
        raise gone(message, meta={"continue": _token(_PRESENT, after)})
    return _cut(collection.as_of(version, wanted.namespace, after), version, limit, wanted)


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
