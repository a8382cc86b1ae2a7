"""The scheduler as a state machine: `handle` applies an event, `decide` makes one attempt.

Neither blocks and neither reads a clock. What has to be done is returned as commands, and its outcome comes back as
events. The caller applies the events that arrived, then calls `decide` while `ready` is true, for a few milliseconds
at a time:

    commands = scheduler.handle(event, now_ns)
    while scheduler.ready(now_ns) and the time slice lasts:
        commands += scheduler.decide(now_ns)

A long attempt (of a gang, or with preemption on a large cluster) continues in the next call of `decide`. While it is
`attempt_in_progress`, events are better held back: the first one makes `handle` finish the attempt at once. The
attempt of a gang pauses now and then; while it is `attempt_paused`, events are applied as between two attempts.

There is no attempt before the first lists are complete (`Synced`), while no policy is active, or while more binds
than `SchedulerLimits` allows are without an answer.
"""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import assert_never

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.cluster.metric_samples import Samples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_runner import AttemptRunner
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.canaries import CanaryStatus
from policysched.scheduler.canary_guards import CanaryGuards
from policysched.scheduler.commands import Command, SetTimer
from policysched.scheduler.core import SchedulerCore, queued_at_arrival
from policysched.scheduler.decision_records import Decision, SchedulerCounters
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.gangs.bind_failures import GangBindFailures
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.invariants import check_invariants
from policysched.scheduler.kubelet_rejections import KubeletRejections
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.metric_outages import MetricOutages
from policysched.scheduler.namespace_events import NamespaceEvents
from policysched.scheduler.pending_status import PendingPods, PendingPodStatus, pending_status
from policysched.scheduler.pending_summary import PendingSummary
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.pod_group_events import PodGroupEvents
from policysched.scheduler.pod_group_reports import PodGroupReports
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policies.policy_states import StateCounts
from policysched.scheduler.policies.policy_status import PolicyStatus, ReloadResult
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.policy_text_events import PolicyTextEvents
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.quota_warnings import QuotaWarnings
from policysched.scheduler.quotas.quota_status import QuotaEntityStatus
from policysched.scheduler.sample_events import SampleEvents
from policysched.scheduler.sample_wait_reports import SampleWaitReports
from policysched.scheduler.slice_turns import SliceTurns
from policysched.scheduler.storage_events import StorageEvents
from policysched.scheduler.timers import (
    DeferredReports,
    FirstSampleTimeouts,
    PolicyStateSaves,
    ReportTimer,
    Timers,
)

__all__ = ["Scheduler", "SchedulerLimits"]

REPORT_TIMERS = (PolicyStateSaves, DeferredReports, QuotaWarnings, PodGroupReports, PendingSummary)


class Scheduler:
    """Events of pods, nodes and policies in; binds and reports out.

    `queue.entries` draws the states of a pod, `policies.registry` those of a policy.
    """

    def __init__(
        self,
        limits: SchedulerLimits | None = None,
        extenders: ExtendersByName | None = None,
        *,
        permissions: PolicyPermissions | None = None,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
        queued_ns_of: Callable[[Pod, int], int] = queued_at_arrival,
    ) -> None:
        """`permissions`: what policies may do. `first_samples_s`: how long a policy waits at most for the first poll of each
        metric (0: not at all, and `SamplesFailed` events are not needed). `source_name_of`: for messages. `queued_ns_of`: since when a pod that is seen first at a time waits."""
        self._core = core = SchedulerCore(
            limits or SchedulerLimits(),
            extenders,
            permissions=permissions,
            first_samples_s=first_samples_s,
            source_name_of=source_name_of,
            queued_ns_of=queued_ns_of,
        )
        errors = self._internal_errors = InternalErrors(core)
        enqueuer = PodEnqueuer(core, errors)
        self._bind_tracker = BindTracker(core, enqueuer)
        self._membership = PolicyMembership(core, enqueuer)
        preemption = self._preemption = DefaultPreemption(core)
        self._extender_calls = ExtenderCalls(core)
        prebinder = self._prebinder = Prebinder(core, self._bind_tracker)
        self.kubelet_rejections = KubeletRejections(core)
        self._outages = MetricOutages(core)
        namespaces = self._namespace_events = NamespaceEvents(core, self._membership)
        texts = self._policy_text_events = PolicyTextEvents(core, self._membership, enqueuer)
        reload = self._reload = PolicyReload(core, texts)
        self._sample_events = SampleEvents(core, reload, self._outages)
        self._storage_events = StorageEvents(core, self._prebinder)
        self._pod_events = PodEvents(
            core,
            self._membership,
            self._bind_tracker,
            self._prebinder,
            self._preemption,
            self._extender_calls,
            self.kubelet_rejections,
        )
        self._pod_group_events = PodGroupEvents(core, self._pod_events, enqueuer)
        self._pod_attempts = PodAttempts(core, enqueuer, preemption, self._extender_calls, prebinder)
        pods, gangs = self._pod_attempts, GangAttempts(core, self._pod_attempts, enqueuer, preemption)
        self._attempts = AttemptRunner(core, enqueuer, namespaces, pods, gangs, errors)
        self._canary_guards = CanaryGuards(core, self._reload)
        self.slices = SliceTurns(
            core.queue,
            (self._pod_group_events, *namespaces.sliced, *texts.sliced, *enqueuer.sliced),
            reload,
            enqueuer.order_key_expiries,
        )
        self._timers = Timers(
            (
                GangBindFailures(core, prebinder, preemption),
                core.queue,
                core.quotas,
                enqueuer,
                ReportTimer(self._outages, errors),
                FirstSampleTimeouts(core),
                ReportTimer(SampleWaitReports(core), errors),
                self.kubelet_rejections,
                self._prebinder,
                self._extender_calls,
                self._canary_guards,
                self.slices,
                texts,
                *(ReportTimer(part(core), errors) for part in REPORT_TIMERS),
            )
        )
        self.pending_pods = PendingPods(core)
        self._synced = False
        self._timer_at_ns: int | None = None

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event. Makes no attempt, but finishes one in progress first, on the cluster that it began on."""
        while self.attempt_in_progress:
            self._attempts.advance(None, now_ns)
        self._core.gangs.started_ns = self._core.gangs.started_ns or now_ns
        match event:
            case e.PodUpdated(pod):
                others = self._pod_events.updated(pod, now_ns, synced=self._synced)
                self._pod_group_events.members_changed(others, now_ns, synced=self._synced)
            case e.PodDeleted(uid):
                others = self._pod_events.deleted(uid, now_ns, synced=self._synced)
                self._pod_group_events.members_changed(others, now_ns, synced=self._synced)
            case e.NodeUpdated(node):
                self._node_updated(node, now_ns)
            case e.NodeDeleted(name):
                self._node_deleted(name, now_ns)
            case e.NodeObjectUpdated(kind, name, text):
                self._core.queue.requeue(self._core.cache.put_node_object(kind, name, text), now_ns)
            case e.NodeObjectDeleted(kind, name):
                self._core.queue.requeue(self._core.cache.drop_node_object(kind, name), now_ns)
            case e.NamespaceUpdated(namespace):
                self._namespace_changed(namespace.name, self._core.cache.put_namespace(namespace), now_ns)
            case e.NamespaceDeleted(name):
                self._namespace_changed(name, self._core.cache.drop_namespace(name), now_ns)
            case e.DisruptionBudgetUpdated(budget):
                self._core.cache.put_budget(budget)
            case e.DisruptionBudgetDeleted(namespace_name, name):
                self._core.cache.drop_budget(namespace_name, name)
            case e.SelectorOwnerUpdated(selector_owner):
                events = self._core.cache.put_selector_owner(selector_owner)
                self._core.queue.requeue(events, now_ns, cause=selector_owner.namespace)
            case e.SelectorOwnerDeleted(kind, namespace_name, name):
                events = self._core.cache.drop_selector_owner(kind, namespace_name, name)
                self._core.queue.requeue(events, now_ns, cause=namespace_name)
            case e.StorageObjectUpdated(storage_object):
                self._storage_events.storage_updated(storage_object, now_ns)
            case e.StorageObjectDeleted(kind, namespace_name, name):
                self._storage_events.storage_deleted(kind, namespace_name, name, now_ns)
            case e.DeviceObjectUpdated(device_object):
                self._storage_events.device_updated(device_object, now_ns)
            case e.DeviceObjectDeleted(device_kind, namespace_name, name):
                self._storage_events.device_deleted(device_kind, namespace_name, name, now_ns)
            case e.DeviceKindServed(device_kind, served):
                self._storage_events.device_kind_served(device_kind, now_ns, served=served)
            case e.PodGroupChange():
                self._pod_group_events.apply(event, now_ns, synced=self._synced)
            case e.ExtendedClaimDeleted(claim, claim_uid):
                self._storage_events.extended_claim_deleted(claim, claim_uid, now_ns)
            case e.PrebindWritten():
                self._prebinder.on_written(event, now_ns)
            case e.PrebindRefused():
                self._prebinder.on_refused(event, now_ns)
            case e.Synced():
                self._sync(now_ns)
            case e.PoliciesUpdated():
                self._reload.apply_update(
                    event, now_ns, synced=self._synced, has_attempted=self._attempts.has_attempted
                )
            case e.SavedPolicyStatesLoaded(texts):
                self._core.restore_states(texts)
            case e.SamplesArrived(policy, metric, samples):
                self._sample_events.arrived(policy, metric, samples, now_ns)
            case e.SamplesFailed(policy, metric):
                self._sample_events.failed(policy, metric, now_ns)
            case e.BindConfirmed() | e.BindRefused() | e.BindLost() | e.BindDelayed():
                self._bind_tracker.on_answer(event, now_ns)
            case e.Evicted(preemptor, victims):
                self._preemption.evictions.on_evicted(preemptor, victims, now_ns)
            case e.EvictionRefused():
                self._preemption.evictions.on_eviction_refused(event, now_ns)
            case e.ExtendersAnswered(number, answers, failure):
                self._extender_calls.on_answered(number, answers, failure, now_ns)
            case _:
                assert_never(event)
        return self._take_commands(now_ns)

    def _sync(self, now_ns: int) -> None:
        if self._synced:
            return
        self._synced = True
        for name in list(self._core.policies.running):
            with self._core.raises_for_text(self._core.policies.running[name].program):
                self._policy_text_events.enqueue_again(name, now_ns, before_attempts=True)

    def _node_updated(self, node: Node, now_ns: int) -> None:
        self.kubelet_rejections.node_updated(node, now_ns)
        self._core.queue.requeue(self._core.cache.put_node(node), now_ns)
        self._prebinder.recheck(now_ns, node=node.name)

    def _node_deleted(self, name: NodeName, now_ns: int) -> None:
        self.kubelet_rejections.node_deleted(name)
        self._core.queue.requeue(self._core.cache.drop_node(name), now_ns)
        self._prebinder.recheck(now_ns, node=name)

    def _namespace_changed(self, name: str, events: frozenset[ClusterEvent], now_ns: int) -> None:
        if events:
            self._namespace_events.changed(name, now_ns, synced=self._synced)
        # Terms of pods in other namespaces may select this one by its labels.
        self._core.queue.requeue(events, now_ns, cause=name)

    # ── attempts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, now_ns: int) -> bool:
        """Whether `decide` has something to do."""
        core = self._core
        if self.attempt_in_progress or self.attempt_paused:
            return True
        if not self._synced or not core.policies.running:
            return self._synced and self._reload.busy
        if core.queue.can_pop or self._reload.busy or core.evaluator.has_slices:
            return True
        next_ns = self._timers.next_time_ns()
        # `account_time` can make a namespace rest: `decide` says when the rest ends.
        return next_ns is not None and (next_ns <= now_ns or next_ns != self._timer_at_ns)

    def decide(self, now_ns: int) -> list[Command]:
        """Continue the attempt in progress, or do what is due, then a slice or an attempt. Does nothing when not `ready`."""
        cost_max = self._core.limits.attempt_step_cost_max
        if self.attempt_in_progress:
            self._attempts.advance(cost_max, now_ns)
        elif self.attempt_paused:
            self._timers.advance(now_ns)
            if not (self._core.quotas.has_released or self.slices.step(now_ns, beside_pause=True)):
                self._attempts.advance_pause(cost_max, now_ns)
        elif self.ready(now_ns):
            self._timers.advance(now_ns)
            is_done = self._core.quotas.has_released or self._core.evaluator.refresh_slice()
            if not (is_done or self._policy_text_events.take_first(now_ns) or self.slices.step(now_ns)):
                self._attempts.advance(cost_max, now_ns)
        return self._take_commands(now_ns)

    def account_time(self, elapsed_ns: int) -> int | None:
        """How long the last call of `decide` took, as the caller measured it, so that nobody takes the time of others
        (`queue.decision_time`). Returns how long the attempt took that ended in it; None: none did."""
        return None if self.slices.charge(elapsed_ns) else self._attempts.account_time(elapsed_ns)

    @property
    def attempt_in_progress(self) -> bool:
        """Whether an attempt has steps left, or waits for those of earlier entries. Nothing but first evictions is in effect."""
        return self._attempts.in_progress

    @property
    def attempt_paused(self) -> bool:
        """Whether a gang's attempt is interrupted: events are applied and pods decided. Nothing of it is in effect yet."""
        return self._attempts.paused

    @property
    def only_overdrawn_left(self) -> bool:
        """Whether all that is left to attempt is of namespaces that have taken more than their share of the time."""
        return self._core.queue.only_overdrawn_left

    def requeue_current_attempt(self, now_ns: int) -> list[Command]:
        """Give up the attempt in progress or paused and requeue its pod or gang: this process may make no more attempts."""
        self._attempts.requeue(now_ns)
        return self._take_commands(now_ns)

    def _take_commands(self, now_ns: int) -> list[Command]:
        core = self._core
        core.requeue_released(now_ns)
        commands, core.commands = core.commands, []
        if self._synced and core.policies.running and core.queue.can_pop:
            return commands  # `decide` is called anyhow, and says when it has nothing left
        next_ns = self._timers.next_time_ns()
        if next_ns is not None and next_ns != self._timer_at_ns:
            commands.append(SetTimer(next_ns))
        self._timer_at_ns = next_ns
        return commands

    # ── inspection ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def startup_error(self) -> str | None:
        """Why no policy can run; the process must exit with a non-zero code. None: there is no such error."""
        return self._core.policies.startup_error

    @property
    def binds_in_flight(self) -> int:
        return self._core.binds.sent_count

    @property
    def prebinding_count(self) -> int:
        """Pods that are assumed and wait for their claims to be bound."""
        return len(self._core.binds.prebinding)

    @property
    def core(self) -> SchedulerCore:
        """The state, for explanations, which only read it."""
        return self._core

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def counters(self) -> SchedulerCounters:
        return self._core.records.counters

    def state_counts(self) -> Mapping[tuple[str, str], StateCounts]:
        """By policy and state: how many values it has, and how many were dropped."""
        return self._core.samples.policy_states.counts()

    def quotas(self) -> list[QuotaEntityStatus]:
        return self._core.quotas.status()

    @property
    def nodes_with_capacity_holds(self) -> list[NodeName]:
        """Nodes with capacity held back because their kubelets rejected pods that fit by our count."""
        return self.kubelet_rejections.nodes_with_holds

    @property
    def decisions(self) -> list[Decision]:
        """The latest decisions, oldest first."""
        return list(self._core.records.decisions)

    @property
    def cache(self) -> ClusterCache:
        """The cluster as last observed. Read-only."""
        return self._core.cache

    def samples(self, policy: str) -> Samples:
        """The samples of a policy's metrics, with the assumed load."""
        return self._core.samples.of_policy(policy)

    def programs(self) -> dict[str, Program]:
        """The running programs, by policy."""
        return self._core.policies.programs()

    def metrics(self) -> dict[str, Mapping[str, Metric]]:
        """The metrics to poll, by policy and name."""
        return self._reload.metrics()

    def policies(self) -> list[PolicyStatus]:
        return self._core.policies.status()

    def canaries(self) -> list[CanaryStatus]:
        return self._canary_guards.status()

    def reloads(self) -> dict[ReloadResult, int]:
        """Policy texts that the ConfigMap offered, by result."""
        return dict(self._core.policies.reloads)

    @property
    def policies_resource_version(self) -> str | None:
        return self._core.policies.resource_version

    def queue_incoming(self) -> dict[tuple[str, str], int]:
        """`scheduler_queue_incoming_pods_total` by (queue, event)."""
        return dict(self._core.queue.incoming_counts)

    def pending_counts(self) -> dict[str, int]:
        """`scheduler_pending_pods` by queue."""
        return self._core.queue.counts()

    def pending_status(self, uid: PodUid) -> PendingPodStatus | None:
        """The state of a pending pod and what it waits for; None if it is not pending under a running policy."""
        return pending_status(self._core, uid)

    def explain(
        self, uid: PodUid, now_ns: int, *, node_names: Collection[NodeName] | None = None
    ) -> PlacementExplanation | None:
        """Every node's verdict for a pending pod as of now; None if it is not pending under a running policy. Nodes outside
        `node_names` are left out. Extenders are not called."""
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.state is QueueState.BINDING:
            return None
        with core.cache.devices.allocation_cache.limited(SearchAllowance()):
            return core.evaluator.explain(
                core.plan(pod.policy),
                pod.pod,
                **core.evaluation_inputs(pod, now_ns),
                nodes=node_names,
            )

    def check(self) -> list[str]:
        """One sentence for each inconsistency inside; empty when all is well."""
        if not self._synced:
            return self._core.cache.ledger.check()
        parts = (self._preemption, self._extender_calls, self.kubelet_rejections, self._internal_errors)
        return [*check_invariants(self._core), *(problem for part in parts for problem in part.check())]
