"""A new text of a policy: it decides anew how each pod of the policy waits.

Its results are prepared in slices while the old text decides. When it takes over, the queues and gangs of the policy are
dropped, and its pods are enqueued again in slices, between which pods of other policies are decided:

    all await the text ──a slice of them──► in the queue, their gangs held ──all──► gangs released, in slices ──► attempted

No pod of the policy is attempted before the end. Placed members of gangs are counted first and at once: whoever evicts pods
reads them. If that takes long, they are counted in slices, too, and no placed pod of the policy is evicted before the end.
"""

from collections.abc import Iterator, Mapping

from policysched.evaluate import Plan
from policysched.lang.ir.cost import layer_rules
from policysched.lang.ir.program import OnBindFailure, Program
from policysched.model.identifiers import PodUid
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


class PolicyTextEvents:
    """`slices`: by policy, what its new text has not reached: pods, then gangs."""

    def __init__(self, core: SchedulerCore, membership: PolicyMembership, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._membership = membership
        self._enqueuer = enqueuer
        self.slices: SlicedChanges[str, PodUid | GangId] = SlicedChanges(
            core.queue, self._text_id, self._apply_to, self._end_slices, self._operations
        )
        self._precomputed: dict[str, Mapping[PodUid, PreEnqueueResult]] = {}
        self._started: set[str] = set()  # policies whose pods were queued by this process

    def _text_id(self, policy: str) -> ObjectId:
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
        for uid in [pod.uid for pod in self.pods_of(program.name)]:
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

    def enqueue_again(
        self,
        policy: str,
        now_ns: int,
        precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS,
        *,
        at_once: bool,
    ) -> None:
        """Put all pods of the policy into the queue anew: it starts to run, or its text was replaced.

        Parked pods are tried again at once. `precomputed` are results of the new text. `at_once`: not in slices, so that pods
        of all policies are in the queue before the first attempt, unless that takes long.
        """
        core = self._core
        rules = _rule_names(core.policies.running[policy].program)
        core.queue.drop_policy(policy, rules)
        core.records.counters.shadows.retain_rules(policy, rules)
        self._enqueuer.forget_gangs(core.gangs.begin_replacing(policy))
        core.changing_policies.add(policy)
        self._precomputed[policy] = precomputed
        with self._enqueuer.using(precomputed):
            waiting = [pod.uid for pod in self.pods_of(policy) if self._awaits_text(pod.uid, now_ns)]
        self.slices.begin(policy, waiting, now_ns)
        if at_once and core.plan(policy).pre_enqueue_operations <= POD_OPERATIONS_AT_ONCE_MAX:
            self.slices.finish(policy, now_ns)

    def forget(self, policy: str) -> None:
        """A removed policy without pods."""
        self._started.discard(policy)
        self._core.queue.drop_policy(policy)

    def _awaits_text(self, uid: PodUid, now_ns: int) -> bool:
        """Whether the pod waits for its slice. A placed one is counted in its gang, unless that takes long."""
        core, observed = self._core, self._core.cache.pods[uid]
        is_in_flight = uid in core.binds.in_flight
        if is_in_flight or not self._membership.is_unplaced(observed):
            if not is_in_flight and self._operations(uid) > POD_OPERATIONS_AT_ONCE_MAX:
                core.uncounted_policies.add(observed.pod.scheduler)
                return True
            with raises_for(pod_id(observed.pod)):
                self._membership.count_in_gang(observed, now_ns)
            return False
        if observed.deleting:
            return False
        pod = core.pods.get(uid)
        if pod is None:
            pod = core.pods[uid] = PendingPod(observed, queued_ns=core.queued_ns_of(observed.pod, now_ns))
        if pod.state is QueueState.BIND_LOST:
            return False
        core.queue.await_text(pod)
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

    def _apply_to(self, policy: str, items: list[PodUid | GangId], now_ns: int) -> None:
        """Pods that changed meanwhile are in the queue by the new text already, or gone."""
        core = self._core
        gangs = [item for item in items if isinstance(item, tuple)]
        uids = [item for item in items if not isinstance(item, tuple)]
        pods = [core.pods.get(uid) for uid in uids]
        with self._enqueuer.using(self._precomputed[policy]):
            waiting = [pod for pod in pods if pod is not None and pod.state is QueueState.AWAITING_TEXT]
            self._enqueuer.enqueue_many(policy, waiting, now_ns)
            for observed in filter(None, map(core.cache.pods.get, uids)):
                if observed.pod.uid not in core.pods and not self._membership.is_unplaced(observed):
                    with raises_for(pod_id(observed.pod)):
                        self._membership.count_in_gang(observed, now_ns)
        for gang in filter(None, [core.gangs.end_hold(gang_id, POLICY_CHANGE) for gang_id in gangs]):
            with raises_for(gang.object_id):
                self._enqueuer.refresh_gang(gang, now_ns, "PolicyChange")

    def _end_slices(self, policy: str, now_ns: int) -> None:
        """Of the pods, then of the gangs."""
        core = self._core
        held = [gang for gang in core.gangs if gang.policy == policy and POLICY_CHANGE in gang.holds]
        for gang in held:
            if not gang.pending_members:  # nothing of it is queued
                gang.holds.discard(POLICY_CHANGE)
        if waiting := [gang.id for gang in held if gang.pending_members]:
            self.slices.begin(policy, waiting, now_ns)
            return
        core.gangs.end_replacing(policy)
        core.changing_policies.discard(policy)
        core.uncounted_policies.discard(policy)
        del self._precomputed[policy]
        if policy not in self._started:
            self._started.add(policy)
            self._resume_gang_failures(policy, now_ns)

    def _resume_gang_failures(self, policy: str, now_ns: int) -> None:
        """Gangs of which an earlier process saw a bind refused, and may not have evicted the bound members."""
        core = self._core
        clause = core.policies.running[policy].program.gang
        if clause is None or clause.on_bind_failure is not OnBindFailure.EVICT:
            return
        for pod in filter(None, (core.pods.get(pod.uid) for pod in self.pods_of(policy))):
            gang = core.gangs.gang_of(pod.uid)
            if gang is not None and pod.observed.refused_bind:
                core.binds.note_gang_failure(gang, pod.pod, pod.observed.refused_bind, now_ns)


def _rule_names(program: Program) -> frozenset[str]:
    """Of the rules that are counted. Each edit of a team's text could have others."""
    of_layers = [rule for layer in program.layers for rule in layer_rules(layer)]
    of_text = [rule for rules in (program.rules, program.shadows) for rule in (*rules.filters, *rules.scores)]
    return frozenset(rule.name for rule in (*of_layers, *of_text))
