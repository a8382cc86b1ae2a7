"""Extenders: HTTP services that kube-scheduler asks, as settings (where each is) and statements (that it is asked).

A score that an extender does not give counts nothing in kube-scheduler: `missing worst`. Of its verbs preempt and bind have no
counterpart, and they are listed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from policysched.lang.parse.keywords import RESERVED_NAMES
from policysched.migrate import alternatives
from policysched.migrate.draft import WEIGHT_MAX
from policysched.migrate.located_document import Path
from policysched.migrate.process_settings import parse_duration_s
from policysched.migrate.report import ImportReport

_TLS = {"caFile": "ca", "certFile": "certificate", "keyFile": "key", "serverName": "server_name"}
_NOT_IMPORTED = {
    "preemptVerb": "a pod about which an extender has a say evicts nobody",
    "bindVerb": "pods are bound by policysched itself",
}
_TIMEOUT_MAX_S = 86400


@dataclass(slots=True)
class ImportedExtenders:
    """`settings` by the name that they get here; `statements` are the same for every policy, and so are the resources that extenders
    see to in the scheduler's stead."""

    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    ignored_resources: list[str] = field(default_factory=list)


def import_extenders(
    report: ImportReport, given: list[Mapping[str, Any]], taken: Mapping[str, dict[str, Any]]
) -> ImportedExtenders:
    """Lists what cannot be expressed of them. The settings contain what is `taken` already."""
    found = ImportedExtenders(dict(taken))
    for index, one in enumerate(given):
        path: Path = ("extenders", index)
        _report_not_imported(report, path, one)
        found.ignored_resources += [
            resource["name"]
            for resource in one.get("managedResources") or ()
            if resource.get("ignoredByScheduler")
        ]
        if not one.get("filterVerb") and not one.get("prioritizeVerb"):
            report.add_note(
                path, f"extender {one['urlPrefix']}", "it is asked neither to filter nor to score"
            )
            continue
        name = _extender_name(one, found.settings)
        found.settings[name] = _settings(report, path, one)
        statement = f"extender {name}"
        if one.get("prioritizeVerb"):
            statement += f" weight {_weight(report, path, one)} missing worst"
        found.statements.append(statement)
        instead = alternatives.extender_alternative(
            [one.get("filterVerb") or "", one.get("prioritizeVerb") or ""]
        )
        said = f"asked by `extender {name}`, which --settings writes the address of"
        report.add_note(
            path,
            f"extender {one['urlPrefix']}",
            f"{said}; as rules of a policy: {instead}" if instead else said,
        )
    return found


def _report_not_imported(report: ImportReport, path: Path, one: Mapping[str, Any]) -> None:
    for verb, why in _NOT_IMPORTED.items():
        if one.get(verb):
            report.add_not_imported((*path, verb), f"verb {one[verb]} of extender {one['urlPrefix']}", why)


def _settings(report: ImportReport, path: Path, one: Mapping[str, Any]) -> dict[str, Any]:
    url = one["urlPrefix"]
    if not re.match(r"https?://[^ ]+$", url):
        raise report.document.unusable_file((*path, "urlPrefix"), f"`{url}` is no http or https URL")
    settings: dict[str, Any] = {"url": url}
    for theirs, ours in (("filterVerb", "filter"), ("prioritizeVerb", "prioritize")):
        if one.get(theirs):
            settings[ours] = one[theirs]
    if one.get("httpTimeout"):
        settings["timeout_s"] = _timeout_s(report, (*path, "httpTimeout"), one["httpTimeout"])
    if one.get("ignorable"):
        settings["ignorable"] = True
    if not one.get("nodeCacheCapable"):
        settings["whole_nodes"] = True
    resources = [resource["name"] for resource in one.get("managedResources") or ()]
    if resources:
        settings["resources"] = resources
    if url.startswith("https:"):
        tls = _tls(report, path, one)
        if tls:
            settings["tls"] = tls
    return settings


def _tls(report: ImportReport, path: Path, one: Mapping[str, Any]) -> dict[str, Any]:
    given = one.get("tlsConfig") or {}
    tls = {ours: given[theirs] for theirs, ours in _TLS.items() if given.get(theirs)}
    for data, ours in (("caData", "ca"), ("certData", "certificate"), ("keyData", "key")):
        if given.get(data):
            report.add_not_imported(
                (*path, "tlsConfig", data), data, f"write it to a file, and name that file as `{ours}`"
            )
    if ("certificate" in tls) != ("key" in tls):
        raise report.document.unusable_file((*path, "tlsConfig"), "a certificate and its key belong together")
    authority = "ca" in tls or given.get("caData")
    if given.get("insecure") or not authority:
        tls["insecure"] = True
        why = "its certificate is not verified, as by kube-scheduler; name a `ca` instead of `insecure`"
        report.add_note((*path, "tlsConfig"), f"extender {one['urlPrefix']}", why)
    return tls


def _timeout_s(report: ImportReport, path: Path, given: str | int) -> float:
    """A duration as Go writes it; the old Policy has nanoseconds."""
    if isinstance(given, str):
        return parse_duration_s(report, path, given)
    seconds = given / 1e9
    if not 0 < seconds <= _TIMEOUT_MAX_S:
        raise report.document.unusable_file(path, f"{given} ns is not between 0 and 24h")
    return int(seconds) if seconds.is_integer() else seconds


def _weight(report: ImportReport, path: Path, one: Mapping[str, Any]) -> int:
    weight: int = one.get("weight", 1)
    if not 0 < weight <= WEIGHT_MAX:
        raise report.document.unusable_file(
            (*path, "weight"), f"{weight} is not between 1 and {WEIGHT_MAX:,}"
        )
    return weight


def _extender_name(one: Mapping[str, Any], taken: Mapping[str, object]) -> str:
    """After its host, or after what it is asked where that is this machine or an address."""
    host = urlsplit(one["urlPrefix"]).hostname or ""
    first = host.partition(".")[0]
    if first == "localhost" or not re.search("[a-z]", first) or ":" in host:
        first = (one.get("filterVerb") or one.get("prioritizeVerb") or "").rstrip("/").rpartition("/")[2]
    base = re.sub(r"\W", "_", first, flags=re.ASCII) or "extender"
    if not re.match("[A-Za-z_]", base) or base in RESERVED_NAMES:
        base = f"extender_{base}"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
