"""The responses of `/policy`, `/decisions` and `/configz`; schemas: `schemas/policy.json`, `schemas/decisions.json`."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from policysched.config.settings import Settings
from policysched.config.source_settings import redact_secrets
from policysched.daemon.metric_families import PolicyProvider
from policysched.daemon.metric_monitor import MetricStatus
from policysched.scheduler.explain_record import parameter_values
from policysched.scheduler.pending_status import PendingPodStatus
from policysched.scheduler.policies.registry import PolicyStatus
from policysched.scheduler.records import Decision
from policysched.scheduler.scheduler import Scheduler
from policysched.text import Diagnostic

Json = dict[str, Any]


def policy_page(
    source: PolicyProvider,
    place: str,
    metrics: Iterable[MetricStatus] = (),
    now_ns: int = 0,
    *,
    note: str | None = None,
) -> Json:
    """`place` is `namespace/name` of the ConfigMap; `metrics` is the status of the active policies' metrics at `now_ns`;
    `note` is why this process has no data."""
    parameters = {name: parameter_values(program) for name, program in source.programs().items()}
    of_policy: dict[str, Json] = {}
    for one in metrics:
        of_policy.setdefault(one.policy, {})[one.metric.name] = _metric(one, now_ns)
    return {
        "configmap": place,
        "resource_version": source.policies_resource_version,
        "note": note,
        "policies": [
            {
                **_policy(one, parameters.get(one.name or "", {})),
                "metrics": of_policy.get(one.name or "", {}),
            }
            for one in source.policies()
        ],
    }


def decisions_page(scheduler: Scheduler, limit: int, pod: str, *, note: str | None = None) -> Json:
    """Newest first; `pod` is `namespace/name`, or empty for all. For one pod it includes its pending status; `note` says
    why there is none, or, if given, why this process has no data."""
    newest_first = reversed(scheduler.decisions)
    wanted = (one for one in newest_first if not pod or one.pod == pod)
    decisions = [_decision(one) for one in islice(wanted, limit)]
    if not pod:
        return {"decisions": decisions, "note": note}
    waits = scheduler.pending_status_by_name(pod)
    if waits is not None:
        return {"decisions": decisions, "waiting": _pending_pod(waits), "note": note}
    return {"decisions": decisions, "waiting": None, "note": note or scheduler.not_pending_reason(pod)}


def configz_page(settings: Settings) -> Json:
    """The settings as given; all others have their default."""
    return {"policysched": {**redact_secrets(settings.configured), "policies": str(settings.policies)}}


def _policy(one: PolicyStatus, params: Json) -> Json:
    return {
        "name": one.name,
        "key": one.key,
        "state": one.phase,
        "version": one.version,
        "sha256": one.sha256,
        "params": params,
        "since": _time(one.since_ns),
        "last_success": None if one.last_success_ns is None else _time(one.last_success_ns),
        "diagnostics": [_diagnostic(found) for found in one.diagnostics],
    }


def _metric(one: MetricStatus, now_ns: int) -> Json:
    good, trouble = one.last_good_poll, one.last_failure
    return {
        "source": one.source,
        "unserved": one.unserved_reason,
        "last_good": None
        if good is None
        else {
            "time": _time(good.polled_ns),
            "age_s": _seconds(now_ns - good.polled_ns),
            "nodes": good.nodes,
            "unmatched": good.unmatched,
            "doubled": good.duplicated,
            "invalid": good.invalid,
            "warnings": list(good.warnings),
        },
        "trouble": None
        if trouble is None
        else {"kind": trouble.kind, "message": trouble.message, "since": _time(trouble.since_ns)},
    }


def _diagnostic(found: Diagnostic) -> Json:
    source = found.span.source if found.span is not None else None
    place = source.position(found.span.start) if source is not None and found.span is not None else None
    return {
        "code": found.code,
        "name": found.name,
        "severity": found.severity.label,
        "message": found.message,
        "help": found.help,
        "key": source.name.rpartition(" ")[2] if source is not None else None,
        "line": place.line if place is not None else None,
        "column": place.column if place is not None else None,
    }


def _pending_pod(one: PendingPodStatus) -> Json:
    return {
        "pod": one.pod,
        "uid": one.uid,
        "policy": one.policy,
        "gang": one.gang,
        "place": one.state,
        "message": one.message,
        "attempts": one.attempts,
        "queued": _time(one.queued_ns),
        "backoff_until": None if one.backoff_until_ns is None else _time(one.backoff_until_ns),
        "wakes": list(one.requeue_events),
    }


def _decision(one: Decision) -> Json:
    return {
        "decision_id": one.id,
        "ts": _time(one.at_ns),
        "pod": one.pod,
        "uid": one.uid,
        "policy": {"name": one.policy, "sha256": one.sha256, "version": one.version},
        "gang": one.gang,
        "attempt": one.attempt,
        "queued": _time(one.queued_ns),
        "nodes": one.node_count,
        "feasible": one.feasible_count,
        "rejected": dict(one.counts),
        "result": {"node": one.node, "score": one.score, "message": one.message},
        "samples": {
            name: {
                "value": seen.value,
                "age_s": _seconds(seen.age_ns),
                "polled_ago_s": _seconds(seen.polled_ago_ns),
            }
            for name, seen in one.samples.items()
        },
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 3)


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
