"""Extenders: HTTP services that kube-scheduler asks. This version calls none; each is listed with what would take its
place."""

from collections.abc import Mapping
from typing import Any

from policysched.app.importing import needs
from policysched.app.importing.report import Report

_VERBS = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")


def report_extenders(report: Report, extenders: list[Mapping[str, Any]]) -> None:
    for index, one in enumerate(extenders):
        verbs = {verb: one[verb] for verb in _VERBS if one.get(verb)}
        said = [f"{verb.removesuffix('Verb')} {called}" for verb, called in verbs.items()]
        if "prioritizeVerb" in verbs:
            said.append(f"weight {one.get('weight', 1)}")
        resources = ", ".join(resource["name"] for resource in one.get("managedResources") or ())
        said += [f"for {resources}"] if resources else []
        instead = needs.of_extender(verbs)
        report.lose(
            ("extenders", index),
            f"extender {one['urlPrefix']} ({', '.join(said) or 'without verbs'})",
            "this version calls no extenders" + (f"; {instead}" if instead else ""),
        )
