"""The state machine: `handle` applies what happened, `decide` takes one pod, or one gang whole.

Neither waits and neither knows a clock; what is to be done comes back as commands, and what became of it as events. The
caller applies what arrived, then calls `decide` while `ready` says so, in slices of a few milliseconds:

    commands = scheduler.handle(event, now_ns)
    while scheduler.ready(now_ns) and the slice lasts:
        commands += scheduler.decide(now_ns)

A decision that has to look at much (a gang's, or who makes room on a large cluster) is carried on by the next call of `decide`; as
long as it is `attempt_in_progress` events are better left where they are, for the first of them has it finished at once.

Nothing is decided before the first whole lists are in (`Synced`), while no policy is active, or while more binds wait
for their answer than `SchedulerLimits` allows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import assert_never

from policysched.cluster.cache import ClusterCache
from policysched.cluster.samples import Samples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.commands import Command, SetTimer
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.extenders.capabilities import ExtendersByName
from policysched.scheduler.gangs.attempt import GangAttempts
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.invariants import check_invariants
from policysched.scheduler.kubelet_rejections import KubeletRejections, overcommits_node
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.pending_status import (
    PendingPodStatus,
    not_pending_reason,
    pending_status,
)
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policies.metric_outages import MetricOutages
from policysched.scheduler.policies.policy_states import StateCounts
from policysched.scheduler.policies.registry import PolicyStatus, ReloadResult
from policysched.scheduler.policies.reload import PolicyReload
from policysched.scheduler.policies.sample_wait_reports import SampleWaitReports
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.questions import AttemptEvaluator
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.records import Decision, SchedulerCounters
from policysched.scheduler.settlement import AttemptCommit
from policysched.scheduler.steps import Steps
from policysched.scheduler.storage_events import StorageEvents

__all__ = ["Scheduler", "SchedulerLimits"]

_OWN_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_ADD, ClusterEvent.UNSCHEDULED_POD_UPDATE})
"""What concerns this one pod (and its gang), which `PolicyMembership` sees to; nobody else is woken for it."""

_MESSAGES_PER_CALL_MAX = 500


@dataclass(frozen=True, slots=True)
class _AttemptInProgress:
    """A decision that is not through yet, and whom it is about."""

    entry: QueueEntry
    steps: Steps[None]


class Scheduler:
    """Pods, nodes and policies in; binds and reports out. See `units` and `policies` for the states of each."""

    def __init__(
        self,
        limits: SchedulerLimits | None = None,
        extenders: ExtendersByName | None = None,
        *,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
    ) -> None:
        """`extenders` are those that policies may ask, by name. `first_samples_s`: how long at the most a policy waits for each of its
        metrics to be asked for once (0: not at all; then nobody needs to say what was asked in vain). `source_name_of` names the source that
        a metric is asked of, for words."""
        self._core = core = SchedulerCore(
            limits or SchedulerLimits(),
            extenders,
            first_samples_s=first_samples_s,
            source_name_of=source_name_of,
        )
        self._admission = QueueAdmission(core)
        self._bind_tracker = BindTracker(core, self._admission)
        self._membership = PolicyMembership(core, self._admission)
        self._preemption = DefaultPreemption(core)
        self._extender_calls = ExtenderCalls(core)
        self._prebinder = Prebinder(core, self._bind_tracker)
        self._storage_events = StorageEvents(core, self._prebinder)
        questions = AttemptEvaluator(core)
        settlement = AttemptCommit(core, self._admission, self._prebinder)
        self._pod_attempts = PodAttempts(
            core, questions, settlement, self._admission, self._preemption, self._extender_calls
        )
        self._gang_attempts = GangAttempts(core, questions, settlement, self._admission, self._preemption)
        self._outages = MetricOutages(core)
        self._kubelet_rejections = KubeletRejections(core)
        self._reload = PolicyReload(core, self._membership)
        self._sample_wait_reports = SampleWaitReports(core)
        self._timed_parts = (
            core.queue,
            self._admission,
            self._outages,
            core.first_samples,
            self._sample_wait_reports,
            core.reports,
            self._kubelet_rejections,
            self._prebinder,
            core.policy_states,
        )
        self._synced = False
        self._has_attempted = False
        self._timer_at_ns: int | None = None
        self._current_attempt: _AttemptInProgress | None = None

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event. Decides nothing, but for what is under way: that is finished first, on the cluster that it began on.

        One flat table, longer than a screen: an event, and who sees to it.
        """
        if self._current_attempt is not None:
            self._run_attempt(self._current_attempt, None)
        match event:
            case e.PodUpdated(pod):
                self._pod_updated(pod, now_ns)
            case e.PodDeleted(uid):
                self._pod_deleted(uid, now_ns)
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
            case e.PodSetUpdated(pod_set):
                self._core.queue.requeue(self._core.cache.put_pod_set(pod_set), now_ns)
            case e.PodSetDeleted(kind, namespace_name, name):
                self._core.queue.requeue(self._core.cache.drop_pod_set(kind, namespace_name, name), now_ns)
            case e.StorageObjectUpdated(seen):
                self._storage_events.storage_updated(seen, now_ns)
            case e.StorageObjectDeleted(kind, namespace_name, name):
                self._storage_events.storage_deleted(kind, namespace_name, name, now_ns)
            case e.DeviceObjectUpdated(device_object):
                self._storage_events.device_updated(device_object, now_ns)
            case e.DeviceObjectDeleted(device_kind, namespace_name, name):
                self._storage_events.device_deleted(device_kind, namespace_name, name, now_ns)
            case e.DeviceKindServed(device_kind, served):
                self._storage_events.device_kind_served(device_kind, now_ns, served=served)
            case e.ExtendedClaimDeleted(claim):
                self._storage_events.extended_claim_deleted(claim, now_ns)
            case e.PrebindWritten(uid, versions):
                self._prebinder.written(uid, versions, now_ns)
            case e.PrebindRefused(uid, reason, versions):
                self._prebinder.refused(uid, reason, versions, now_ns)
            case e.Synced():
                self._sync(now_ns)
            case e.PoliciesUpdated():
                self._reload.apply_update(
                    event, now_ns, synced=self._synced, has_attempted=self._has_attempted
                )
            case e.SavedPolicyStatesLoaded(texts):
                self._core.restore_states(texts)
            case e.SamplesArrived(policy, metric, samples):
                self._core.put_samples(policy, metric, samples)
                self._metric_polled(policy, metric, now_ns)
                self._core.queue.requeue({ClusterEvent.SAMPLES}, now_ns, policy=policy)
            case e.SamplesFailed(policy, metric):
                self._metric_polled(policy, metric, now_ns)
            case e.BindConfirmed(uid, node_name):
                self._bind_tracker.confirmed(uid, node_name, now_ns)
            case e.BindRefused(uid, reason):
                self._bind_tracker.refused(uid, reason, now_ns)
            case e.BindLost(uid, reason):
                self._bind_tracker.lost(uid, reason, now_ns)
            case e.Evicted(preemptor, victims):
                self._preemption.evicted(preemptor, victims, now_ns)
            case e.EvictionRefused(preemptor, reason, forbidden, victims):
                self._preemption.refused(preemptor, reason, victims, now_ns, forbidden=forbidden)
            case e.ExtendersAnswered(number, answers, failure):
                self._extender_calls.answered(number, answers, failure, now_ns)
            case _:
                assert_never(event)
        return self._take_commands()

    def _sync(self, now_ns: int) -> None:
        if self._synced:
            return
        self._synced = True
        for name in list(self._core.policies.running):
            self._membership.readmit_pods(name, now_ns)

    def _pod_updated(self, seen: ObservedPod, now_ns: int) -> None:
        core, uid = self._core, seen.pod.uid
        if seen.finished:
            self._bind_tracker.finished(uid, seen.node, now_ns)
        nominated, before = core.cache.nominated.get(uid), core.cache.ledger.placement(uid)
        core.update_states(seen, now_ns)
        counted, ended = core.cache.active_pods.version, core.cache.ended_pods.version
        events = set(core.cache.put_pod(seen) - _OWN_POD_EVENTS)
        self._add_count_events(events, counted, ended)
        current = core.cache.pods.get(uid)
        if current is None:
            self._membership.remove(seen.pod)
        else:
            self._membership.add(seen.pod)
        if current is None or current.deleting:
            self._preemption.forget(uid)
            self._extender_calls.forget(uid)
        if nominated is not None and (current is None or current.node is None):
            after = core.cache.nominated.get(uid)
            if after is None or after.nominated_node != nominated.nominated_node:
                events.add(ClusterEvent.ASSIGNED_POD_DELETE)  # the room that was kept for it is free
        if self._synced:
            core.update_assumed_load(uid, before, now_ns)
            self._membership.update(seen.pod, current, now_ns)
        if current is None or current.node is not None or current.deleting:
            self._prebinder.abort(uid, now_ns)
        core.queue.requeue(events, now_ns)
        self._track_kubelet_rejections(seen, before, now_ns)

    def _track_kubelet_rejections(self, seen: ObservedPod, before: Placement | None, now_ns: int) -> None:
        """What a pod that others put on a node, or one that its kubelet did not take, says of that node's room."""
        core = self._core
        after = core.cache.ledger.placement(seen.pod.uid)
        if seen.rejection is not None and before is not None and after is None:
            self._kubelet_rejections.pod_rejected(seen, seen.rejection, before, now_ns)
        elif self._synced and before is None and after is not None:
            self._kubelet_rejections.external_pod_placed(after.pod, after.node, now_ns)
            core.counters.overcommits += overcommits_node(core.cache, after)

    def _pod_deleted(self, uid: PodUid, now_ns: int) -> None:
        core = self._core
        core.policy_states.pod_deleted(uid)
        known, was_nominated = core.cache.pods.get(uid), uid in core.cache.nominated
        counted, ended = core.cache.active_pods.version, core.cache.ended_pods.version
        events = set(core.cache.drop_pod(uid))
        self._add_count_events(events, counted, ended)
        self._preemption.forget(uid)
        self._extender_calls.forget(uid)
        core.assumed_load.pod_removed(uid)
        if known is not None:
            self._membership.remove(known.pod)
            if was_nominated:
                events.add(ClusterEvent.ASSIGNED_POD_DELETE)
            if self._synced:
                self._membership.update(known.pod, None, now_ns)
        self._prebinder.abort(uid, now_ns)
        core.delete_unseen_claims(uid)
        core.reports.forget(uid)
        core.queue.requeue(events, now_ns)

    def _add_count_events(self, events: set[ClusterEvent], counted: int, ended: int) -> None:
        """Add to the events that the counts of pods, and of pods that ended, have moved since these versions."""
        cache = self._core.cache
        if cache.active_pods.version != counted:
            events.add(ClusterEvent.POD_COUNT)
        if cache.ended_pods.version != ended:
            events.add(ClusterEvent.FINISHED_POD)

    def _node_updated(self, node: Node, now_ns: int) -> None:
        self._kubelet_rejections.node_updated(node, now_ns)
        self._core.queue.requeue(self._core.cache.put_node(node), now_ns)
        self._prebinder.recheck(now_ns, node=node.name)

    def _node_deleted(self, name: NodeName, now_ns: int) -> None:
        self._kubelet_rejections.node_deleted(name)
        self._core.queue.requeue(self._core.cache.drop_node(name), now_ns)
        self._prebinder.recheck(now_ns, node=name)

    def _metric_polled(self, policy: str, metric: str, now_ns: int) -> None:
        """A metric was asked for, whatever came of it."""
        self._reload.metric_polled(policy, metric)
        self._outages.recount(policy, now_ns)

    def _namespace_changed(self, name: str, events: frozenset[ClusterEvent], now_ns: int) -> None:
        if events and self._synced:
            self._membership.namespace_changed(name, now_ns)
        # Pods elsewhere may have been refused by a term that selects namespaces by their labels.
        self._core.queue.requeue(events, now_ns)

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, now_ns: int) -> bool:
        """Whether `decide` has something to do."""
        core = self._core
        if self._current_attempt is not None:
            return True
        if not self._synced or not core.policies.running:
            return self._synced and self._reload.busy
        if self.binds_in_flight > core.limits.binds_in_flight_max:
            return False
        if core.queue.can_pop or self._reload.busy:
            return True
        next_ns = self._next_time_ns()
        return next_ns is not None and next_ns <= now_ns

    def decide(self, now_ns: int) -> list[Command]:
        """Go on with the decision that is under way. Where none is, do what time has made due, prepare one slice of a policy that
        is to replace another, and take the first of the queue. Does nothing when not `ready`."""
        most = self._core.limits.attempt_step_cost_max
        if self._current_attempt is not None:
            self._run_attempt(self._current_attempt, most)
            return self._take_commands()
        if not self.ready(now_ns):
            return self._take_commands()
        self._advance(now_ns)
        self._reload.step(now_ns)
        unit = self._core.queue.pop()
        self._has_attempted = self._has_attempted or unit is not None
        match unit:
            case PendingPod():
                self._run_attempt(
                    _AttemptInProgress(unit, self._pod_attempts.attempt_pod(unit, now_ns)), most
                )
            case QueuedGang():
                self._run_attempt(
                    _AttemptInProgress(unit, self._gang_attempts.attempt_gang(unit, now_ns)), most
                )
            case None:
                pass
            case QueueEntry():
                raise AssertionError(f"{unit} is neither a pod nor a gang")
        return self._take_commands()

    def _run_attempt(self, thought: _AttemptInProgress, most: int | None) -> None:
        """Until it is through, or has cost so much. None: until it is through."""
        self._current_attempt, thought.entry.state = None, QueueState.DETACHED
        cost = 0
        for one in thought.steps:
            cost += one
            if most is not None and cost >= most:
                self._current_attempt, thought.entry.state = thought, QueueState.ATTEMPTING
                return

    @property
    def attempt_in_progress(self) -> bool:
        """Whether a decision is under way. Nothing of it is in effect yet."""
        return self._current_attempt is not None

    def requeue_current_attempt(self, now_ns: int) -> list[Command]:
        """Whoever is being decided for stands in the queue again: nothing may be decided any more."""
        if self._current_attempt is not None:
            unit, self._current_attempt = self._current_attempt.entry, None
            unit.state = QueueState.DETACHED
            for one in (unit, *unit.pending_members.values()) if isinstance(unit, QueuedGang) else (unit,):
                one.attempts -= 1
            self._core.queue.enqueue(unit, now_ns, "ScheduleAttemptFailure")
        return self._take_commands()

    def _advance(self, now_ns: int) -> None:
        self._core.queue.advance(now_ns)
        self._admission.advance(now_ns)
        self._outages.advance(now_ns)
        self._core.commands += self._core.first_samples.advance(now_ns)
        self._sample_wait_reports.advance(now_ns)
        self._kubelet_rejections.advance(now_ns)
        self._prebinder.advance(now_ns)
        self._core.save_states(now_ns)
        for unit, room in self._core.queue.due_messages(now_ns, _MESSAGES_PER_CALL_MAX):
            if isinstance(unit, PendingPod):
                self._core.report_pending(unit, room.reason, room.message, now_ns)
        self._core.commands += self._core.reports.due_reports(now_ns)

    def _next_time_ns(self) -> int | None:
        soonest_ns = None
        for part in self._timed_parts:
            time_ns = part.next_time_ns()
            if time_ns is not None and (soonest_ns is None or time_ns < soonest_ns):
                soonest_ns = time_ns
        return soonest_ns

    def _take_commands(self) -> list[Command]:
        core = self._core
        out, core.commands = core.commands, []
        next_ns = self._next_time_ns()
        if next_ns != self._timer_at_ns:
            self._timer_at_ns = next_ns
            if next_ns is not None:
                out.append(SetTimer(next_ns))
        return out

    # ── looking in ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def startup_error(self) -> str | None:
        """Why this process has nothing to run at all; it is to end with an exit code that is not zero."""
        return self._core.policies.startup_error

    @property
    def binds_in_flight(self) -> int:
        return len(self._core.in_flight_binds) - len(self._core.prebinding)

    @property
    def prebinding_count(self) -> int:
        """Pods that have their node and are bound once their claims are."""
        return len(self._core.prebinding)

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def counters(self) -> SchedulerCounters:
        return self._core.counters

    def state_counts(self) -> Mapping[tuple[str, str], StateCounts]:
        """By policy and state: how many values it has, and how many were let go."""
        return self._core.policy_states.counts()

    @property
    def nodes_with_capacity_holds(self) -> list[NodeName]:
        """Nodes of which room is held back, for their kubelets said that they have less than we count."""
        return self._kubelet_rejections.nodes_with_holds

    @property
    def decisions(self) -> list[Decision]:
        """The latest decisions, oldest first."""
        return list(self._core.decisions)

    @property
    def cache(self) -> ClusterCache:
        """The cluster as last seen; to be looked at, not to be changed."""
        return self._core.cache

    def samples(self, policy: str) -> Samples:
        """What is known of a policy's metrics now, with what is assumed on top."""
        return self._core.samples.get(policy, {})

    def programs(self) -> dict[str, Program]:
        """The programs that decide now, by policy."""
        return {name: running.program for name, running in self._core.policies.running.items()}

    def metrics(self) -> dict[str, Mapping[str, Metric]]:
        """What samples are wanted of, by policy and metric."""
        return self._reload.metrics()

    def policies(self) -> list[PolicyStatus]:
        return self._core.policies.status()

    def reloads(self) -> dict[ReloadResult, int]:
        """Offers of the ConfigMap by what became of them."""
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
        """What is known of a pending pod of ours and what it waits for; None where it is not one."""
        return pending_status(self._core, uid)

    def pending_status_by_name(self, pod: str) -> PendingPodStatus | None:
        """The same of `namespace/name`."""
        uids = [uid for uid, one in self._core.pods.items() if one.pod.full_name == pod]
        return pending_status(self._core, uids[-1]) if uids else None

    def not_pending_reason(self, pod: str) -> str:
        """Why `namespace/name`, of which `pending_status_by_name` knows nothing, does not wait for a policy."""
        return not_pending_reason(self._core, pod)

    def explain(
        self, uid: PodUid, now_ns: int, *, node_names: Collection[NodeName] | None = None
    ) -> PlacementExplanation | None:
        """Every node's verdict for a pending pod of ours, as of now, with the nodes that are not `node_names` these set aside; None where
        it is not one. Extenders are not asked."""
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.state is QueueState.BINDING:
            return None
        return core.evaluator.explain(
            core.plan(pod.policy),
            pod.pod,
            **core.evaluation_inputs(pod, now_ns),
            nodes=node_names,
        )

    def check(self) -> list[str]:
        """One sentence for each thing inside that does not agree with another; none when all is well."""
        if not self._synced:
            return self._core.cache.ledger.check()
        parts = (self._preemption, self._extender_calls, self._kubelet_rejections)
        return [*check_invariants(self._core), *(words for part in parts for words in part.check())]
