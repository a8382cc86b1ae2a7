"""The responses of `/policy`, `/decisions` and `/configz`; schemas: `schemas/policy.json`, `schemas/decisions.json`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from policysched.config.settings import Settings
from policysched.config.source_settings import redact_secrets
from policysched.daemon.metric_families import PolicyProvider
from policysched.daemon.metric_monitor import MetricStatus
from policysched.explanations.record import parameter_values
from policysched.scheduler.canaries import CanaryStatus
from policysched.scheduler.decision_records import Decision
from policysched.scheduler.pending_status import PendingPodStatus
from policysched.scheduler.policies.policy_status import PolicyStatus
from policysched.scheduler.scheduler import Scheduler
from policysched.text import Diagnostic
from policysched.text.abbreviate import abbreviate_names

Json = dict[str, Any]
_GangAttempt = tuple[str, str, int]
"""Policy, gang and time."""


def policy_document(
    source: PolicyProvider,
    location: str,
    metrics: Iterable[MetricStatus] = (),
    now_ns: int = 0,
    *,
    note: str | None = None,
    canaries: Iterable[CanaryStatus] = (),
) -> Json:
    """`location` is `namespace/name` of the ConfigMap; `metrics` is the status of the active policies' metrics at `now_ns`;
    `note` is why this process has no data."""
    parameters = {name: parameter_values(program) for name, program in source.programs().items()}
    of_canary = {canary.policy: _canary(canary) for canary in canaries}
    of_policy: dict[str, Json] = {}
    for metric in metrics:
        of_policy.setdefault(metric.policy, {})[metric.metric.name] = _metric(metric, now_ns)
    return {
        "configmap": location,
        "resource_version": source.policies_resource_version,
        "note": note,
        "policies": [
            {
                **_policy(policy, parameters.get(policy.name or "", {})),
                "metrics": of_policy.get(policy.name or "", {}),
                "canary": of_canary.get(policy.name or ""),
            }
            for policy in source.policies()
        ],
    }


class DecisionsDocument:
    """`/decisions`: `look` takes a snapshot on the main loop; what it returns renders it in the server's thread. A record does
    not change, so each is rendered once: many readers cost the interpreter little, whose lock the decisions need."""

    def __init__(self, scheduler: Scheduler, unavailable_reason: Callable[[], str | None]) -> None:
        self._scheduler = scheduler
        self._unavailable_reason = unavailable_reason
        self._rendered: dict[int, bytes] = {}

    def look(self, limit: int, pod: str) -> Callable[[], bytes]:
        """`pod` is `namespace/name` or a name, or empty for all. For one pod the page has its pending status; `note` says why
        there is none, which pods have the name, or why this process has no data."""
        decisions = self._scheduler.decisions
        page: Json = {"note": self._unavailable_reason()}
        if pod:
            names = self._scheduler.pending_pods.full_names(pod)
            if len(names) != 1:
                page["waiting"] = None
                page["note"] = page["note"] or describe_ambiguous_pod(pod, names)
                return lambda: self._render(decisions, limit, frozenset(names), page)
            pod = names[0]
            pending = self._scheduler.pending_pods.status(pod)
            page["waiting"] = None if pending is None else pending_pod_record(pending)
            if pending is None:
                page["note"] = page["note"] or self._scheduler.pending_pods.not_pending_reason(pod)
        return lambda: self._render(decisions, limit, frozenset({pod}) if pod else None, page)

    def _render(
        self, decisions: Sequence[Decision], limit: int, pods: frozenset[str] | None, page: Json
    ) -> bytes:
        """Newest first. `pods` None: of all pods."""
        if len(self._rendered) > 2 * len(decisions):
            kept = {decision.id for decision in decisions}
            self._rendered = {number: text for number, text in self._rendered.items() if number in kept}
        wanted = (decision for decision in reversed(decisions) if pods is None or decision.pod in pods)
        matching = list(islice(wanted, limit))
        new_gangs = any(decision.gang and decision.id not in self._rendered for decision in matching)
        attempts = _gang_attempts(decisions) if new_gangs else {}
        records = b",".join(self._record(decision, attempts) for decision in matching)
        return b'{"decisions":[' + records + b"]," + orjson.dumps(page)[1:] + b"\n"

    def _record(self, decision: Decision, gang_attempts: Mapping[_GangAttempt, Json]) -> bytes:
        record = self._rendered.get(decision.id)
        if record is None:
            record = self._rendered[decision.id] = orjson.dumps(_decision(decision, gang_attempts))
        return record


def describe_ambiguous_pod(name: str, full_names: Sequence[str]) -> str:
    """Why a name without a namespace does not identify a pod."""
    if not full_names:
        return f"no pod named {name} exists in any namespace"
    return f"several pods are named {name}: {abbreviate_names(full_names, 5)}; name one as NAMESPACE/NAME"


def configz_document(settings: Settings) -> Json:
    """The settings that are set; a setting that is missing here has its default."""
    return {"policysched": {**redact_secrets(settings.configured), "policies": str(settings.policies)}}


def _policy(policy: PolicyStatus, params: Json) -> Json:
    return {
        "name": policy.name,
        "key": policy.key,
        "state": policy.phase,
        "version": policy.version,
        "sha256": policy.sha256,
        "params": params,
        "since": _time(policy.since_ns),
        "last_success": None if policy.last_success_ns is None else _time(policy.last_success_ns),
        "diagnostics": [_diagnostic(diagnostic) for diagnostic in policy.diagnostics],
    }


def _canary(canary: CanaryStatus) -> Json:
    record = canary.record
    return {
        "name": record.name,
        "state": canary.state,
        "pending": canary.pending,
        "pods": canary.pods,
        "broken_since": None if record.broken_since_ns is None else _time(record.broken_since_ns),
        "rolled_back": None if record.rolled_back_ns is None else _time(record.rolled_back_ns),
    }


def _metric(metric: MetricStatus, now_ns: int) -> Json:
    good, failure = metric.last_good_poll, metric.last_failure
    return {
        "source": metric.source,
        "unserved": metric.unserved_reason,
        "last_good": None
        if good is None
        else {
            "time": _time(good.polled_ns),
            "age_s": _seconds(now_ns - good.polled_ns),
            "nodes": good.nodes,
            "unmatched": good.unmatched,
            "duplicated": good.duplicated,
            "invalid": good.invalid,
            "warnings": list(good.warnings),
        },
        "failure": None
        if failure is None
        else {"kind": failure.kind, "message": failure.message, "since": _time(failure.since_ns)},
    }


def _diagnostic(diagnostic: Diagnostic) -> Json:
    source = diagnostic.span.source if diagnostic.span is not None else None
    location = (
        source.position(diagnostic.span.start) if source is not None and diagnostic.span is not None else None
    )
    return {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "severity": diagnostic.severity.label,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "key": source.name.rpartition(" ")[2] if source is not None else None,
        "line": location.line if location is not None else None,
        "column": location.column if location is not None else None,
    }


def pending_pod_record(pod: PendingPodStatus) -> Json:
    return {
        "pod": pod.pod,
        "uid": pod.uid,
        "policy": pod.policy,
        "gang": pod.gang,
        "queue": pod.state,
        "message": pod.message,
        "attempts": pod.attempts,
        "queued": _time(pod.queued_ns),
        "backoff_until": None if pod.backoff_until_ns is None else _time(pod.backoff_until_ns),
        "requeue_events": list(pod.requeue_events),
    }


def _gang_attempts(decisions: Sequence[Decision]) -> Mapping[_GangAttempt, Json]:
    """What became of the members of each gang that were decided together: one attempt has one time."""
    attempts: dict[_GangAttempt, Json] = {}
    for decision in decisions:
        if decision.gang is not None:
            attempt = attempts.setdefault(
                (decision.policy, decision.gang, decision.at_ns),
                {"placed": 0, "pending": 0, "decision_ids": []},
            )
            attempt["pending" if decision.node is None else "placed"] += 1
            attempt["decision_ids"].append(decision.id)
    return attempts


def _decision(decision: Decision, gang_attempts: Mapping[_GangAttempt, Json]) -> Json:
    return {
        "decision_id": decision.id,
        "ts": _time(decision.at_ns),
        "pod": decision.pod,
        "uid": decision.uid,
        "policy": {"name": decision.policy, "sha256": decision.sha256, "version": decision.version},
        "gang": decision.gang,
        "gang_attempt": None
        if decision.gang is None
        else gang_attempts[decision.policy, decision.gang, decision.at_ns],
        "attempt": decision.attempt,
        "queued": _time(decision.queued_ns),
        "nodes": decision.node_count,
        "feasible": decision.feasible_count,
        "rejected": dict(decision.counts),
        "result": {"node": decision.node, "score": decision.score, "message": decision.message},
        "samples": {
            name: {
                "value": sample.value,
                "age_s": _seconds(sample.age_ns),
                "polled_ago_s": _seconds(sample.polled_ago_ns),
            }
            for name, sample in decision.samples.items()
        },
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 3)


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
