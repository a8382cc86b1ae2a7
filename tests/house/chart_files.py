"""Generates the files that the Helm chart shares with `deploy/`: Helm reads no file outside of a chart."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from policysched.schemas import schema

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "chart"

MANIFESTS = {
    f"{name}.yaml": f"{name}.yaml"
    for name in (
        *("serviceaccount", "rbac", "preemption", "priorityclass", "last-good", "lease", "deployment"),
        *(
            "flowschemas",
            "networkpolicy",
            "poddisruptionbudget",
            "metrics-reader",
            "metrics-api",
            "settings",
            "example-policies",
        ),
    )
} | {"team-policies.yaml": "team-policies/rbac.yaml", "alerts.yaml": "alerts/policysched.rules.yaml"}
"""File of the chart's `manifests/` to file of `deploy/`."""

OF_THE_CHART = {
    "policies": False,
    "last_good": False,
    "http": False,
    "leader_election": {"properties": {"lease": False}},
}
"""Settings that the chart sets: the roles, the probes and the policies' hook depend on them."""


def copied(source: str) -> str:
    return f"# Generated from deploy/{source}: edit that.\n{(DEPLOY / source).read_text(encoding='utf-8')}"


def values_schema() -> str:
    """The schema of the values with that of the settings in it. Helm is written in Go, whose patterns have no lookahead, and whose
    `$` matches only at the end."""
    values: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings = json.loads(json.dumps(schema("settings")).replace(r"$(?!\\n)", "$"))
    values["$defs"]["settings"] = {"$id": "settings.json", **settings}
    values["properties"]["settings"] = {"$ref": "settings.json", "properties": OF_THE_CHART}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


FILES: Mapping[str, Callable[[], str]] = {
    "deploy/chart/values.schema.json": values_schema,
    **{f"deploy/chart/manifests/{name}": partial(copied, source) for name, source in MANIFESTS.items()},
}
