"""A pause in the attempt of a gang: events are applied, and pods are decided beside the members that are placed so far.

    a pod ─► a node beside the members? ── yes ─► also fits there without them? ── yes ─► assumed
                   └── no ─► a node without them? ── no ─► backs off
                                   └── yes ─► waits, with those behind it. Late in the attempt: interrupts it, and members are placed anew

The members are on an overlay, and their victims are not: nothing of the gang is in effect, and it may end without a placement. So a pod needs a
node that takes it in both cases, as with nominated pods, and the quotas must admit it in both. The result is one that single decisions could
have had, in the order: members placed before the pause, pods, later members. Where an event changes the node of a member or a pod there,
or brings a pod there, the member must still fit, or is placed anew: a gang is not bound to nodes that are known to refuse it.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.evaluate import OneNode, Overlay, RemainingNodes
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptSuccess, rejected_early
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_overlay import (
    present_overlay,
    present_victims,
    with_nominations_of,
)
from policysched.scheduler.gangs.gang_search_result import GangSearchResult, wanted
from policysched.scheduler.gangs.lost_nodes import depend_on_each_other, lose_nodes
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import VISITS_PER_PIECE, Steps, evaluation_cost, run_to_completion

_Nominations = tuple[tuple[tuple[PodUid, NodeName | None], ...], tuple[object, ...]]
"""The nominated pods with their nodes, and the holds on capacity."""


@dataclass(slots=True, eq=False)
class Pause:
    """`cost_left`: what decisions about others may cost. `overtaking`: whether pods behind the gang in its policy are
    decided too; `may_nest`: gangs may interrupt the attempt, but those that were `refused`, as they would take nodes of its members.
    `is_late`: whether members may lose their nodes to others; so many have in the attempt: `lost_count`. `search`: with the members that
    have a node on the overlay. `devices`: what the attempt may spend on the search for them."""

    core: SchedulerCore
    pod_attempts: PodAttempts
    enqueuer: PodEnqueuer
    gang: QueuedGang
    search: GangSearchResult
    cost_left: int
    overtaking: bool
    devices: SearchAllowance
    may_nest: bool = True
    is_late: bool = False
    lost_count: int = 0
    refused: set[QueueEntry] = field(default_factory=set)
    cluster_changed: bool = False
    interrupts: bool = False
    failed: list[tuple[PendingPod, int, bool]] = field(default_factory=list)
    """Pods without a node, when their backoffs end, and whether they may evict others, so that they are attempted as soon as the
    attempt ends. Nothing waits for them until then."""
    _ends: Steps[bool] | None = None
    _waiting_policies: set[str] = field(default_factory=set)
    _version: object = None
    _nominations: _Nominations = ((), ())
    _namespace: object = None
    _volumes_stamp: int = 0
    _devices_stamp: int = 0
    _quotas: QuotaUsage | None = None
    """With the members that have a node, and the pods that were decided beside them. None: there are none."""

    _judged_by: object = None
    """The quotas by which the members were judged last."""

    _pods: dict[PodUid, Pod] = field(default_factory=dict)
    """The members as they were when they got their nodes: a pending pod that changes is the same entry."""

    _seen: dict[NodeName, tuple[Node, dict[PodUid, Pod]]] = field(default_factory=dict)
    """The nodes of the members, with their pods, as they were when the members were known to fit there."""

    _beside: dict[PodUid, Pod] = field(default_factory=dict)
    """Pods of attempts that interrupted this one and left the members their nodes."""

    _nominated_to: set[NodeName] = field(default_factory=set)
    """Nodes that pods were nominated to since then."""

    def __post_init__(self) -> None:
        self._version, self._nominations = self._current_version(), self._current_nominations()
        self._namespace = self.core.cache.namespaces.get(self.gang.namespace)
        self._volumes_stamp = self.core.cache.volumes.stamp
        self._devices_stamp = self.core.cache.devices.stamps.last
        self._pods = {pod.uid: pod.pod for pod, _ in self.search.fits}
        self._seen = {success.node: self._look_at(success.node) for _, success in self.search.fits}

    @property
    def is_asking(self) -> bool:
        """Whether `ask_whether_to_end` has more to do. The cluster must not change before."""
        return self._ends is not None

    def ask_whether_to_end(self, cost_max: int | None, now_ns: int) -> bool | None:
        """A slice of `ends_attempt`. None: it is not over."""
        if self._ends is None:
            self.note_changes()
            self._ends = self.ends_attempt(now_ns)
        cost = 0
        with self.core.cache.devices.allocation_cache.limited(self.devices):
            while cost_max is None or cost < cost_max:
                try:
                    cost += next(self._ends)
                except StopIteration as end:
                    self._ends = None
                    ends: bool = end.value
                    return ends
        return None

    def ends_attempt(self, now_ns: int) -> Steps[bool]:
        """Whether the search is of no use any more: the gang was requeued or needs something else, its namespace changed, a
        member or its node is gone, or the node does not take it any more. In steps, between which the cluster does not change:
        members and victims are thousands."""
        core, gang = self.core, self.gang
        if gang.state is not QueueState.ATTEMPTING or self.search.wanted != wanted(gang):
            return True
        if core.cache.namespaces.get(gang.namespace) != self._namespace:
            return True
        for pod, success in self.search.fits:
            if gang.pending_members.get(pod.uid) is not pod or success.node not in core.cache.nodes:
                return True
            observed = core.cache.pods.get(pod.uid)
            if observed is None or (observed.pod is not pod.pod and observed.pod != pod.pod):
                return True  # the change reaches it later, as its policy is slow
        is_present = (yield from self._have_volumes()) and (yield from self._are_admitted())
        return not (is_present and (yield from self._still_fit(now_ns)))

    def _have_volumes(self) -> Steps[bool]:
        """Whether what the members have reserved is as it was, and nobody else's. Otherwise the search starts again."""
        volumes = self.core.cache.volumes
        if volumes.stamp != self._volumes_stamp:
            for _, success in self.search.fits:
                work = None if success.prebind_work is None else success.prebind_work.volumes
                if work is not None:
                    yield len(work.choice.reservation_keys)
                    if not volumes.still_has(work.choice, success.node):
                        return False
        self._volumes_stamp = volumes.stamp
        return True

    def _are_admitted(self) -> Steps[bool]:
        """Whether the quotas still admit the members. They admit them beside the pods that were decided here. Where quota is taken
        back, its victims are chosen again at the end."""
        if self.search.reclaims:
            return True
        core, gang, state = self.core, self.gang, self._quota_state()
        if state == self._judged_by and not any(self._has_changed(pod) for pod, _ in self.search.fits):
            return True
        trial = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
        for index, (pod, _) in enumerate(self.search.fits if trial is not None else ()):
            assert trial is not None
            if index % VISITS_PER_PIECE == VISITS_PER_PIECE - 1:
                yield VISITS_PER_PIECE
            if core.quotas.refusal(pod.pod, trial) is not None:
                return False
            trial.add(core.quotas.charge_of(pod.pod))
        self._quotas, self._judged_by = trial, state
        return True

    def _quota_state(self) -> object:
        account = self.core.quotas.accounts.get(self.gang.policy)
        return None if account is None else (account, account.version, self._current_nominations())

    def _still_fit(self, now_ns: int) -> Steps[bool]:
        """Whether the members still get their nodes, where an event changed them, a node or its pods, or brought pods to it. With
        the overlay, which nothing makes in one piece then."""
        changed = {success.node for pod, success in self.search.fits if self._has_changed(pod)}
        if changed:  # the overlay has members as they were
            self.search.overlay, self.cluster_changed = None, True
        for name, (node, pods) in self._seen.items():
            now_node, now_pods = self._look_at(name)
            if now_node is not node or any(
                pods.get(uid) is not pod and self._beside.get(uid) != pod for uid, pod in now_pods.items()
            ):
                changed.add(name)
        changed |= self._nominated_to & self._seen.keys()
        self.search.overlay = yield from present_overlay(self.core, self.gang, self.search)
        since, stamp = self._devices_stamp, self.core.cache.devices.stamps.last
        if not changed and stamp == since:
            return True
        since_change, search = None if stamp == since else since, self.search
        lost_count = yield from lose_nodes(
            self.core, self.pod_attempts, self.gang, search, changed, since_change, now_ns
        )
        if lost_count:
            if search.evicts or not self._may_lose or depend_on_each_other(self.core, self.gang):
                return False
            self.lost_count += lost_count
            self.cluster_changed, self._judged_by = True, None
            self.gang.keeps_nodes |= not self._may_lose
        self._devices_stamp = stamp
        self._nominated_to.clear()
        self._pods = {pod.uid: pod.pod for pod, _ in search.fits}
        seen = self._seen | {name: self._look_at(name) for name in changed}
        self._seen = {success.node: seen[success.node] for _, success in search.fits}
        return True

    @property
    def _may_lose(self) -> bool:
        """Whether so few members have lost their nodes in the attempt that it is not much longer for that."""
        return self.lost_count < len(self.gang.pending_members)

    def gives_way_to(self, entry: QueueEntry) -> bool:
        """Whether it may take nodes of members: these have kept them for long enough. None of a lower priority may, and none that may be
        behind the gang in its policy."""
        is_ahead = entry.policy != self.gang.policy or not self.overtaking
        return self.is_late and self._may_lose and is_ahead and entry.priority >= self.gang.priority

    def keeps_nodes_from(self, entry: QueueEntry) -> bool:
        return self.gang.keeps_nodes and not self.gives_way_to(entry)

    def puts_off_reclaim(self, entry: QueueEntry) -> bool:
        """Without their quota all members would lose their nodes."""
        is_of_policy = entry.policy == self.gang.policy
        return self.gang.keeps_nodes and (is_of_policy or not self.gives_way_to(entry))

    def _has_changed(self, pod: PendingPod) -> bool:
        before = self._pods[pod.uid]
        return before is not pod.pod and before != pod.pod

    def _look_at(self, name: NodeName) -> tuple[Node, dict[PodUid, Pod]]:
        return self.core.cache.nodes[name], dict(self.core.cache.ledger.usage(name).pods)

    def note_changes(self) -> None:
        """The cluster may have changed."""
        version, nominations = self._current_version(), self._current_nominations()
        if (version, nominations) == (self._version, self._nominations):
            return
        overlay, self.cluster_changed = self.search.overlay, True
        if nominations != self._nominations or overlay is None or not overlay.follow():
            self.search.overlay = None
        new = set(nominations[0]).difference(self._nominations[0])
        self._nominated_to |= {node for _, node in new if node is not None}
        self.search.victims = present_victims(self.core, self.search)
        self._version, self._nominations = version, nominations

    def _current_version(self) -> object:
        """Shares tell of pods on nodes that are not known, too: a victim may be there, with the rest of its gang."""
        cache = self.core.cache
        return self.core.evaluator.version, cache.shares.version, cache.devices.stamps.last

    def _current_nominations(self) -> _Nominations:
        """What the overlay has beside the members."""
        nominated = self.core.cache.nominated.items()
        nodes = tuple([(uid, nomination.nominated_node) for uid, nomination in nominated])
        return nodes, tuple(self.core.capacity_holds.items())

    def next_entry(self, others: Sequence["Pause"] = ()) -> QueueEntry | None:
        """The next pod to decide, or gang to attempt; None: the attempt continues. `others`: those that this attempt interrupts."""
        if self.cost_left <= 0:
            return None
        beside = [(pause.gang, pause.overtaking) for pause in (self, *others)]
        namespaces = {gang.namespace for gang, _ in beside}

        def may_interrupt(gang: QueueEntry) -> bool:
            may_nest = self.may_nest and not self.search.evicts
            return may_nest and gang.namespace not in namespaces and gang not in self.refused

        return self.core.queue.pop_beside(beside, self._waiting_policies, may_interrupt)

    def decide(self, entry: QueueEntry, now_ns: int) -> bool:
        """Decide about an entry that was just popped, or put it back, or leave it to an attempt that interrupts this one
        (`interrupts`). Returns whether it is a pod that no node takes: it backs off."""
        if isinstance(entry, PendingPod):
            return self._decide(entry, now_ns)
        self.interrupts = True
        return False

    def _decide(self, pod: PendingPod, now_ns: int) -> bool:
        core, attempts = self.core, self.pod_attempts
        self.cost_left -= evaluation_cost(len(core.cache.nodes), core.evaluator.decision_cost(pod.pod))
        refusal = core.quotas.refusal(pod.pod)
        early = rejected_early(
            pod.policy, pod.namespace, None, refusal, lambda: attempts.equivalence_key(pod)
        )
        key = attempts.equivalence_key(pod) if early is None else early.equivalence_key
        group = None if pod.uid in core.cache.nominated else core.queue.blocked_group(key)
        if group is not None:
            core.queue.join_group(pod, group, now_ns)
            core.report_pending(pod, group.reason, group.message, now_ns)
            return False
        may_reclaim = refusal is not None and refusal.account.plan.allows_preemption
        if may_reclaim or not self._can_be_decided(pod):
            self.interrupts = not (self.search.evicts or (may_reclaim and self.puts_off_reclaim(pod)))
            if not self.interrupts:
                self._wait(pod)
            return False
        pod.attempts += 1
        success = self._find_node(pod, now_ns) if early is None else None
        if success is not None:
            kept, placed = core.kept_nodes, [(pod, success.node)]
            if kept is not None and run_to_completion(kept.refuse(pod, placed, now_ns)):
                self.wait_for(pod)
            else:
                self._assume(pod, success, now_ns)
            return False
        alone = None if early is not None else attempts.evaluate(pod, None, now_ns)
        if isinstance(alone, AttemptSuccess):
            pod.attempts -= 1
            self.interrupts = self._may_take_node(pod)
            if not self.interrupts:
                self._wait(pod)
            return False
        may_preempt = alone is not None and alone.node_count > 0 and self.may_preempt(pod)
        if may_preempt and not (self.keeps_nodes_from(pod) or self.search.evicts):
            pod.attempts -= 1
            self.interrupts = True
            return False
        self.back_off(pod, now_ns, may_preempt=may_preempt)
        return True

    def _may_take_node(self, pod: PendingPod) -> bool:
        """Of a member, not its quota: then all would lose their nodes."""
        quotas = self._quotas_for(pod)
        is_admitted = quotas is None or self.core.quotas.refusal(pod.pod, quotas) is None
        return is_admitted and self.gives_way_to(pod) and not self.search.evicts

    def back_off(self, pod: PendingPod, now_ns: int, *, may_preempt: bool) -> None:
        """No node takes the pod."""
        pod.attempts -= may_preempt
        self.enqueuer.back_off(pod, now_ns)
        self.failed.append((pod, pod.backoff_until_ns, may_preempt))

    def may_preempt(self, entry: QueueEntry) -> bool:
        """Whether an attempt of the entry might evict others. It would back off in the pauses of one gang after the other."""
        lowest = self.core.cache.ledger.lowest_priority
        is_higher = lowest is not None and lowest < entry.priority
        can_evict = entry.representative_pod.preemption_policy != "Never" or isinstance(entry, QueuedGang)
        return is_higher and can_evict and self.core.plan(entry.policy).allows_preemption

    def _assume(self, pod: PendingPod, success: AttemptSuccess, now_ns: int) -> None:
        quotas = self._quotas_for(pod)
        if quotas is not None:
            quotas.add(self.core.quotas.charge_of(pod.pod))
        self.pod_attempts.assume(pod, success, now_ns)
        if quotas is not None:
            self._judged_by = self._quota_state()
        if success.node in self._seen:
            self._seen[success.node] = self._look_at(success.node)
        self.note_changes()

    def _quotas_for(self, pod: PendingPod) -> QuotaUsage | None:
        """None: it shares none with the members."""
        return self._quotas if pod.policy == self.gang.policy else None

    def _find_node(self, pod: PendingPod, now_ns: int) -> AttemptSuccess | None:
        """A node that takes the pod in both cases. If the best one beside the members takes it only without victims, the best of
        those that have none."""
        quotas = self._quotas_for(pod)
        if quotas is not None and self.core.quotas.refusal(pod.pod, quotas) is not None:
            return None
        without_victims = frozenset(self.search.victims.values())
        for nodes in (None, RemainingNodes(None, without_victims)) if without_victims else (None,):
            with self._overlay_for(pod) as overlay:
                beside = self.pod_attempts.evaluate(pod, overlay, now_ns, nodes)
                if not isinstance(beside, AttemptSuccess):
                    return None
                work = self.pod_attempts.prebind_work(pod, beside.node, overlay, now_ns)
            alone = self.pod_attempts.evaluate(pod, None, now_ns, OneNode(beside.node))
            if isinstance(alone, AttemptSuccess):
                return replace(beside, prebind_work=work)
        return None

    def _can_be_decided(self, pod: PendingPod) -> bool:
        """Whether the decision is a plain one: without preemption, devices, extenders and gangs, and short."""
        core, uid = self.core, pod.uid
        return not (
            core.gangs.gang_of(uid) is not None
            or uid in core.cache.nominated
            or self.pod_attempts.has_other_steps(pod)
            or uses_devices(pod.pod)
            or core.plan(pod.policy).is_long(len(core.cache.nodes))
            or core.plan(pod.policy).program.layers
            or not core.evaluator.is_short_decision(pod.pod)
        )

    def _wait(self, pod: PendingPod) -> None:
        self.wait_for(pod)
        self.core.queue.put_back(pod)

    def wait_for(self, entry: QueueEntry) -> None:
        """An entry that was put back waits, with those behind it: a pod until the pause is over, and a gang until the attempt is."""
        if isinstance(entry, PendingPod):
            self._waiting_policies.add(entry.policy)
        else:
            self.refused.add(entry)

    def takes_nodes(self, placed: Sequence[tuple[PendingPod, NodeName]], now_ns: int) -> Steps[bool]:
        """Whether pods of an attempt that interrupts this one would take what the members have: they do not fit beside them, the quotas
        do not admit them beside them, or both reserve volumes or devices. If members give way, what costs single ones their nodes does
        not count."""
        core, search, attempts = self.core, self.search, self.pod_attempts
        reserves = any(success.prebind_work is not None for _, success in search.fits)
        self.note_changes()
        search.overlay = overlay = yield from present_overlay(core, self.gang, search)
        added, usage = list[PodUid](), None if self._quotas is None else self._quotas.trial()
        uids = {pod.uid for pod, _ in placed}
        nominated = [added for added in overlay.added_pods if added[0].uid in uids]
        for value, _ in nominated:
            overlay.remove_pod(value.uid)
        try:
            for pod, node in placed:
                if reserves and (pod.pod.claims or (uses_devices(pod.pod) and not self.gives_way_to(pod))):
                    return True
                if usage is not None and pod.policy == self.gang.policy:
                    if core.quotas.refusal(pod.pod, usage) is not None:
                        return True
                    usage.add(core.quotas.charge_of(pod.pod))
                if self.gives_way_to(pod):
                    continue
                yield evaluation_cost(len(core.cache.nodes), core.evaluator.decision_cost(pod.pod))
                with self._overlay_for(pod, added) as seen:
                    yield from attempts.warm_up(pod, now_ns, seen)
                    if not isinstance(attempts.evaluate(pod, seen, now_ns, OneNode(node)), AttemptSuccess):
                        return True
                overlay.add_pod(pod.pod, node)
                added.append(pod.uid)
        finally:
            for uid in added:
                overlay.remove_pod(uid)
            for value, node in nominated:
                overlay.add_pod(value, node)
        return False

    def note_placed(self, pods: Iterable[PendingPod]) -> None:
        """They take no nodes of the members, unless these give way to them, so these need not be evaluated again."""
        self._beside |= {pod.uid: pod.pod for pod in pods if not self.gives_way_to(pod)}

    def _overlay_for(
        self, pod: PendingPod, beside: Collection[PodUid] = ()
    ) -> AbstractContextManager[Overlay]:
        """The cluster with the members, those `beside`, and what is nominated as this pod sees it."""
        overlay = self.search.overlay
        assert overlay is not None, "`ends_attempt` makes it"
        if not (self.core.cache.nominated or self.core.capacity_holds):
            return nullcontext(overlay)
        return with_nominations_of(self.core, self.gang, self.search, pod.pod, overlay, beside)
