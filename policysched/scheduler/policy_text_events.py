"""A new text of a policy: it decides anew how each pod of the policy waits.

Its results are prepared in slices while the old text decides. When it takes over, the queues and gangs of the policy are
dropped, and its pods are enqueued again in slices, between which pods of other policies are decided:

    all await the text ──a slice of them──► in the queue, their gangs held ──all──► gangs released, in slices ──► attempted

No pod of the policy is attempted before the end. What takes long is at the expense of the namespace of the pods (`slice_turns`).
Pods of others do not wait for a namespace that has taken more than its share of the time: its part ends later.

At a start the pods of all policies are reached in the same slices before the first attempt, but for those that take long.

Placed members of gangs are counted at once: whoever evicts pods reads them. If that takes long, or they are many, they are counted in
slices, too, without a rest. Before the end none of them is evicted, nor the rest of a gang of which a bind is refused.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter

from policysched.evaluate import Plan
from policysched.lang.ir.cost import layer_rules
from policysched.lang.ir.program import OnBindFailure, Program
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.blame import ObjectId, pod_id, raises_for, text_id
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.equivalence import program_reads_queue
from policysched.scheduler.queue.gang_registry import POLICY_CHANGE, GangId
from policysched.scheduler.queue.pre_enqueue import NO_RESULTS, PreEnqueueResult, evaluate_pre_enqueue
from policysched.scheduler.sliced_changes import SlicedChanges
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX, pods_per_slice

COUNTED_AT_ONCE_MAX = 256
"""Placed members of gangs, each of which takes up to 10 us."""

_Part = tuple[str, str]
"""Of the pods of a policy: those of a namespace that are slow to enqueue, or, if that is empty, all others."""


class PolicyTextEvents:
    """`slices`: what the new text of a policy has not reached: pending pods, then gangs. `counts`: its placed pods that are not counted in
    their gangs yet. A part of the timers."""

    def __init__(self, core: SchedulerCore, membership: PolicyMembership, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._membership = membership
        self._enqueuer = enqueuer
        self.slices, self.counts = (
            SlicedChanges[_Part, PodUid | GangId](
                core.queue,
                self._text_id,
                self._apply_to,
                self._end_slices,
                self._operations,
                payer_of=itemgetter(1),
                rests=rests,
            )
            for rests in (True, False)
        )
        self.sliced = self.slices, self.counts
        self._parts: dict[str, set[str]] = {}  # by policy: the namespaces of parts that have not ended
        self._unreached: dict[str, set[str]] = {}  # of those: not all pods are reached
        self._precomputed: dict[str, Mapping[PodUid, PreEnqueueResult]] = {}
        self._started: set[str] = set()  # policies whose pods were queued by this process
        self._starting: set[str] = set()  # those for the first time
        self._unparking: set[str] = set()  # policies that are about to get a new text
        self._before_attempts: dict[str, None] = {}  # policies whose pods `take_first` reaches

    def next_time_ns(self) -> None:
        """`slices` and `counts` have their own turns."""

    def advance(self, _now_ns: int) -> None:
        """Others do not wait for namespaces that have become overdrawn."""
        for policy in self._core.changing_policies & self._parts.keys():
            self._end_hold(policy)

    def _text_id(self, part: _Part) -> ObjectId:
        policy, _ = part
        return text_id(self._core.policies.running[policy].program, self._core.permissions.owner(policy))

    def pods_of(self, policy: str) -> Iterator[Pod]:
        """All known pods that name the policy, on a node or not."""
        return self._membership.pods_of(policy)

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]:
        """Evaluate another text of a policy for its pods, in slices.

        Yields the same growing dict. The last one has all pods that existed at the start; pods that are created or
        changed later are evaluated when the text takes over.
        """
        core = self._core
        reads_queue, results = program_reads_queue(program), dict[PodUid, PreEnqueueResult]()
        slice_size, evaluated = pods_per_slice(plan.pre_enqueue_operations, core.limits.rekey_pods_max), 0
        for uid in self._membership.uids_of(program.name):
            observed = core.cache.pods.get(uid)
            if observed is None or (program.gang is None and uid not in core.pods):
                continue
            if evaluated and evaluated % slice_size == 0:
                yield results
            evaluated += 1
            pod = core.pods.get(uid)
            facts = QueuedPodInfo(core.queued_ns_of(observed.pod, now_ns), 0) if pod is None else pod.facts
            namespace = core.namespace_of(observed.pod)
            try:
                results[uid] = evaluate_pre_enqueue(
                    plan,
                    observed.pod,
                    namespace,
                    facts,
                    now_ns,
                    reads_queue=reads_queue,
                    namespace_rejection=core.namespace_rejection(program.name, observed.pod),
                )
            except Exception:  # noqa: BLE001  # again when the text takes over, and is then reported
                continue
        yield results

    def unpark_in_steps(self, policy: str, now_ns: int) -> Iterator[None]:
        """Parked pods await the text that is about to take over: in one piece their groups would take 10 us each. No pod of the
        policy is attempted until `enqueue_again`."""
        self._unparking.add(policy)
        self._core.changing_policies.add(policy)
        yield from self._core.queue.unpark_in_steps(policy, now_ns)

    def enqueue_again(
        self,
        policy: str,
        now_ns: int,
        precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS,
        *,
        before_attempts: bool,
    ) -> None:
        """Put all pods of the policy into the queue anew: it starts to run, or its text was replaced.

        Parked pods are tried again at once. `precomputed` are results of the new text. `before_attempts`: `take_first` has pods of
        all policies in the queue before the first attempt, unless that takes long.
        """
        core, running = self._core, self._core.policies.running[policy]
        rules = _rule_names(running.program)
        core.queue.drop_policy(policy, rules)
        core.records.counters.shadows.retain_rules(policy, rules)
        self._discard_parts(policy)
        # In one piece, and there may be tens of thousands: nothing is done for a pod that needs nothing.
        may_be_slow = running.plan.pre_enqueue_operations > POD_OPERATIONS_AT_ONCE_MAX
        has_gangs, uids = running.program.gang is not None, self._membership.uids_of(policy)
        namespaces = {core.cache.pods[uid].pod.namespace for uid in uids} if has_gangs else ()
        self._enqueuer.forget_gangs(core.gangs.begin_replacing(policy, namespaces))
        core.changing_policies.add(policy)
        self._unparking.discard(policy)
        if policy not in self._started:
            self._started.add(policy)
            self._starting.add(policy)
        self._precomputed[policy] = precomputed
        pending, placed = defaultdict[str, list[PodUid]](list), defaultdict[str, list[PodUid]](list)
        of_all, counted = pending[""], 0
        with self._enqueuer.using(precomputed):
            for uid in uids:
                pod = core.pods.get(uid)
                if pod is not None and pod.state is QueueState.AWAITING_POLICY and not may_be_slow:
                    of_all.append(uid)
                    continue
                observed = core.cache.pods[uid]
                namespace = observed.pod.namespace
                if uid in core.binds.in_flight or not self._membership.is_unplaced(observed):
                    if not has_gangs:
                        continue
                    if uid in core.binds.in_flight:
                        self._count_in_gang(observed, now_ns)
                    elif may_be_slow and self._is_slow(uid):
                        placed[namespace].append(uid)
                    elif counted < COUNTED_AT_ONCE_MAX or core.queue.order_is_given:
                        counted += 1
                        self._count_in_gang(observed, now_ns)
                    else:
                        placed[""].append(uid)
                elif self._awaits_text(observed, now_ns):
                    pending[namespace if may_be_slow and self._is_slow(uid) else ""].append(uid)
        for namespace in pending.keys() - {""}:
            pending[namespace].sort(key=self._precedence)
        self._parts[policy] = {*pending, *placed, ""}
        self._unreached[policy] = {*self._parts[policy]}
        core.uncounted.update((policy, namespace) for namespace in placed)
        for changes, of_parts in ((self.counts, placed), (self.slices, pending)):
            for namespace in of_parts.keys() - {""}:
                changes.begin((policy, namespace), of_parts[namespace], now_ns)
        if placed[""]:
            self.counts.begin((policy, ""), placed[""], now_ns, at_once=False)
        self.slices.begin((policy, ""), pending[""], now_ns)
        if before_attempts:
            self._before_attempts[policy] = None

    def take_first(self, now_ns: int) -> bool:
        """At a start: reach a slice of the pods that are to be reached before the first attempt. False: all are."""
        for policy in list(self._before_attempts):
            part = policy, ""
            for changes in (self.counts, self.slices):
                if left := changes.left(part):
                    changes.reach(part, left, now_ns)
                    return True
            del self._before_attempts[policy]
        return False

    def forget(self, policy: str) -> None:
        """A removed policy without pods."""
        self._started.discard(policy)
        self._starting.discard(policy)
        self._unparking.discard(policy)
        self._discard_parts(policy)
        self._core.gangs.end_replacing(policy, ())
        self._core.queue.drop_policy(policy)

    def _discard_parts(self, policy: str) -> None:
        self._before_attempts.pop(policy, None)
        self._unreached.pop(policy, None)
        self._precomputed.pop(policy, None)
        for namespace in self._parts.pop(policy, ()):
            self.slices.discard((policy, namespace))
            self.counts.discard((policy, namespace))
            self._core.uncounted.discard((policy, namespace))

    def _is_slow(self, uid: PodUid) -> bool:
        return self._operations(uid) > POD_OPERATIONS_AT_ONCE_MAX

    def _precedence(self, uid: PodUid) -> tuple[int, int]:
        """The default order. Those of a namespace that becomes overdrawn meanwhile are attempted before the others are reached, and
        what the order of the policy reads of them is not known yet."""
        pod = self._core.pods[uid]
        return -pod.priority, pod.queued_ns

    def _count_in_gang(self, observed: ObservedPod, now_ns: int) -> None:
        with raises_for(pod_id(observed.pod)):
            self._membership.count_in_gang(observed, now_ns)

    def _awaits_text(self, observed: ObservedPod, now_ns: int) -> bool:
        """Whether the pod, which is on no node, waits for its slice."""
        core, uid = self._core, observed.pod.uid
        if observed.deleting:
            return False
        pod = core.pods.get(uid)
        if pod is None:
            pod = core.pods[uid] = PendingPod(observed, queued_ns=core.queued_ns_of(observed.pod, now_ns))
        if pod.state is QueueState.BIND_LOST:
            return False
        core.queue.await_policy(pod)
        return True

    def _operations(self, item: PodUid | GangId) -> int:
        """The static cost of what is not precomputed."""
        core = self._core
        observed = None if isinstance(item, tuple) else core.cache.pods.get(item)
        running = None if observed is None else core.policies.running.get(observed.pod.scheduler)
        if observed is None or running is None:
            return 0
        pod, pending = observed.pod, core.pods.get(observed.pod.uid)
        if pending is None and running.program.gang is None:
            return 0  # a placed pod, which is only counted in its gang
        result = self._precomputed.get(pod.scheduler, NO_RESULTS).get(pod.uid)
        if result is not None:
            attempts = result.attempts if pending is None else pending.attempts
            if result.is_current(pod, core.namespace_of(pod), attempts):
                return 0
        return running.plan.pre_enqueue_operations

    def _apply_to(self, part: _Part, items: list[PodUid | GangId], now_ns: int) -> None:
        """Pods that changed meanwhile are in the queue by the new text already, or gone."""
        core, (policy, _) = self._core, part
        gangs = [item for item in items if isinstance(item, tuple)]
        uids = [item for item in items if not isinstance(item, tuple)]
        pods = [core.pods.get(uid) for uid in uids]
        with self._enqueuer.using(self._precomputed[policy]):
            waiting = [pod for pod in pods if pod is not None and pod.state is QueueState.AWAITING_POLICY]
            self._enqueuer.enqueue_many(policy, waiting, now_ns)
            for observed in filter(None, map(core.cache.pods.get, uids)):
                if observed.pod.uid not in core.pods and not self._membership.is_unplaced(observed):
                    self._count_in_gang(observed, now_ns)
        for gang in filter(None, [core.gangs.end_hold(gang_id, POLICY_CHANGE) for gang_id in gangs]):
            with raises_for(gang.object_id):
                self._enqueuer.refresh_gang(gang, now_ns, "PolicyChange")

    def _end_slices(self, part: _Part, now_ns: int) -> None:
        """Of the pods, then of the gangs."""
        core, (policy, namespace) = self._core, part
        if self.counts.left(part):
            return
        core.uncounted.discard(part)
        if self.slices.left(part):
            return
        unreached, parts = self._unreached[policy], self._parts[policy]
        unreached.discard(namespace)
        if "" not in unreached:
            core.gangs.end_replacing(policy, unreached)
            held = [
                gang
                for gang in core.gangs
                if gang.policy == policy
                and POLICY_CHANGE in gang.holds
                and gang.namespace not in unreached
                and namespace in ("", gang.namespace)  # nobody pays for those of others
            ]
            for gang in held:
                if not gang.pending_members:  # nothing of it is queued
                    gang.holds.discard(POLICY_CHANGE)
            if waiting := [gang.id for gang in held if gang.pending_members]:
                self.slices.begin(part, waiting, now_ns)
                return
        parts.discard(namespace)
        if policy in self._starting and "" not in parts:
            self._resume_gang_failures(
                policy,
                now_ns,
                (lambda name: name == namespace) if namespace else (lambda name: name not in parts),
            )
        self._end_hold(policy)

    def _end_hold(self, policy: str) -> None:
        """If all pods are reached, except those of overdrawn namespaces."""
        core, parts = self._core, self._parts[policy]
        is_over = all(name and core.queue.decision_time.is_overdrawn(name) for name in parts)
        if is_over and policy not in self._unparking:
            core.changing_policies.discard(policy)
        if not parts:
            del self._parts[policy], self._unreached[policy], self._precomputed[policy]
            self._starting.discard(policy)

    def _resume_gang_failures(self, policy: str, now_ns: int, is_reached: Callable[[str], bool]) -> None:
        """Gangs of which an earlier process saw a bind refused, and may not have evicted the bound members."""
        core = self._core
        clause = core.policies.running[policy].program.gang
        if clause is None or clause.on_bind_failure is not OnBindFailure.EVICT:
            return
        uids = [pod.uid for pod in self.pods_of(policy) if is_reached(pod.namespace)]
        for pod in filter(None, map(core.pods.get, uids)):
            gang = core.gangs.gang_of(pod.uid)
            if gang is not None and pod.observed.refused_bind:
                core.begin_gang_failure(gang, pod.pod, pod.observed.refused_bind, now_ns)


def _rule_names(program: Program) -> frozenset[str]:
    """Of the rules that are counted. Each edit of a team's text could have others."""
    of_layers = [rule for layer in program.layers for rule in layer_rules(layer)]
    of_text = [rule for rules in (program.rules, program.shadows) for rule in (*rules.filters, *rules.scores)]
    return frozenset(rule.name for rule in (*of_layers, *of_text))
