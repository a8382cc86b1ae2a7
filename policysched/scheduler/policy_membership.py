"""Which pods belong to which policy, and what a change of a pod, its namespace or its policy means for them.

A pod belongs to the policy that its schedulerName names, while that policy runs. Other pods are not scheduled here. If
they are placed they use capacity, and a policy that starts later gets its pods from here.
"""

from collections.abc import Iterable, Iterator, Mapping

from policysched.cluster.ledger import PlacementState
from policysched.evaluate import GangTerms, Plan
from policysched.lang.ir.cost import layer_rules
from policysched.lang.ir.program import OnBindFailure, Program
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.equivalence import program_reads_queue
from policysched.scheduler.queue.pre_enqueue import NO_RESULTS, PreEnqueueResult, evaluate_pre_enqueue


class PolicyMembership:
    """Every known pod by its schedulerName, whether or not such a policy runs."""

    def __init__(self, core: SchedulerCore, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._pods_by_scheduler: dict[str, dict[PodUid, None]] = {}
        self._started: set[str] = set()  # policies whose pods were queued by this process

    def add(self, pod: Pod) -> None:
        self._pods_by_scheduler.setdefault(pod.scheduler, {})[pod.uid] = None
        self._core.canaries.put_pod(pod)

    def remove(self, pod: Pod) -> None:
        self._core.canaries.drop_pod(pod)
        uids = self._pods_by_scheduler.get(pod.scheduler, {})
        uids.pop(pod.uid, None)
        if not uids:
            self._pods_by_scheduler.pop(pod.scheduler, None)

    def pods_of(self, policy: str) -> Iterator[Pod]:
        """All known pods that name the policy, on a node or not."""
        return (self._core.cache.pods[uid].pod for uid in self._pods_by_scheduler.get(policy, ()))

    def forget(self, policy: str) -> None:
        """A removed policy without pods."""
        self._started.discard(policy)
        self._core.queue.drop_policy(policy)

    def enqueue_pods_again(
        self, policy: str, now_ns: int, precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS
    ) -> None:
        """Put all pods of the policy into the queue anew: it starts to run, or its text was replaced.

        Parked pods are tried again at once. `precomputed` are results of the new text.
        """
        core = self._core
        rules = _rule_names(core.policies.running[policy].program)
        core.queue.drop_policy(policy, rules)
        core.records.counters.shadows.retain_rules(policy, rules)
        with self._enqueuer.using(precomputed), core.gangs.replacing_policy(policy) as replaced:
            self._enqueuer.forget_gangs(replaced)
            policy_pods = [core.cache.pods[uid] for uid in self._pods_by_scheduler.get(policy, ())]
            pending = []
            for observed in policy_pods:  # placed members first: gangs are complete before a pod is queued
                if observed.pod.uid in core.binds.in_flight or not self._is_unplaced(observed):
                    self._count_in_gang(observed, now_ns)
                elif not observed.deleting:
                    pod = core.pods.get(observed.pod.uid)
                    if pod is None:
                        queued_ns = core.queued_ns_of(observed.pod, now_ns)
                        pod = core.pods[observed.pod.uid] = PendingPod(observed, queued_ns=queued_ns)
                    if pod.state is not QueueState.BIND_LOST:
                        pending.append(pod)
            self._enqueuer.enqueue_many(policy, pending, now_ns)
        if policy not in self._started:
            self._started.add(policy)
            self._resume_gang_failures(policy, pending, now_ns)

    def _resume_gang_failures(self, policy: str, pending: Iterable[PendingPod], now_ns: int) -> None:
        """Gangs of which an earlier process saw a bind refused, and may not have evicted the bound members."""
        core = self._core
        clause = core.policies.running[policy].program.gang
        if clause is None or clause.on_bind_failure is not OnBindFailure.EVICT:
            return
        for pod in pending:
            gang = core.gangs.gang_of(pod.uid)
            if gang is not None and pod.observed.refused_bind:
                core.binds.note_gang_failure(gang, pod.pod, pod.observed.refused_bind, now_ns)

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]:
        """Evaluate another text of a policy for its pods, in slices.

        Yields the same growing dict. The last one has all pods that existed at the start; pods that are created or
        changed later are evaluated when the text takes over.
        """
        core = self._core
        reads_queue, results = program_reads_queue(program), dict[PodUid, PreEnqueueResult]()
        for uid in list(self._pods_by_scheduler.get(program.name, ())):
            observed = core.cache.pods.get(uid)
            if observed is None or (program.gang is None and uid not in core.pods):
                continue
            pod = core.pods.get(uid)
            facts = QueuedPodInfo(core.queued_ns_of(observed.pod, now_ns), 0) if pod is None else pod.facts
            namespace = core.namespace_of(observed.pod)
            results[uid] = evaluate_pre_enqueue(
                plan,
                observed.pod,
                namespace,
                facts,
                now_ns,
                reads_queue=reads_queue,
                namespace_rejection=core.namespace_rejection(program.name, observed.pod),
            )
            if len(results) % core.limits.rekey_pods_max == 0:
                yield results
        yield results

    def update(self, pod: Pod, current: ObservedPod | None, now_ns: int) -> None:
        """The pod is `current` now; None: it was deleted or has finished."""
        core, uid = self._core, pod.uid
        pending = core.pods.get(uid)
        if current is None or not self._is_unplaced(current):
            if pending is not None:
                self._enqueuer.remove(pending, now_ns)
            if current is None:
                self._remove_from_gang(pod, now_ns)
            else:
                self._count_in_gang(current, now_ns)
        elif uid in core.binds.in_flight:
            if pending is not None:
                pending.observed = current
            self._count_in_gang(current, now_ns)
        elif current.deleting:
            if pending is not None:
                self._enqueuer.remove(pending, now_ns)
            self._remove_from_gang(pod, now_ns)
        elif current.pod.scheduler in core.policies.running:
            if pending is None:
                self._enqueuer.enqueue(current, now_ns)
            elif pending.state is QueueState.BIND_LOST or pending.pod != current.pod:
                self._enqueuer.enqueue_again(pending, current, now_ns, "UnschedulablePodUpdate")
            else:
                pending.observed = current

    def reading_namespace(self, name: str) -> Iterator[PodUid]:
        """The pods to which `namespace_changed` applies. Placed members first: gangs are complete before a pod is queued."""
        core = self._core
        for policy in core.canaries.active:
            for pod in [pod for pod in self.pods_of(policy) if pod.namespace == name]:
                core.canaries.put_pod(pod)
        for gang in core.gangs:
            if gang.id[1] == name:
                yield from gang.placed_members
        for uid, pending in core.pods.items():
            if pending.pod.namespace == name:
                yield uid

    def namespace_changed(self, uid: PodUid, now_ns: int) -> None:
        """Policies may read the namespace of the pod, which may be gone: enqueue it again."""
        core = self._core
        gang, pending = core.gangs.gang_of(uid), core.pods.get(uid)
        if gang is not None and uid in gang.placed_members:
            self._count_in_gang(core.cache.pods[uid], now_ns)
        elif pending is not None and pending.state not in (
            QueueState.GATED,  # by its own gates, whatever the namespace says
            QueueState.BINDING,
            QueueState.BIND_LOST,
        ):
            self._enqueuer.enqueue_again(pending, pending.observed, now_ns, "NamespaceUpdate")

    def _is_unplaced(self, observed: ObservedPod) -> bool:
        """Whether the pod is on no node, neither as observed nor by a confirmed bind."""
        if observed.node is not None:
            return False
        return self._core.cache.ledger.state(observed.pod.uid) is not PlacementState.BOUND

    def _count_in_gang(self, observed: ObservedPod, now_ns: int) -> None:
        """Count a pod that is bound or being bound in its gang, unless it is being deleted."""
        core, pod = self._core, observed.pod
        running = core.policies.running.get(pod.scheduler)
        if running is None or running.program.gang is None:
            return
        terms = None if observed.deleting else self._gang_terms(pod, running.plan)
        gang = core.gangs.gang_of(pod.uid)
        if terms is None:
            self._remove_from_gang(pod, now_ns)
        elif gang is None or pod.uid not in gang.placed_members or gang.terms[pod.uid] != terms:
            joined = core.gangs.add_placed(pod.uid, pod.scheduler, terms)
            if gang is not None and gang is not joined:
                self._enqueuer.refresh_gang(gang, now_ns, "AssignedPodUpdate")
            self._enqueuer.refresh_gang(joined, now_ns, "AssignedPodAdd")

    def _gang_terms(self, pod: Pod, plan: Plan) -> GangTerms | None:
        namespace, result = self._core.namespace_of(pod), self._enqueuer.precomputed.get(pod.uid)
        if (
            result is not None
            and result.rejection is None
            and result.is_current(pod, namespace, result.attempts)
        ):
            return result.gang_terms
        return plan.gang(pod, namespace)

    def _remove_from_gang(self, pod: Pod, now_ns: int) -> None:
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self._enqueuer.refresh_gang(gang, now_ns, "PodDelete")


def _rule_names(program: Program) -> frozenset[str]:
    """Of the rules that are counted. Each edit of a team's text could have others."""
    of_layers = [rule for layer in program.layers for rule in layer_rules(layer)]
    of_text = [rule for rules in (program.rules, program.shadows) for rule in (*rules.filters, *rules.scores)]
    return frozenset(rule.name for rule in (*of_layers, *of_text))
