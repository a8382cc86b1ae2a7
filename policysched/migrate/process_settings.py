"""Translates settings of the process for `policysched run`: leader election, backoff and kubeconfig.

Other fields (request rates, profiling, the number of nodes to score) have no counterpart and are noted.
"""

import re
from collections.abc import Mapping
from typing import Any

from policysched.migrate.located_document import Path
from policysched.migrate.report import ImportReport
from policysched.schemas import findings

_UNIT_S: Mapping[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_KUBE_SCHEDULER_LEASE = "kube-system/kube-scheduler"
_TIMES = (
    ("leaseDuration", "lease_duration_s", 15.0),
    ("renewDeadline", "renew_deadline_s", 10.0),
    ("retryPeriod", "retry_period_s", 2.0),
)

_NOTES: Mapping[str, str] = {
    "parallelism": "a pod is evaluated against all nodes at once, by vector operations",
    "percentageOfNodesToScore": "all nodes are evaluated",
    "enableProfiling": "there is no profiling endpoint",
    "enableContentionProfiling": "there is no profiling endpoint",
    "healthzBindAddress": "use `http` in the settings, or `policysched run --http`, for health and metrics",
    "metricsBindAddress": "use `http` in the settings, or `policysched run --http`, for health and metrics",
    "bindTimeoutSeconds": "a bind is retried until the API server answers",
}


def import_process_settings(report: ImportReport, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the defaults. Other fields are noted in the report."""
    for name, reason in _NOTES.items():
        if name in config:
            report.add_note((name,), name, reason)
    settings: dict[str, Any] = {}
    client = config.get("clientConnection") or {}
    if client.get("kubeconfig"):
        settings["kubeconfig"] = client["kubeconfig"]
    for name in client:
        if name != "kubeconfig" and client[name]:
            report.add_note(
                ("clientConnection", name),
                f"{name} {client[name]}",
                "use `api`, `binding` and `reporting` in the settings to limit requests",
            )
    election = _leader_election(report, config.get("leaderElection") or {})
    if config.get("delayCacheUntilActive"):
        election["delay_cache_until_active"] = True
    if election:
        settings["leader_election"] = election
    if backoff := _backoff(report, config):
        settings["scheduling"] = backoff
    wrong = findings("settings", settings)
    assert not wrong, f"{wrong} in {settings}"
    return settings


def _leader_election(report: ImportReport, leader_election: Mapping[str, Any]) -> dict[str, Any]:
    if leader_election.get("leaderElect") is False:
        return {"enabled": False}
    path = ("leaderElection",)
    election: dict[str, Any] = {}
    times: dict[str, float] = {}
    for option, setting, usual in _TIMES:
        times[setting] = usual
        if option in leader_election:
            times[setting] = election[setting] = parse_duration_s(
                report, ("leaderElection", option), leader_election[option]
            )
    if not times["retry_period_s"] * 1.2 < times["renew_deadline_s"] < times["lease_duration_s"]:
        raise report.document.unusable_file(
            path, "kube-scheduler requires leaseDuration > renewDeadline > 1.2 * retryPeriod"
        )
    if times["lease_duration_s"] < 1:
        raise report.document.unusable_file(
            (*path, "leaseDuration"), "must be at least 1s, because Lease durations are whole seconds"
        )
    if leader_election.get("resourceLock", "leases") != "leases":
        report.add_note(
            (*path, "resourceLock"), f"resourceLock {leader_election['resourceLock']}", "a Lease is used"
        )
    name = leader_election.get("resourceName") or leader_election.get("lockObjectName")
    namespace = (
        leader_election.get("resourceNamespace")
        or leader_election.get("lockObjectNamespace")
        or "kube-system"
    )
    if name and f"{namespace}/{name}" != _KUBE_SCHEDULER_LEASE:
        election["lease"] = f"{namespace}/{name}"
    elif name:
        report.add_note(
            path, _KUBE_SCHEDULER_LEASE, "this is kube-scheduler's Lease; policysched uses its own"
        )
    return election


def parse_duration_s(report: ImportReport, path: Path, text: str) -> float:
    """Read a Go duration, which must be positive and at most 24h."""
    if _DURATION.sub("", text):
        raise report.document.unusable_file(path, f"`{text}` is not a duration such as 15s or 1m30s")
    seconds = go_duration_s(text)
    if not 0 < seconds <= 86400:
        raise report.document.unusable_file(path, f"`{text}` is not between 0 and 24h")
    return int(seconds) if seconds.is_integer() else seconds


def go_duration_s(text: str) -> float:
    """The seconds of a valid Go duration."""
    return round(sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(text)), 9)


def _backoff(report: ImportReport, config: Mapping[str, Any]) -> dict[str, Any]:
    """The backoff settings, in whole seconds. v1alpha1 has none."""
    first, most = config.get("podInitialBackoffSeconds", 1), config.get("podMaxBackoffSeconds", 10)
    if first > most:
        raise report.document.unusable_file(
            ("podMaxBackoffSeconds",), f"{most} is less than podInitialBackoffSeconds, {first}"
        )
    fields = {"podInitialBackoffSeconds": "backoff_initial_s", "podMaxBackoffSeconds": "backoff_max_s"}
    return {setting: config[option] for option, setting in fields.items() if option in config}
