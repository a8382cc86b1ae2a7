"""The metrics of `policysched run`: kube-scheduler's where it has the same, otherwise `policysched_*`.

Meanings and buckets: k8s.io/kubernetes pkg/scheduler/metrics/metrics.go, v1.36. `profile` is the policy's name, which
is the schedulerName. Histograms are observed as events happen; everything else is collected on each scrape.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from policysched.daemon.extender_caller import ExtenderCaller
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.metric_families import (
    api_connection_families,
    failed_object_family,
    last_good_families,
    limit_team_series,
    policy_families,
    process_families,
    sample_families,
)
from policysched.daemon.metric_monitor import MetricMonitor
from policysched.daemon.quota_documents import quota_families
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.leader_election import LeadershipStatus
from policysched.kube.watch.reflector import Reflector
from policysched.kube.write.bind import Binder
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.evict import Evictor
from policysched.recording.writer import RecordingWriter
from policysched.scheduler.scheduler import Scheduler
from policysched.serve.prometheus_text import (
    Labels,
    MetricFamily,
    MetricRegistry,
    counter_family,
    exponential_buckets,
    gauge_family,
)

if TYPE_CHECKING:
    from policysched.daemon.otlp_export import DecisionExport


class ObservedApp(Protocol):
    """The parts of the app that metrics are collected from."""

    scheduler: Scheduler
    binder: Binder
    evictor: Evictor
    reporter: Reporter
    extender_caller: ExtenderCaller
    last_good: LastGoodStore | None
    connectivity: Connectivity
    malformed: dict[str, int]
    failed_objects: FailedObjects

    metric_monitor: MetricMonitor

    @property
    def reflectors(self) -> "list[Reflector[object]]": ...
    @property
    def leadership_status(self) -> LeadershipStatus: ...


class Telemetry:
    """The registry and the observers that feed it."""

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        self._decision = self.registry.histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds, of one pod or one whole gang.",
            exponential_buckets(0.00001, 2, 18),
        )
        self._attempt = self.registry.histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding), by the result.",
            exponential_buckets(0.001, 2, 15),
            ("result", "profile"),
        )
        self._unschedulable: dict[str, int] = {}
        self._app: ObservedApp | None = None
        self._bind = self.registry.histogram(
            "policysched_bind_duration_seconds",
            "From the first request of a bind to its outcome, retries included.",
            exponential_buckets(0.001, 2, 15),
        )
        self._sli = self.registry.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue to its bind.",
            exponential_buckets(0.01, 2, 20),
            ("attempts",),
        )
        self._attempts = self.registry.histogram(
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            exponential_buckets(1, 2, 5),
        )

        self._victims = self.registry.histogram(
            "scheduler_preemption_victims",
            "Number of selected preemption victims.",
            exponential_buckets(1, 2, 7),
        )

    def observe_decision_s(self, seconds: float) -> None:
        """Records a decision. For pods without a feasible node it is also the whole attempt."""
        self._decision.observe(seconds)
        attempts = {} if self._app is None else self._app.scheduler.counters.attempts
        counts = {policy: count for (result, policy), count in attempts.items() if result == "unschedulable"}
        for policy, count in counts.items():
            for _ in range(count - self._unschedulable.get(policy, 0)):
                self._attempt.observe(seconds, "unschedulable", policy)
        self._unschedulable = counts

    def observe_bind_s(self, seconds: float) -> None:
        self._bind.observe(seconds)

    def attach(
        self,
        app: ObservedApp,
        now_ns: Callable[[], int],
        recording: RecordingWriter | None = None,
        export: "DecisionExport | None" = None,
    ) -> None:
        """Collects the metrics of this app, of its recording and of its export of decisions."""
        self._app = app
        owner_of = app.scheduler.core.permissions.owner
        self.registry.collectors.append(lambda: limit_team_series(self._collect(app, now_ns()), owner_of))
        if recording is not None:
            self.registry.collectors.append(lambda: _recording_families(recording))
        if export is not None:
            self.registry.collectors.append(lambda: _export_families(export))

    def _collect(self, app: ObservedApp, now_ns: int) -> Iterator[MetricFamily]:
        for bound in app.scheduler.counters.drain_confirmed_binds():
            self._sli.observe(bound.waited_ns / 1e9, str(bound.attempts) if bound.attempts < 15 else "15+")
            self._attempts.observe(bound.attempts)
            self._attempt.observe(bound.duration_ns / 1e9, "scheduled", bound.policy)
        for failed in app.scheduler.counters.drain_failed_binds():
            self._attempt.observe(failed.duration_ns / 1e9, "error", failed.policy)
        for victims in app.scheduler.counters.drain_victim_counts():
            self._victims.observe(victims)
        self._attempt.keep_only("profile", app.scheduler.core.policies.running)
        yield from _scheduling_families(app.scheduler)
        yield from _external_pod_families(app.scheduler)
        yield from _shadow_families(app.scheduler)
        yield from _canary_families(app.scheduler)
        yield from _state_families(app.scheduler)
        yield from quota_families(app.scheduler.quotas())
        yield from policy_families(app.scheduler)
        yield from last_good_families(app.last_good)
        yield from sample_families(app.metric_monitor)
        yield from _write_families(app)
        yield gauge_family(
            "policysched_leader",
            "1: this process leads and decides.",
            {(): float(app.leadership_status is LeadershipStatus.LEADING)},
        )
        yield from api_connection_families(app.connectivity, app.reflectors, app.malformed)
        yield failed_object_family(app.failed_objects, now_ns)
        yield from process_families(now_ns)


def _export_families(export: "DecisionExport") -> Iterator[MetricFamily]:
    yield counter_family(
        "policysched_otlp_decisions_total",
        "Decisions that were handed to the OpenTelemetry SDK.",
        {(): export.exported},
    )
    yield counter_family(
        "policysched_otlp_missed_total",
        "Decisions that were not exported: more than `decision_records_max` were made within a quarter of a second.",
        {(): export.missed},
    )


def _recording_families(writer: RecordingWriter) -> Iterator[MetricFamily]:
    counts = writer.counts
    yield counter_family("policysched_recording_lines_total", "Lines that were recorded.", {(): counts.lines})
    yield counter_family("policysched_recording_bytes_total", "Compressed bytes.", {(): counts.bytes})
    yield counter_family(
        "policysched_recording_dropped_total",
        "Calls that were not recorded: the disk failed or was too slow. `replay` says where.",
        {(): counts.dropped + writer.recorder.dropped},
    )
    yield gauge_family(
        "policysched_recording_failing",
        "1: nothing is recorded at present; the log says why.",
        {(): float(bool(counts.failure))},
    )


def _scheduling_families(scheduler: Scheduler) -> Iterator[MetricFamily]:
    yield counter_family(
        "scheduler_schedule_attempts_total",
        "Number of attempts to schedule pods, by the result.",
        {
            (("result", result), ("profile", policy)): n
            for (result, policy), n in scheduler.counters.attempts.items()
        },
    )
    yield counter_family(
        "policysched_decisions_over_budget_total",
        "Attempts that were not evaluated because the pod exceeds `scheduling.decision_budget`.",
        {(("profile", policy),): n for policy, n in scheduler.counters.over_budget.items()},
    )
    yield counter_family(
        "policysched_internal_errors_total",
        "Attempts that failed because of a bug. Their pods wait, and are tried again once a minute; the log has the error.",
        {(("profile", policy),): n for policy, n in scheduler.counters.internal_errors.items()},
    )
    yield gauge_family(
        "scheduler_pending_pods",
        "Number of pending pods, by the queue type.",
        {(("queue", queue),): n for queue, n in scheduler.pending_counts().items()},
    )
    yield gauge_family(
        "policysched_oldest_pending_timestamp_seconds",
        "When the longest pending pod, and the longest pending member of a gang, became pending; absent while none is pending.",
        _oldest_pending(scheduler),
    )
    yield counter_family(
        "scheduler_queue_incoming_pods_total",
        "Number of pods added to scheduling queues by event and queue type.",
        {(("queue", queue), ("event", event)): n for (queue, event), n in scheduler.queue_incoming().items()},
    )
    cache = scheduler.cache
    yield gauge_family(
        "scheduler_cache_size",
        "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
        {
            (("type", "nodes"),): len(cache.nodes),
            (("type", "pods"),): len(cache.pods),
            (("type", "assumed_pods"),): scheduler.binds_in_flight + scheduler.prebinding_count,
        },
    )
    yield gauge_family(
        "policysched_binds_in_flight",
        "Binds whose outcome is not known yet.",
        {(): scheduler.binds_in_flight},
    )
    yield gauge_family(
        "policysched_pods_waiting_for_volumes",
        "Pods with a chosen node that wait for their claims to be bound.",
        {(): scheduler.prebinding_count},
    )
    yield counter_family(
        "scheduler_preemption_attempts_total",
        "Total preemption attempts in the cluster till now.",
        {(): scheduler.counters.preemption_attempts},
    )


def _oldest_pending(scheduler: Scheduler) -> dict[Labels, float]:
    core = scheduler.core
    since_ns: dict[str, int] = {}
    first = next(iter(core.pods.values()), None)  # seen before the others
    if first is not None:
        since_ns["pod"] = first.queued_ns
    members = [next(iter(gang.pending_members.values())) for gang in core.gangs if gang.pending_members]
    if members:
        since_ns["gang"] = min(member.queued_ns for member in members)
    return {(("kind", kind),): at_ns / 1e9 for kind, at_ns in since_ns.items()}


def _external_pod_families(scheduler: Scheduler) -> Iterator[MetricFamily]:
    """Effects of kubelets and of other schedulers."""
    yield counter_family(
        "policysched_pods_rejected_total",
        "Pods that the kubelet of their node rejected, by reason.",
        {
            (("reason", reason), ("profile", policy)): n
            for (reason, policy), n in scheduler.counters.kubelet_rejections.items()
        },
    )
    yield gauge_family(
        "policysched_nodes_with_capacity_holds",
        "Nodes with capacity held back because their kubelet rejected pods for lack of it.",
        {(): len(scheduler.nodes_with_capacity_holds)},
    )
    yield counter_family(
        "policysched_nodes_overcommitted_total",
        "Times that a pod placed by another scheduler overcommitted a node.",
        {(): scheduler.counters.overcommits},
    )


def _shadow_families(scheduler: Scheduler) -> Iterator[MetricFamily]:
    shadows = scheduler.counters.shadows
    yield counter_family(
        "policysched_shadow_decisions_total",
        "Placed pods by the effect that a shadow rule would have had: unchanged, moved, pending (no node is left) or error.",
        {
            (("profile", policy), ("rule", rule), ("kind", kind), ("change", change)): n
            for (policy, rule, kind, change), n in shadows.decisions.items()
        },
    )
    for name, text, counts in (
        ("nodes", "Candidate nodes that a shadow filter would have rejected.", shadows.rejected_nodes),
        (
            "pods",
            "Placed pods for which a shadow filter would have rejected at least one candidate node.",
            shadows.rejected_pods,
        ),
    ):
        yield counter_family(
            f"policysched_shadow_rejected_{name}_total",
            text,
            {(("profile", policy), ("rule", rule)): n for (policy, rule), n in counts.items()},
        )


def _canary_families(scheduler: Scheduler) -> Iterator[MetricFamily]:
    canaries = [
        ((("profile", canary.policy), ("canary", canary.record.name)), canary)
        for canary in scheduler.canaries()
    ]
    yield gauge_family(
        "policysched_canary_rolled_back",
        "1: the canary is rolled back, because its guard was broken. Its rules apply to no pod until its text changes.",
        {labels: float(canary.record.rolled_back) for labels, canary in canaries},
    )
    yield gauge_family(
        "policysched_canary_pods",
        "Pods in the share of a canary: `pending` (tried, without a node) and `all`. After a rollback: the numbers at that time.",
        {
            (*labels, ("pods", which)): float(count)
            for labels, canary in canaries
            for which, count in (("pending", canary.pending), ("all", canary.pods))
        },
    )


def _state_families(scheduler: Scheduler) -> Iterator[MetricFamily]:
    states = {
        (("policy", policy), ("state", name)): counts
        for (policy, name), counts in scheduler.state_counts().items()
    }
    yield gauge_family(
        "policysched_state_values",
        "Values of a policy's state, one per key and node.",
        {labels: counts.value_count for labels, counts in states.items()},
    )
    yield gauge_family(
        "policysched_state_values_max",
        "Maximum number of values of the state (`most`).",
        {labels: counts.value_count_max for labels, counts in states.items()},
    )
    yield counter_family(
        "policysched_state_values_dropped_total",
        "Values dropped because the state was full; rules then read the state's `start` value.",
        {labels: counts.dropped_count for labels, counts in states.items()},
    )
    yield counter_family(
        "policysched_state_keys_too_long_total",
        "Updates of a state ignored because the key has more than 1,024 characters.",
        {labels: counts.long_key_count for labels, counts in states.items()},
    )


def _write_families(app: ObservedApp) -> Iterator[MetricFamily]:
    binds, reports, evictions = app.binder.counts, app.reporter.counts, app.evictor.counts
    yield counter_family(
        "policysched_binds_total",
        "Binds by their outcome.",
        {
            (("outcome", "confirmed"),): binds.confirmed,
            (("outcome", "refused"),): binds.refused,
            (("outcome", "lost"),): binds.lost,
        },
    )
    yield counter_family(
        "policysched_bind_retries_total",
        "Bind requests retried because no response arrived.",
        {(): binds.retried},
    )
    yield gauge_family(
        "policysched_binds_waiting_for_retry",
        "Binds whose last request failed and whose next request is not sent yet.",
        {(): app.binder.retrying},
    )
    yield gauge_family(
        "policysched_bind_failing_namespaces",
        "Namespaces whose last bind requests all failed; they get a bounded share of the workers.",
        {(): app.binder.failing_namespaces},
    )
    yield counter_family(
        "policysched_evictions_total",
        "Pods evicted for a preemptor, and evictions that were refused.",
        {(("outcome", "evicted"),): evictions.evicted, (("outcome", "refused"),): evictions.refused},
    )
    yield counter_family(
        "policysched_extender_calls_total",
        "Calls of extenders by policies, by outcome.",
        {
            (("extender", name), ("verb", verb), ("outcome", outcome)): n
            for (name, verb, outcome), n in app.extender_caller.calls.items()
        },
    )
    yield counter_family(
        "policysched_reports_total",
        "Events and conditions by result.",
        {
            (("kind", "event"), ("result", "written")): reports.events_written,
            (("kind", "condition"), ("result", "written")): reports.conditions_written,
            (("kind", "any"), ("result", "failed")): reports.failed,
            (("kind", "any"), ("result", "dropped")): reports.dropped,
        },
    )
    yield gauge_family(
        "policysched_reports_waiting",
        "Events and conditions not written yet.",
        {(): app.reporter.pending_writes},
    )
