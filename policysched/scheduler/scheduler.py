"""The state machine: `handle` applies what happened, `decide` takes one pod, or one gang whole.

Neither waits and neither knows a clock; what is to be done comes back as commands, and what became of it as events. The
caller applies what arrived, then calls `decide` while `ready` says so, in slices of a few milliseconds:

    commands = scheduler.handle(event, now_ns)
    while scheduler.ready(now_ns) and the slice lasts:
        commands += scheduler.decide(now_ns)

A decision that has to look at much (a gang's, or who makes room on a large cluster) is carried on by the next call of `decide`; as
long as it is `thinking` events are better left where they are, for the first of them has it finished at once.

Nothing is decided before the first whole lists are in (`Synced`), while no policy is active, or while more binds wait
for their answer than `Limits` allows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import assert_never

from policysched.cluster.cache import Cache
from policysched.cluster.samples import Samples
from policysched.lang.ir.program import Metric, Program
from policysched.lang.ir.verdict import Explanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import Node, NodeName, ObservedPod, Placement, PodUid
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodTrials
from policysched.scheduler.audit import check
from policysched.scheduler.binding import Binding
from policysched.scheduler.commands import Command, WakeAt
from policysched.scheduler.core import Core
from policysched.scheduler.extenders.consulting import Consulting
from policysched.scheduler.extenders.terms import Extenders
from policysched.scheduler.gangs.attempt import GangTrials
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.kubelet_rejections import Rejections, overfilled
from policysched.scheduler.limits import Limits
from policysched.scheduler.membership import Membership
from policysched.scheduler.pending_reasons import Why, why, why_not_ours
from policysched.scheduler.policies.first_samples import SourceOf
from policysched.scheduler.policies.outages import Outages
from policysched.scheduler.policies.policies import PolicyStatus, ReloadResult
from policysched.scheduler.policies.reload import Reload
from policysched.scheduler.policies.sample_wait_reports import ToldToWait
from policysched.scheduler.policies.states import StateCounts
from policysched.scheduler.prebind import Preparing
from policysched.scheduler.preemption.preemption import Preemption
from policysched.scheduler.questions import Questions
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import PendingPod, Place, Unit
from policysched.scheduler.records import Counters, Decision
from policysched.scheduler.settlement import Settlement
from policysched.scheduler.steps import Steps
from policysched.scheduler.storage_events import Storage

__all__ = ["Limits", "Scheduler"]

_OF_THE_POD_ITSELF = frozenset({ClusterEvent.UNSCHEDULED_POD_ADD, ClusterEvent.UNSCHEDULED_POD_UPDATE})
"""What concerns this one pod (and its gang), which `Membership` sees to; nobody else is woken for it."""

_WORDS_A_CALL = 500


@dataclass(frozen=True, slots=True)
class _Thought:
    """A decision that is not through yet, and whom it is about."""

    unit: Unit
    steps: Steps[None]


class Scheduler:
    """Pods, nodes and policies in; binds and reports out. See `units` and `policies` for the states of each."""

    def __init__(
        self,
        limits: Limits | None = None,
        extenders: Extenders | None = None,
        *,
        first_samples_s: float = 0.0,
        source_of: SourceOf = attrgetter("source"),
    ) -> None:
        """`extenders` are those that policies may ask, by name. `first_samples_s`: how long at the most a policy waits for each of its
        metrics to be asked for once (0: not at all; then nobody needs to say what was asked in vain). `source_of` names the source that
        a metric is asked of, for words."""
        self._core = core = Core(
            limits or Limits(), extenders, first_samples_s=first_samples_s, source_of=source_of
        )
        self._admission = Admission(core)
        self._binding = Binding(core, self._admission)
        self._membership = Membership(core, self._admission)
        self._preemption = Preemption(core)
        self._consulting = Consulting(core)
        self._preparing = Preparing(core, self._binding)
        self._storage = Storage(core, self._preparing)
        questions = Questions(core)
        settlement = Settlement(core, self._admission, self._preparing)
        self._pod_trials = PodTrials(
            core, questions, settlement, self._admission, self._preemption, self._consulting
        )
        self._gang_trials = GangTrials(core, questions, settlement, self._admission, self._preemption)
        self._outages = Outages(core)
        self._rejections = Rejections(core)
        self._reload = Reload(core, self._membership)
        self._told_to_wait = ToldToWait(core)
        self._timed = (
            core.queue,
            self._admission,
            self._outages,
            core.first_samples,
            self._told_to_wait,
            core.reports,
            self._rejections,
            self._preparing,
            core.states,
        )
        self._synced = False
        self._decided = False
        self._wake_at_ns: int | None = None
        self._thought: _Thought | None = None

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        """Apply one event. Decides nothing, but for what is under way: that is finished first, on the cluster that it began on.

        One flat table, longer than a screen: an event, and who sees to it.
        """
        if self._thought is not None:
            self._think(self._thought, None)
        match event:
            case e.PodSeen(pod):
                self._pod_seen(pod, now_ns)
            case e.PodGone(uid):
                self._pod_gone(uid, now_ns)
            case e.NodeSeen(node):
                self._node_seen(node, now_ns)
            case e.NodeGone(name):
                self._node_gone(name, now_ns)
            case e.NodeObjectSeen(kind, name, text):
                self._core.queue.wake(self._core.cache.put_node_object(kind, name, text), now_ns)
            case e.NodeObjectGone(kind, name):
                self._core.queue.wake(self._core.cache.drop_node_object(kind, name), now_ns)
            case e.NamespaceSeen(namespace):
                self._namespace_changed(namespace.name, self._core.cache.put_namespace(namespace), now_ns)
            case e.NamespaceGone(name):
                self._namespace_changed(name, self._core.cache.drop_namespace(name), now_ns)
            case e.BudgetSeen(budget):
                self._core.cache.put_budget(budget)
            case e.BudgetGone(namespace_name, name):
                self._core.cache.drop_budget(namespace_name, name)
            case e.PodSetSeen(pod_set):
                self._core.queue.wake(self._core.cache.put_pod_set(pod_set), now_ns)
            case e.PodSetGone(kind, namespace_name, name):
                self._core.queue.wake(self._core.cache.drop_pod_set(kind, namespace_name, name), now_ns)
            case e.StorageSeen(seen):
                self._storage.seen(seen, now_ns)
            case e.StorageGone(kind, namespace_name, name):
                self._storage.gone(kind, namespace_name, name, now_ns)
            case e.DeviceObjectSeen(device_object):
                self._storage.device_seen(device_object, now_ns)
            case e.DeviceObjectGone(device_kind, namespace_name, name):
                self._storage.device_gone(device_kind, namespace_name, name, now_ns)
            case e.DeviceKindServed(device_kind, served):
                self._storage.device_kind(device_kind, now_ns, served=served)
            case e.ClaimDropped(claim):
                self._storage.claim_dropped(claim, now_ns)
            case e.PreparationWritten(uid, versions):
                self._preparing.written(uid, versions, now_ns)
            case e.PreparationRefused(uid, reason, versions):
                self._preparing.refused(uid, reason, versions, now_ns)
            case e.Synced():
                self._sync(now_ns)
            case e.PoliciesOffered():
                self._reload.offer(event, now_ns, synced=self._synced, decided=self._decided)
            case e.StatesKept(texts):
                self._core.restore_states(texts)
            case e.SamplesArrived(policy, metric, samples):
                self._core.take_samples(policy, metric, samples)
                self._asked(policy, metric, now_ns)
                self._core.queue.wake({ClusterEvent.SAMPLES}, now_ns, policy=policy)
            case e.SamplesFailed(policy, metric):
                self._asked(policy, metric, now_ns)
            case e.BindConfirmed(uid, node_name):
                self._binding.confirmed(uid, node_name, now_ns)
            case e.BindRefused(uid, reason):
                self._binding.refused(uid, reason, now_ns)
            case e.BindLost(uid, reason):
                self._binding.lost(uid, reason, now_ns)
            case e.Evicted(preemptor, victims):
                self._preemption.evicted(preemptor, victims, now_ns)
            case e.EvictionRefused(preemptor, reason, forbidden, victims):
                self._preemption.refused(preemptor, reason, victims, now_ns, forbidden=forbidden)
            case e.Consulted(number, answers, failure):
                self._consulting.consulted(number, answers, failure, now_ns)
            case _:
                assert_never(event)
        return self._commands()

    def _sync(self, now_ns: int) -> None:
        if self._synced:
            return
        self._synced = True
        for name in list(self._core.policies.running):
            self._membership.gather(name, now_ns)

    def _pod_seen(self, seen: ObservedPod, now_ns: int) -> None:
        core, uid = self._core, seen.pod.uid
        if seen.finished:
            self._binding.ended(uid, seen.node, now_ns)
        nominated, before = core.cache.nominated.get(uid), core.cache.ledger.placement(uid)
        core.feed_states(seen, now_ns)
        counted, ended = core.cache.census.version, core.cache.ended.version
        events = set(core.cache.put_pod(seen) - _OF_THE_POD_ITSELF)
        self._note_counts(events, counted, ended)
        current = core.cache.pods.get(uid)
        if current is None:
            self._membership.forget(seen.pod)
        else:
            self._membership.know(seen.pod)
        if current is None or current.deleting:
            self._preemption.forget(uid)
            self._consulting.forget(uid)
        if nominated is not None and (current is None or current.node is None):
            after = core.cache.nominated.get(uid)
            if after is None or after.nominated_node != nominated.nominated_node:
                events.add(ClusterEvent.ASSIGNED_POD_DELETE)  # the room that was kept for it is free
        if self._synced:
            core.follow_placement(uid, before, now_ns)
            self._membership.follow(seen.pod, current, now_ns)
        if current is None or current.node is not None or current.deleting:
            self._preparing.give_up(uid, now_ns)
        core.queue.wake(events, now_ns)
        self._room_follows(seen, before, now_ns)

    def _room_follows(self, seen: ObservedPod, before: Placement | None, now_ns: int) -> None:
        """What a pod that others put on a node, or one that its kubelet did not take, says of that node's room."""
        core = self._core
        after = core.cache.ledger.placement(seen.pod.uid)
        if seen.rejection is not None and before is not None and after is None:
            self._rejections.rejected(seen, seen.rejection, before, now_ns)
        elif self._synced and before is None and after is not None:
            self._rejections.appeared(after.pod, after.node, now_ns)
            core.counters.overcommits += overfilled(core.cache, after)

    def _pod_gone(self, uid: PodUid, now_ns: int) -> None:
        core = self._core
        core.states.gone(uid)
        known, was_nominated = core.cache.pods.get(uid), uid in core.cache.nominated
        counted, ended = core.cache.census.version, core.cache.ended.version
        events = set(core.cache.drop_pod(uid))
        self._note_counts(events, counted, ended)
        self._preemption.forget(uid)
        self._consulting.forget(uid)
        core.assumed.left(uid)
        if known is not None:
            self._membership.forget(known.pod)
            if was_nominated:
                events.add(ClusterEvent.ASSIGNED_POD_DELETE)
            if self._synced:
                self._membership.follow(known.pod, None, now_ns)
        self._preparing.give_up(uid, now_ns)
        core.drop_claims_unseen(uid)
        core.reports.forget(uid)
        core.queue.wake(events, now_ns)

    def _note_counts(self, events: set[ClusterEvent], counted: int, ended: int) -> None:
        """Add to the events that the counts of pods, and of pods that ended, have moved since these versions."""
        cache = self._core.cache
        if cache.census.version != counted:
            events.add(ClusterEvent.POD_COUNT)
        if cache.ended.version != ended:
            events.add(ClusterEvent.ENDED_POD)

    def _node_seen(self, node: Node, now_ns: int) -> None:
        self._rejections.node_seen(node, now_ns)
        self._core.queue.wake(self._core.cache.put_node(node), now_ns)
        self._preparing.look(now_ns, node=node.name)

    def _node_gone(self, name: NodeName, now_ns: int) -> None:
        self._rejections.node_gone(name)
        self._core.queue.wake(self._core.cache.drop_node(name), now_ns)
        self._preparing.look(now_ns, node=name)

    def _asked(self, policy: str, metric: str, now_ns: int) -> None:
        """A metric was asked for, whatever came of it."""
        self._reload.asked(policy, metric)
        self._outages.look(policy, now_ns)

    def _namespace_changed(self, name: str, events: frozenset[ClusterEvent], now_ns: int) -> None:
        if events and self._synced:
            self._membership.namespace_changed(name, now_ns)
        # Pods elsewhere may have been refused by a term that selects namespaces by their labels.
        self._core.queue.wake(events, now_ns)

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, now_ns: int) -> bool:
        """Whether `decide` has something to do."""
        core = self._core
        if self._thought is not None:
            return True
        if not self._synced or not core.policies.running:
            return self._synced and self._reload.busy
        if self.binds_in_flight > core.limits.binds_in_flight_max:
            return False
        if core.queue.busy or self._reload.busy:
            return True
        next_ns = self._next_time_ns()
        return next_ns is not None and next_ns <= now_ns

    def decide(self, now_ns: int) -> list[Command]:
        """Go on with the decision that is under way. Where none is, do what time has made due, prepare one slice of a policy that
        is to replace another, and take the first of the queue. Does nothing when not `ready`."""
        most = self._core.limits.thought_a_step
        if self._thought is not None:
            self._think(self._thought, most)
            return self._commands()
        if not self.ready(now_ns):
            return self._commands()
        self._advance(now_ns)
        self._reload.step(now_ns)
        unit = self._core.queue.pop()
        self._decided = self._decided or unit is not None
        match unit:
            case PendingPod():
                self._think(_Thought(unit, self._pod_trials.try_pod(unit, now_ns)), most)
            case Gang():
                self._think(_Thought(unit, self._gang_trials.try_gang(unit, now_ns)), most)
            case None:
                pass
            case Unit():
                raise AssertionError(f"{unit} is neither a pod nor a gang")
        return self._commands()

    def _think(self, thought: _Thought, most: int | None) -> None:
        """Until it is through, or has cost so much. None: until it is through."""
        self._thought, thought.unit.place = None, Place.NOWHERE
        cost = 0
        for one in thought.steps:
            cost += one
            if most is not None and cost >= most:
                self._thought, thought.unit.place = thought, Place.DECIDING
                return

    @property
    def thinking(self) -> bool:
        """Whether a decision is under way. Nothing of it is in effect yet."""
        return self._thought is not None

    def put_back(self, now_ns: int) -> list[Command]:
        """Whoever is being decided for stands in the queue again: nothing may be decided any more."""
        if self._thought is not None:
            unit, self._thought = self._thought.unit, None
            unit.place = Place.NOWHERE
            for one in (unit, *unit.due.values()) if isinstance(unit, Gang) else (unit,):
                one.attempts -= 1
            self._core.queue.enqueue(unit, now_ns, "ScheduleAttemptFailure")
        return self._commands()

    def _advance(self, now_ns: int) -> None:
        self._core.queue.advance(now_ns)
        self._admission.advance(now_ns)
        self._outages.advance(now_ns)
        self._core.out += self._core.first_samples.advance(now_ns)
        self._told_to_wait.advance(now_ns)
        self._rejections.advance(now_ns)
        self._preparing.advance(now_ns)
        self._core.keep_states(now_ns)
        for unit, room in self._core.queue.words_due(now_ns, _WORDS_A_CALL):
            if isinstance(unit, PendingPod):
                self._core.report(unit, room.reason, room.message, now_ns)
        self._core.out += self._core.reports.due(now_ns)

    def _next_time_ns(self) -> int | None:
        soonest_ns = None
        for part in self._timed:
            time_ns = part.next_time_ns()
            if time_ns is not None and (soonest_ns is None or time_ns < soonest_ns):
                soonest_ns = time_ns
        return soonest_ns

    def _commands(self) -> list[Command]:
        core = self._core
        out, core.out = core.out, []
        next_ns = self._next_time_ns()
        if next_ns != self._wake_at_ns:
            self._wake_at_ns = next_ns
            if next_ns is not None:
                out.append(WakeAt(next_ns))
        return out

    # ── looking in ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def fatal_at_start(self) -> str | None:
        """Why this process has nothing to run at all; it is to end with an exit code that is not zero."""
        return self._core.policies.fatal_at_start

    @property
    def binds_in_flight(self) -> int:
        return len(self._core.in_flight) - len(self._core.preparations)

    @property
    def pods_waiting_for_volumes(self) -> int:
        """Pods that have their node and are bound once their claims are."""
        return len(self._core.preparations)

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def counters(self) -> Counters:
        return self._core.counters

    def state_counts(self) -> Mapping[tuple[str, str], StateCounts]:
        """By policy and state: how many values it has, and how many were let go."""
        return self._core.states.counts()

    @property
    def nodes_held_back(self) -> list[NodeName]:
        """Nodes of which room is held back, for their kubelets said that they have less than we count."""
        return self._rejections.nodes

    @property
    def decisions(self) -> list[Decision]:
        """The latest decisions, oldest first."""
        return list(self._core.decisions)

    @property
    def cache(self) -> Cache:
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
        return dict(self._core.queue.incoming)

    def pending_counts(self) -> dict[str, int]:
        """`scheduler_pending_pods` by queue."""
        return self._core.queue.counts()

    def why(self, uid: PodUid) -> Why | None:
        """What is known of a pending pod of ours and what it waits for; None where it is not one."""
        return why(self._core, uid)

    def why_named(self, pod: str) -> Why | None:
        """The same of `namespace/name`."""
        uids = [uid for uid, one in self._core.pods.items() if one.pod.full_name == pod]
        return why(self._core, uids[-1]) if uids else None

    def why_not_ours(self, pod: str) -> str:
        """Why `namespace/name`, of which `why_named` knows nothing, does not wait for a policy."""
        return why_not_ours(self._core, pod)

    def explain(
        self, uid: PodUid, now_ns: int, *, among: Collection[NodeName] | None = None
    ) -> Explanation | None:
        """Every node's verdict for a pending pod of ours, as of now, with the nodes that are not `among` these set aside; None where
        it is not one. Extenders are not asked."""
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.place is Place.BINDING:
            return None
        return core.evaluator.explain(
            core.plan(pod.policy),
            pod.pod,
            **core.known_of(pod, now_ns),
            among=among,
        )

    def check(self) -> list[str]:
        """One sentence for each thing inside that does not agree with another; none when all is well."""
        if not self._synced:
            return self._core.cache.ledger.check()
        parts = (self._preemption, self._consulting, self._rejections)
        return [*check(self._core), *(words for part in parts for words in part.check())]
