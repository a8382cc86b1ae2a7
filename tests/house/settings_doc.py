"""Generates the table of settings from the schema, the flags of `run` and the defaults in the code."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from policysched.cli.run import run
from policysched.config.layers import ENVIRONMENT_PREFIX
from policysched.extender.handlers import ExtenderLimits
from policysched.kube.leader_election import LeaseSettings
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.write.bind import BindSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.lang.check.limits import POLICY_COST_MAX
from policysched.recording.recording_settings import RecordingSettings
from policysched.scheduler.limits import SchedulerLimits
from policysched.schemas import schema

_DEFAULTS: Mapping[str, object] = {
    "leader_election": LeaseSettings(),
    "api": ReflectorSettings(),
    "binding": BindSettings(),
    "reporting": ReporterSettings(),
    "scheduling": SchedulerLimits(),
    "extender_server": ExtenderLimits(),
    "recording": RecordingSettings(Path()),
}
"""The dataclass of each section. Settings without a default in the code have it in the schema's
description.
"""

_FLAG_OF = {
    "log.format": "--log-format",
    "log.level": "--log-level",
    "leader_election.enabled": "--leader-elect",
    "http_server.insecure": "--insecure-http",
    "recording.folder": "--record",
}

SAID: Mapping[str, str] = {
    "kubeconfig": "The kubeconfig file; in a pod the default is its service account.",
    "context": "A context of the kubeconfig other than the current one.",
    "log.format": "One line per message, as text or JSON.",
    "log.level": "The lowest level that is logged.",
    "leader_election.enabled": "Whether a Lease is required to make decisions.",
    "leader_election.lease": "The Lease to hold.",
    "leader_election.lease_duration_s": "After this time without a renewal another process may take over. At least 1.",
    "leader_election.renew_deadline_s": "After this time without a successful renewal a leader exits.",
    "leader_election.delay_cache_until_active": "Whether a process reads the cluster only once it leads, as kube-scheduler's `delayCacheUntilActive`. By default a standby reads it all the time, so that it takes over sooner, and takes about as much memory as the leader.",
    "leader_election.retry_period_s": "Interval of renewals, and of attempts to acquire the Lease.",
    "api.connections_max": "Maximum number of connections to the API server. Writes need a quarter more than `binding.concurrent_binds_max`, and up to 220 while webhooks of many namespaces hang.",
    "api.page_size": "Objects per page of a list.",
    "binding.concurrent_binds_max": "Maximum number of concurrent bind requests. Namespaces with few binds in flight and without failures may use up to a quarter more, and there are up to twice as many while webhooks hang.",
    "reporting.concurrent_writes_max": "Maximum number of concurrent writes of events and conditions, three quarters of them for one namespace.",
    "reporting.burst": "Maximum burst of writes after a quiet period.",
    "reporting.queued_binds_max": "While more binds than this are waiting, 50 events and conditions are written a second, because binds have priority.",
    "reporting.queued_events_max": "Events beyond this number are dropped and counted.",
    "reporting.series_update_interval_s": "Minimum interval between updates of the count of a repeated event.",
    "scheduling.backoff_initial_s": "Backoff after the first failed attempt of a pod; doubled with each further one.",
    "scheduling.backoff_max_s": "Maximum backoff.",
    "scheduling.binds_in_flight_max": "While more binds than this are in flight, decisions pause for namespaces with a tenth of it or more, and for lower priorities.",
    "scheduling.gang_report_delay_s": "Delay before missing members of a gang are reported.",
    "scheduling.decision_records_max": "Number of decision records that `/decisions` keeps.",
    "check_timeout_s": "CPU time limit of the check of all texts. Texts that are not checked within it are rejected.",
    "policy_check_timeout_s": "CPU time limit of the check of one text. A text that exceeds it is rejected.",
    "shutdown_timeout_s": "Maximum wait for writes that may still be carried out when the process stops. If it is shorter than 12 s, the Lease may be left to expire.",
}
"""Defaults and notes that the schema lacks. A test checks that exactly these are missing there."""

_OWN_DEFAULTS = {
    "recording.folder": "",
    "recording.bytes_max": "1 GiB",
    "recording.file_bytes_max": "64 MiB",
    "recording.age_max_s": "604800",
    "policies": "required",
    "last_good": "`policies` with `-last-good`",
    "leader_election.enabled": "true",
    "leader_election.delay_cache_until_active": "false",
    "leader_election.lease": "kube-system/policysched",
    "http_server.insecure": "false",
    "http_server.connections_max": "256",
    "extender_server.scheduler_names": "default-scheduler",
    "log.format": "text",
    "log.level": "info",
    "api.connections_max": "256",
    "check_timeout_s": "20",
    "policy_check_timeout_s": "5",
    "policy_cost_max": f"{POLICY_COST_MAX}",
    "shutdown_timeout_s": "25",
}


def table() -> str:
    lines = ["| setting | flag | default | |", "|---|---|---|---|"]
    for name, field in fields():
        lines.append(f"| `{name}` | {_flag(name)} | {default(name)} | {_said(name, field)} |")
    example = f"{ENVIRONMENT_PREFIX}LEADER_ELECTION__ENABLED"
    return (
        "\n".join(lines) + f"\n\nAs a variable: the prefix, and two underscores for a dot: `{example}=false`."
    )


def fields() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every setting by its path."""
    for name, field in schema("settings")["properties"].items():
        if "properties" in field and "description" not in field:
            yield from (
                (f"{name}.{inner}", field_schema) for inner, field_schema in field["properties"].items()
            )
        else:
            yield name, field


def default(name: str) -> str:
    if name in _OWN_DEFAULTS:
        return _OWN_DEFAULTS[name]
    section, _, inner = name.partition(".")
    value = getattr(_DEFAULTS.get(section), inner, None) if inner else None
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _flag(name: str) -> str:
    flag = _FLAG_OF.get(name, f"--{name.rpartition('.')[2].replace('_', '-')}")
    known = {option for param in run.params if isinstance(param, click.Option) for option in param.opts}
    return f"`{flag}`" if flag in known else ""


def _said(name: str, field: Mapping[str, Any]) -> str:
    text = field.get("description") or SAID[name]
    choices = field.get("enum")
    return f"{text} ({', '.join(choices)})" if choices else text
