"""The table of settings, from the schema that they are checked against, the flags of `run` and the defaults in the code."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from policysched.cli.run import run
from policysched.config.layers import ENVIRONMENT_PREFIX
from policysched.extender.handlers import ExtenderLimits
from policysched.kube.leader_election import LeaseSettings
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.write.bind import BindSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.scheduler.limits import SchedulerLimits
from policysched.schemas import schema

_DEFAULTS: Mapping[str, object] = {
    "leader_election": LeaseSettings(),
    "api": ReflectorSettings(),
    "binding": BindSettings(),
    "reporting": ReporterSettings(),
    "scheduling": SchedulerLimits(),
    "extender_server": ExtenderLimits(),
}
"""The dataclass of each section. What has no default here says it in the schema's words."""

_FLAG_OF = {
    "log.format": "--log-format",
    "log.level": "--log-level",
    "leader_election.enabled": "--leader-elect",
}

SAID: Mapping[str, str] = {
    "kubeconfig": "How to reach the cluster; in a pod its service account.",
    "context": "A context of the kubeconfig other than the current one.",
    "log.format": "One line an occurrence, for people or as JSON.",
    "log.level": "The least that is said.",
    "leader_election.enabled": "Whether to hold a Lease before deciding.",
    "leader_election.lease": "The Lease to hold.",
    "leader_election.duration_s": "After so long without a renewal another process takes over. At least 1.",
    "leader_election.renew_deadline_s": "After so long without a successful renewal a leader gives up.",
    "leader_election.retry_s": "How often it is renewed, or asked for.",
    "api.connections_max": "Connections to the API server.",
    "api.page_size": "Objects a page of a list.",
    "binding.binders": "Binds under way at a time.",
    "reporting.writers": "Events and conditions under way at a time.",
    "reporting.burst": "How many may be written at once after a quiet time.",
    "reporting.held_back_above": "With more binds than this waiting, nothing is reported: binding comes first.",
    "reporting.events_waiting_max": "More events than this are dropped, and counted.",
    "reporting.series_every_s": "How often at most the count of a repeated event is written.",
    "scheduling.backoff_initial_s": "How long a pod waits after its first failed attempt; doubled with each.",
    "scheduling.backoff_max_s": "The longest such wait.",
    "scheduling.binds_in_flight_max": "Nothing is decided while more binds than this wait for an answer.",
    "scheduling.gang_report_delay_s": "A gang that is still gathering says so only after this long.",
    "scheduling.decisions_kept": "How many records `/decisions` has.",
    "compile_timeout_s": "A policy that takes longer to compile, in processor time, is refused.",
    "stop_wait_s": "How long a stop waits for binds under way.",
}
"""What the schema does not say itself. A test holds it to be what is missing there, and no more."""

_OWN_DEFAULTS = {
    "policies": "required",
    "last_good": "`policies` with `-last-good`",
    "leader_election.enabled": "true",
    "leader_election.lease": "kube-system/policysched",
    "log.format": "text",
    "log.level": "info",
    "api.connections_max": "96",
    "compile_timeout_s": "20",
    "stop_wait_s": "25",
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
            yield from ((f"{name}.{inner}", one) for inner, one in field["properties"].items())
        else:
            yield name, field


def default(name: str) -> str:
    if name in _OWN_DEFAULTS:
        return _OWN_DEFAULTS[name]
    section, _, inner = name.partition(".")
    found = getattr(_DEFAULTS.get(section), inner, None) if inner else None
    return "" if found is None else f"{found:g}" if isinstance(found, float) else str(found)


def _flag(name: str) -> str:
    flag = _FLAG_OF.get(name, f"--{name.rpartition('.')[2].replace('_', '-')}")
    known = {option for one in run.params if isinstance(one, click.Option) for option in one.opts}
    return f"`{flag}`" if flag in known else ""


def _said(name: str, field: Mapping[str, Any]) -> str:
    said = field.get("description") or SAID[name]
    choices = field.get("enum")
    return f"{said} ({', '.join(choices)})" if choices else said
