"""Extenders: HTTP services called by kube-scheduler, imported as settings and `extender` statements.

A score that an extender does not return counts as zero in kube-scheduler: `missing worst`. The verbs
preempt and bind have no counterpart and are reported.
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
    "preemptVerb": "a pod that an extender handles does not preempt",
    "bindVerb": "policysched binds pods itself",
}
_TIMEOUT_MAX_S = 86400


@dataclass(slots=True)
class ImportedExtenders:
    """Settings by the name of the extender, and what every policy of the file has in common.

    `ignored_resources` are handled by extenders and ignored by the scheduler.
    """

    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    ignored_resources: list[str] = field(default_factory=list)


def import_extenders(
    report: ImportReport, extenders: list[Mapping[str, Any]], taken: Mapping[str, dict[str, Any]]
) -> ImportedExtenders:
    """Import extenders and report what cannot be expressed. The settings include `taken`."""
    imported = ImportedExtenders(dict(taken))
    for index, extender in enumerate(extenders):
        path: Path = ("extenders", index)
        _report_not_imported(report, path, extender)
        imported.ignored_resources += [
            resource["name"]
            for resource in extender.get("managedResources") or ()
            if resource.get("ignoredByScheduler")
        ]
        if not extender.get("filterVerb") and not extender.get("prioritizeVerb"):
            report.add_note(path, f"extender {extender['urlPrefix']}", "it neither filters nor scores")
            continue
        name = _extender_name(extender, imported.settings)
        imported.settings[name] = _settings(report, path, extender)
        statement = f"extender {name}"
        if extender.get("prioritizeVerb"):
            statement += f" weight {_weight(report, path, extender)} missing worst"
        imported.statements.append(statement)
        instead = alternatives.extender_alternative(
            [extender.get("filterVerb") or "", extender.get("prioritizeVerb") or ""]
        )
        reason = f"called by `extender {name}`; --settings writes its address"
        report.add_note(
            path,
            f"extender {extender['urlPrefix']}",
            f"{reason}; as rules of a policy: {instead}" if instead else reason,
        )
    return imported


def _report_not_imported(report: ImportReport, path: Path, extender: Mapping[str, Any]) -> None:
    for verb, reason in _NOT_IMPORTED.items():
        if extender.get(verb):
            report.add_not_imported(
                (*path, verb), f"verb {extender[verb]} of extender {extender['urlPrefix']}", reason
            )


def _settings(report: ImportReport, path: Path, extender: Mapping[str, Any]) -> dict[str, Any]:
    url = extender["urlPrefix"]
    if not re.match(r"https?://[^ ]+$", url):
        raise report.document.unusable_file((*path, "urlPrefix"), f"`{url}` is not an http or https URL")
    settings: dict[str, Any] = {"url": url}
    for verb, setting in (("filterVerb", "filter"), ("prioritizeVerb", "prioritize")):
        if extender.get(verb):
            settings[setting] = extender[verb]
    if extender.get("httpTimeout"):
        settings["timeout_s"] = _timeout_s(report, (*path, "httpTimeout"), extender["httpTimeout"])
    if extender.get("ignorable"):
        settings["ignorable"] = True
    if not extender.get("nodeCacheCapable"):
        settings["send_node_objects"] = True
    resources = [resource["name"] for resource in extender.get("managedResources") or ()]
    if resources:
        settings["resources"] = resources
    if url.startswith("https:"):
        tls = _tls(report, path, extender)
        if tls:
            settings["tls"] = tls
    return settings


def _tls(report: ImportReport, path: Path, extender: Mapping[str, Any]) -> dict[str, Any]:
    tls_config = extender.get("tlsConfig") or {}
    tls = {setting: tls_config[option] for option, setting in _TLS.items() if tls_config.get(option)}
    for data, setting in (("caData", "ca"), ("certData", "certificate"), ("keyData", "key")):
        if tls_config.get(data):
            report.add_not_imported(
                (*path, "tlsConfig", data), data, f"write it to a file and set `{setting}` to its path"
            )
    if ("certificate" in tls) != ("key" in tls):
        raise report.document.unusable_file(
            (*path, "tlsConfig"), "a certificate needs its key, and a key its certificate"
        )
    authority = "ca" in tls or tls_config.get("caData")
    if tls_config.get("insecure") or not authority:
        tls["insecure"] = True
        reason = "its certificate is not verified, as in kube-scheduler; set `ca` instead of `insecure`"
        report.add_note((*path, "tlsConfig"), f"extender {extender['urlPrefix']}", reason)
    return tls


def _timeout_s(report: ImportReport, path: Path, timeout: str | int) -> float:
    """Read a Go duration, or the nanoseconds of the legacy Policy."""
    if isinstance(timeout, str):
        return parse_duration_s(report, path, timeout)
    seconds = timeout / 1e9
    if not 0 < seconds <= _TIMEOUT_MAX_S:
        raise report.document.unusable_file(path, f"{timeout} ns is not between 0 and 24h")
    return int(seconds) if seconds.is_integer() else seconds


def _weight(report: ImportReport, path: Path, extender: Mapping[str, Any]) -> int:
    weight: int = extender.get("weight", 1)
    if not 0 < weight <= WEIGHT_MAX:
        raise report.document.unusable_file(
            (*path, "weight"), f"{weight} is not between 1 and {WEIGHT_MAX:,}"
        )
    return weight


def _extender_name(extender: Mapping[str, Any], taken: Mapping[str, object]) -> str:
    """A name after the extender's host, or after its verb if the host is localhost or an address."""
    host = urlsplit(extender["urlPrefix"]).hostname or ""
    first = host.partition(".")[0]
    if first == "localhost" or not re.search("[a-z]", first) or ":" in host:
        first = (
            (extender.get("filterVerb") or extender.get("prioritizeVerb") or "")
            .rstrip("/")
            .rpartition("/")[2]
        )
    base = re.sub(r"\W", "_", first[:40], flags=re.ASCII) or "extender"  # names have a limit
    if not re.match("[A-Za-z_]", base) or base in RESERVED_NAMES:
        base = f"extender_{base}"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
