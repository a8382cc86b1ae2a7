"""Metrics that `policysched run` and `policysched extender` share: policies, samples, the API server, the process."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from policysched import __version__
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.metric_monitor import MetricMonitor, MetricStatus
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.watch.reflector import Reflector
from policysched.lang.ir.program import Program
from policysched.scheduler.policies.policy_status import PolicyStatus, ReloadResult
from policysched.serve.prometheus_text import Labels, MetricFamily, counter_family, gauge_family
from policysched.text import Severity

TEAM_SERIES_MAX = 50
"""Of one metric, for each policy of a team, histograms aside. A team names thousands of rows of quotas, rules and states as it
likes, and others with each edit; Prometheus keeps a series of each name for hours."""


class PolicyProvider(Protocol):
    """What runs policies: the scheduler or the extender server."""

    def policies(self) -> list[PolicyStatus]: ...
    def programs(self) -> Mapping[str, Program]: ...
    def reloads(self) -> Mapping[ReloadResult, int]: ...
    @property
    def policies_resource_version(self) -> str | None: ...


def policy_families(source: PolicyProvider) -> Iterator[MetricFamily]:
    statuses = [status for status in source.policies() if status.phase != "removed"]
    named = [(status.name or status.key or "", status) for status in statuses]
    yield gauge_family(
        "policysched_policy_last_reload_successful",
        "1: the text in the ConfigMap is the active policy. 0: it is invalid or deleted.",
        {(("policy", name),): float(status.phase == "active") for name, status in named},
    )
    yield gauge_family(
        "policysched_policy_last_reload_success_timestamp_seconds",
        "When the active text last changed.",
        {
            (("policy", name),): status.last_success_ns / 1e9
            for name, status in named
            if status.last_success_ns is not None
        },
    )
    yield gauge_family(
        "policysched_policy_suspended",
        "1: no text of the policy can run, so its pods stay pending; GET /policy and the event PolicySuspended have the reason.",
        {(("policy", name),): float(status.phase == "suspended") for name, status in named},
    )
    version = source.policies_resource_version or ""
    infos: dict[Labels, float] = {
        (
            ("policy", name),
            ("version", str(status.version)),
            ("sha256", status.sha256),
            ("resource_version", version),
        ): 1.0
        for name, status in named
        if status.sha256 is not None
    }
    yield gauge_family("policysched_policy_info", "The active policies.", infos)
    yield counter_family(
        "policysched_policy_reload_total",
        "Versions of the ConfigMap that were processed, by result.",
        {(("result", result),): n for result, n in source.reloads().items()},
    )
    counts: dict[Labels, float] = {
        (("policy", name), ("severity", severity.label)): 0.0 for name, _ in named for severity in Severity
    }
    for name, status in named:
        for diagnostic in status.diagnostics:
            counts[("policy", name), ("severity", diagnostic.severity.label)] += 1
    yield gauge_family(
        "policysched_policy_diagnostics", "Diagnostics of the current text in the ConfigMap.", counts
    )


def limit_team_series(
    families: Iterable[MetricFamily], owner_of: Callable[[str], str | None]
) -> Iterator[MetricFamily]:
    """The families with the first `TEAM_SERIES_MAX` series of each policy that has an owner."""
    owners: dict[str | None, str | None] = {None: None}
    for family in families:
        counts, kept = Counter[str | None](), list[tuple[str, Labels, float]]()
        for sample in family.samples:
            policy = next((value for name, value in sample[1] if name in ("policy", "profile")), None)
            if policy is not None and policy not in owners:
                owners[policy] = owner_of(policy)
            counts[policy] += 1
            if owners[policy] is None or family.type == "histogram" or counts[policy] <= TEAM_SERIES_MAX:
                kept.append(sample)
        yield replace(family, samples=kept)


def last_good_families(store: LastGoodStore | None) -> Iterator[MetricFamily]:
    """Nothing without a store: the policies are files."""
    if store is None:
        return
    yield counter_family(
        "policysched_last_good_saves_total",
        "Writes of the last known good policies by result: ok, too_large (some do not fit), refused, unanswered.",
        {(("result", result),): n for result, n in store.saves.items()},
    )
    yield gauge_family(
        "policysched_last_good_unsaved",
        "1: the last known good text or a state of the policy is not saved; a restart would not find it.",
        {
            (("policy", policy),): float(policy in store.unsaved)
            for policy in sorted({*store.policies, *store.unsaved})
        },
    )


def sample_families(metric_monitor: MetricMonitor) -> Iterator[MetricFamily]:
    statuses = list(metric_monitor.statuses())
    good = [(status, status.last_good_poll) for status in statuses if status.last_good_poll is not None]

    def labels(status: MetricStatus) -> Labels:
        return ("policy", status.policy), ("metric", status.metric.name)

    yield counter_family(
        "policysched_sample_polls_total",
        "Polls of samples by result: ok, or the kind of error.",
        {(("source", source), ("result", kind)): n for source, kind, n in metric_monitor.polls()},
    )
    yield gauge_family(
        "policysched_sample_last_good_poll_timestamp_seconds",
        "Time of the last successful poll of the metric; absent before the first one.",
        {labels(status): poll.polled_ns / 1e9 for status, poll in good},
    )
    yield gauge_family(
        "policysched_sample_nodes",
        "Nodes with a usable sample of the metric in the last successful poll.",
        {labels(status): poll.nodes for status, poll in good},
    )
    yield gauge_family(
        "policysched_sample_unusable_series",
        "Series of the last successful poll that were not usable: unmatched (no such node), duplicated (two series for a "
        "node), invalid (not a value of the type).",
        {
            (*labels(status), ("reason", reason)): count
            for status, poll in good
            for reason, count in (
                ("unmatched", poll.unmatched),
                ("duplicated", poll.duplicated),
                ("invalid", poll.invalid),
            )
        },
    )
    yield gauge_family(
        "policysched_sample_unserved",
        "1: an active policy declares the metric, and no source serves it.",
        {labels(status): 1.0 for status in statuses if status.unserved_reason is not None},
    )


def api_connection_families(
    connectivity: Connectivity, reflectors: Iterable[Reflector[object]], malformed: Mapping[str, int]
) -> Iterator[MetricFamily]:
    """`malformed` counts the skipped object versions by kind."""
    yield counter_family(
        "policysched_api_failures_total",
        "Requests to the API server that failed.",
        {(): connectivity.failures_total},
    )
    yield gauge_family(
        "policysched_api_reachable",
        "0: the API server is unreachable or does not answer.",
        {(): float(not connectivity.unreachable)},
    )
    yield counter_family(
        "policysched_lists_total",
        "Full lists of a kind, including the first.",
        {(("kind", reflector.kind),): reflector.lists_total for reflector in reflectors},
    )
    yield counter_family(
        "policysched_watches_total",
        "Watches opened of a kind.",
        {(("kind", reflector.kind),): reflector.watches_total for reflector in reflectors},
    )
    yield gauge_family(
        "policysched_watched_objects",
        "Objects of a kind that were read, also by a standby.",
        {(("kind", reflector.kind),): reflector.objects_known for reflector in reflectors},
    )
    yield counter_family(
        "policysched_malformed_objects_total",
        "Object versions that were skipped because they are malformed.",
        {(("kind", kind),): n for kind, n in malformed.items()},
    )


def failed_object_family(objects: FailedObjects, now_ns: int) -> MetricFamily:
    return gauge_family(
        "policysched_failed_objects",
        "Objects, policy texts and metrics that are left out because their event raised, which is a bug; the log has the error.",
        {(("kind", kind),): float(count) for kind, count in objects.counts(now_ns).items()},
    )


def process_families(now_ns: int) -> Iterator[MetricFamily]:
    yield gauge_family("policysched_build_info", "The running version.", {(("version", __version__),): 1})
    yield gauge_family("policysched_time_seconds", "The clock that decisions use.", {(): now_ns / 1e9})
