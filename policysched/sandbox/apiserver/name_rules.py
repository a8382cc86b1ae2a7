"""Validation of names, labels and annotations: DNS names and qualified names such as `example.com/tier`."""

import re
from typing import Any

from policysched.sandbox.apiserver.errors import Cause, bad_value, forbidden_field, required
from policysched.sandbox.apiserver.kinds import ResourceKind

Json = dict[str, Any]

_LABEL_TEXT = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL = re.compile(_LABEL_TEXT)
_SUBDOMAIN_TEXT = rf"{_LABEL_TEXT}(\.{_LABEL_TEXT})*"
_SUBDOMAIN = re.compile(_SUBDOMAIN_TEXT)
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN_TEXT}')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL_TEXT}')"
)
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def metadata_causes(kind: ResourceKind, obj: Json) -> list[Cause]:
    metadata = obj["metadata"]
    name = metadata.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    causes: list[Cause] = []
    if not isinstance(name, str):
        return [bad_value("metadata.name", name, "must be a string")]
    if kind.rules == "namespaces":
        if not LABEL.fullmatch(name) or len(name) > 63:
            causes.append(bad_value("metadata.name", name, LABEL_RULE))
    elif not _SUBDOMAIN.fullmatch(name):
        causes.append(bad_value("metadata.name", name, _SUBDOMAIN_RULE))
    elif len(name) > 253:
        causes.append(bad_value("metadata.name", name, "must be no more than 253 characters"))
    causes += label_causes("metadata.labels", metadata.get("labels") or {})
    causes.extend(
        bad_value("metadata.annotations", key, QUALIFIED_RULE)
        for key in metadata.get("annotations") or {}
        if not _is_qualified(key.lower())
    )
    return causes


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        return False
    return len(name) <= 63 and QUALIFIED.fullmatch(name) is not None


def label_causes(path: str, labels: Json) -> list[Cause]:
    causes = [bad_value(path, key, QUALIFIED_RULE) for key in labels if not _is_qualified(key)]
    for value in labels.values():
        if len(value) > 63:
            causes.append(bad_value(path, value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.fullmatch(value):
            causes.append(bad_value(path, value, _LABEL_VALUE_RULE))
    return causes


def changed_metadata_causes(old: Json, new: Json) -> list[Cause]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
    if added:
        reason = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
        return [forbidden_field("metadata.finalizers", reason)]
    return []
