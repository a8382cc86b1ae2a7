"""The state of the scheduler, shared by the parts that change it: the way into the queue, attempts, binding and reloading."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Protocol, TypedDict

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import Samples
from policysched.evaluate import Evaluator, Plan
from policysched.lang.ir.program import OnBindFailure, Program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_groups import PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.blame import RaisedFor, pod_id, raises_for, text_id
from policysched.scheduler.canaries import Canaries, CanaryChange
from policysched.scheduler.commands import (
    ClearNomination,
    Command,
    DeleteExtendedClaim,
    Log,
    PendingReason,
    ReportPodEvent,
    SavePolicyStates,
)
from policysched.scheduler.decision_records import DecisionRecords
from policysched.scheduler.eviction_backoff import wait_ns
from policysched.scheduler.in_flight_binds import GangBindFailure, InFlightBinds
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.pending_reports import PendingReports
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policies.policy_samples import PolicySamples
from policysched.scheduler.policies.policy_states import WRITE_INTERVAL_NS
from policysched.scheduler.policies.registry import PolicyRegistry
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import GangId, GangRegistry, QueuedGang
from policysched.scheduler.queue.held_policies import HeldPolicies
from policysched.scheduler.queue.ordered_queue import (
    FairShareQueue,
    OrderedQueue,
    Owners,
    ShareChanges,
    SortKeyQueue,
)
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.scheduler.steps import Steps
from policysched.scheduler.unschedulable_message import short_text

GROUP_STATUS_DELAY_NS = SECOND_NS // 5
"""So that a gang of a thousand pods is one write."""
_COUNTS_CACHED_MAX = 8192
_RELEASED_PER_SLICE = 100
"""Parked groups, about 1 ms. A tenant can have thousands that wait for one quota."""


def queued_at_arrival(_pod: Pod, now_ns: int) -> int:
    """A pod waits from the time at which this process first sees it, as in kube-scheduler."""
    return now_ns


class EvaluationInputs(TypedDict):
    """Keyword arguments of the evaluator beside the plan and the pod."""

    now_ns: int
    facts: QueuedPodInfo
    samples: Samples


class HeldCapacity(NamedTuple):
    """`pod` would use the capacity. `is_repeated`: the kubelet rejected a pod again after the first hold."""

    pod: Pod
    is_repeated: bool


class KeepsNodes(Protocol):
    """Gangs whose attempts are interrupted, and whose members keep the nodes that were found for them."""

    def refuse(
        self, entry: QueueEntry, placed: Sequence[tuple[PendingPod, NodeName]], now_ns: int
    ) -> Steps[bool]:
        """Whether the entry would take them. It was put back then, and waits."""

    def put_off_evictions(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether the entry, which has no node, might evict others. It waits then."""


class SchedulerCore:
    """The parts of the state, and the few operations that touch several of them.

    permissions: what the settings allow policies to do.
    queued_ns_of: when a pod that is seen for the first time was queued (pod, now).
    cache: the cluster as observed, with assumed pods; evaluator: filters and scores on it.
    policies: which policies run; samples: what their rules read as samples.
    pods: the pending pods of running policies by UID, until their bind is confirmed.
    canaries: the rules that a share of the pods tries.
    quotas: what the pods of each policy use of its quotas, and which pods wait for them.
    queue, gangs: the order in which they are tried; binds: the binds without an answer.
    reports: the last event of each pending pod; records: decisions and counters.
    capacity_holds: capacity that is held back after kubelets rejected pods, by node, as pods that would use it.
    groups_due_ns: when the status of a changed PodGroup is looked at, the earliest first.
    commands: what the current call of `Scheduler.handle` or `decide` returns.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        extenders: ExtendersByName | None = None,
        *,
        permissions: PolicyPermissions | None = None,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
        queued_ns_of: Callable[[Pod, int], int] = queued_at_arrival,
    ) -> None:
        self.limits = limits
        self.queued_ns_of = queued_ns_of
        self.permissions = permissions or PolicyPermissions()
        self.cache = ClusterCache()
        self.evaluator = Evaluator(self.cache, limits.decision_budget)
        self.policies = PolicyRegistry(extenders or {}, self.permissions)
        held_policies = HeldPolicies()
        counts = lru_cache(_COUNTS_CACHED_MAX)(self.permissions.counts)
        self.samples = PolicySamples(
            self.cache, first_samples_s, source_name_of, held_policies.for_reason(), counts
        )
        self.counting_policies = held_policies.for_reason()
        """Policies that count the pods that their totals are over."""
        self.changing_policies = held_policies.for_reason()
        """Policies whose new text has not reached all of their pods, except those of overdrawn namespaces."""
        self.uncounted = set[tuple[str, str]]()
        """Policies and namespaces (empty: all) whose placed pods are not all counted in their gangs (`is_uncounted`)."""
        self.unstarted_policies = set[str]()
        """Policies that start after the first attempts: nor may their placed pods be evicted, as no gang of them is known yet."""
        self.pods: dict[PodUid, PendingPod] = {}
        self.quotas = QuotaAccounts(self.cache, counts)
        self.queue = SchedulingQueue(
            limits, self._new_policy_queue, held_policies.names, self.quotas.stop_waiting
        )
        self.gangs = GangRegistry()
        self.canaries = Canaries(self.namespace_of, counts)
        self.binds = InFlightBinds(self.queue.decision_time.prompt_binds)
        self.reports = PendingReports(limits)
        self.records = DecisionRecords(limits.decision_records_max)
        self.capacity_holds: dict[NodeName, tuple[HeldCapacity, ...]] = {}
        # Thousands are taken from the front, which a plain dict searches anew each time.
        self.groups_due_ns: OrderedDict[PodGroupKey, int] = OrderedDict()
        self.kept_nodes: KeepsNodes | None = None
        """None: none is interrupted, or they keep none."""
        self.commands: list[Command] = []

    def plan(self, policy: str) -> Plan:
        return self.policies.running[policy].plan

    def raises_for_text(self, program: Program) -> AbstractContextManager[None]:
        return raises_for(text_id(program, self.permissions.owner(program.name)))

    def cluster_read_key(self, pod: PendingPod) -> Hashable:
        """What its policy reads of the cluster for the pod: part of the key of its equivalence class."""
        return self.evaluator.cluster_read_key(self.plan(pod.policy), pod.pod)

    def namespace_of(self, pod: Pod) -> Namespace | None:
        return self.cache.namespaces.get(pod.namespace)

    def is_uncounted(self, policy: str, namespace: str) -> bool:
        """Whether gangs may have more placed members than they count: none of these may be evicted, and no gang is short of any."""
        return not self.uncounted.isdisjoint(((policy, namespace), (policy, "")))

    def pre_enqueue_operations(self, uid: PodUid) -> int:
        """The static cost of enqueuing a known pod again."""
        observed = self.cache.pods.get(uid)
        running = None if observed is None else self.policies.running.get(observed.pod.scheduler)
        return 0 if running is None else running.plan.pre_enqueue_operations

    def namespace_rejection(self, policy: str, pod: Pod) -> str | None:
        """Why the settings do not let the policy schedule pods of this pod's namespace."""
        return self.permissions.namespace_rejection(policy, pod.namespace, self.namespace_of(pod))

    def pre_enqueue_rejection(self, policy: str, pod: Pod) -> str | None:
        """Why the policy takes the pod on no node, by its namespace or by what the policy reads of the pod alone."""
        rejection = self.namespace_rejection(policy, pod)
        return rejection or self.plan(policy).pre_enqueue_message(pod, self.namespace_of(pod))

    def evaluation_inputs(self, pod: PendingPod, now_ns: int) -> EvaluationInputs:
        return {"now_ns": now_ns, "facts": pod.facts, "samples": self.samples.of_policy(pod.policy)}

    def _new_policy_queue(self, policy: str) -> OrderedQueue:
        plan = self.plan(policy)
        if not plan.order_reads_shares:
            return SortKeyQueue()
        shares, quotas = self.cache.shares, self.quotas
        account = quotas.accounts[policy] if plan.order_reads_quotas else None

        def owners_of(entry: QueueEntry) -> Owners:
            return (
                entry.namespace,
                *(() if account is None else quotas.charge_of(entry.representative_pod).entities),
            )

        def current_key(entry: QueueEntry) -> tuple[object, ...]:
            pod = entry.representative_pod
            try:
                quota_share = None if account is None else account.shares_of(quotas.charge_of(pod))
                namespace = self.namespace_of(pod)
                key = plan.order_with_shares(entry.order_key, pod, namespace, shares, quota_share)
            except Exception as error:  # whoever looks at the queue may be the first to compute it
                raise RaisedFor(pod_id(pod)) from error
            return entry.ordered_last, *key

        logs: list[ShareChanges] = [shares] if account is None else [shares, account]
        return FairShareQueue(logs, owners_of, current_key)

    def report_pending(self, pod: PendingPod, reason: PendingReason, message: str, now_ns: int) -> None:
        """Keep the message with the pod, and report it when it is new. No message is long, since each pod has its own."""
        message = short_text(message)
        pod.pending_message = message
        self.group_changed(pod.uid, now_ns)
        self.commands += self.reports.report(pod.pod, reason, message, now_ns)

    def begin_gang_failure(
        self, gang: QueuedGang, pod: Pod, message: str, now_ns: int, *, is_counted: bool = True
    ) -> bool:
        """The bind of `pod` was refused. If its gang is evicted for that, the pod's condition says so until it is: a process that
        starts in between reads there what is left to do. Returns whether it is the first one that leaves the gang below its minimum."""
        is_new = self.binds.note_gang_failure(gang, pod, message, now_ns, is_counted=is_counted)
        running = self.policies.running.get(gang.policy)
        clause = None if running is None else running.program.gang
        is_evicted = clause is not None and clause.on_bind_failure is OnBindFailure.EVICT
        if is_new and is_evicted and (gang.placed_members or not is_counted):
            self.commands += self.reports.keep(pod, "SchedulerError", short_text(message), now_ns)
        return is_new

    def end_gang_failure(self, gang_id: GangId, uid: PodUid | None = None) -> None:
        """Nobody has to be evicted any more. `uid`: after a refused bind of this pod."""
        failure = self.binds.gang_failures.get(gang_id)
        if failure is not None and uid in (None, failure.pod.uid):
            self.binds.end_gang_failure(gang_id)
            self.reports.release(failure.pod.uid)

    def defer_gang_eviction(
        self, gang_id: GangId, uid: PodUid, reason: str, not_before_ns: int, now_ns: int
    ) -> None:
        """The server refused to evict the bound members after a refused bind of this pod: they are evicted later, if the gang is then
        below its minimum. Only the first refusal is reported."""
        failure, gang = self.binds.gang_failures.get(gang_id), self.gangs.get(gang_id)
        if failure is None or failure.pod.uid != uid:
            return
        failure.refusals += 1
        self.binds.due_gang_failures.put(gang_id, max(now_ns + wait_ns(failure.refusals), not_before_ns))
        if failure.refusals == 1 and gang is not None:
            self.report_gang_failure(
                gang, failure, f"the eviction of its bound members is tried again: {reason}"
            )

    def report_gang_failure(self, gang: QueuedGang, failure: GangBindFailure, effect: str) -> None:
        """An event, unless it was reported before."""
        if effect not in failure.reported:
            failure.reported.add(effect)
            pod, message = failure.pod, f"gang {gang.name}: {failure.message}; {effect}"
            self.commands.append(
                ReportPodEvent(
                    pod.uid, pod.namespace, pod.name, pod.scheduler, "Warning", "GangBindFailed", message
                )
            )

    def withdraw_nomination(self, uid: PodUid, now_ns: int) -> None:
        """A decision of ours no longer holds. What another component nominated (an autoscaler, for example) stays."""
        nominated = self.cache.nominated.get(uid)
        if nominated is not None and not nominated.nominated_by_other:
            self.clear_nomination(uid, now_ns)

    def group_changed(self, uid: PodUid, now_ns: int) -> None:
        """The status of the pod's PodGroup may have changed."""
        for key in self.cache.pod_groups.keys_of(uid):
            self.groups_due_ns.setdefault(key, now_ns + GROUP_STATUS_DELAY_NS)

    def clear_nomination(self, uid: PodUid, now_ns: int) -> None:
        """Free the capacity reserved for the pod on its nominated node, if any scheduler nominated it."""
        nominated = self.cache.nominated.get(uid)
        if nominated is None:
            return
        self.queue.requeue(self.cache.nominate(uid, None), now_ns, cause=nominated.pod.namespace)
        self.quotas.reservation_released(nominated.pod)
        self.commands.append(ClearNomination(uid, nominated.pod.namespace, nominated.pod.name))

    def requeue_released(self, now_ns: int) -> None:
        """Requeue pods and gangs that quotas may admit after what was released: some, unless others say what is attempted next."""
        count_max = None if self.queue.order_is_given else _RELEASED_PER_SLICE
        for key, cause in self.quotas.take_released(count_max, now_ns).items():
            self.queue.open_group(key, now_ns, ClusterEvent.QUOTA, cause)

    def delete_unseen_claims(self, uid: PodUid) -> None:
        """Delete the claims of a deleted pod that the watch has not shown: it may never show their deletion either."""
        for key in sorted(self.cache.devices.extended_claims_of(uid) - self.cache.devices.claims.keys()):
            if (command := DeleteExtendedClaim(key, uid)) not in self.commands:
                self.commands.append(command)

    def restore_states(self, texts: Mapping[str, str]) -> None:
        problems = [*self.canaries.restore(texts), *self.samples.policy_states.restore(texts)]
        self.commands += [Log("warning", problem, {}) for problem in problems]

    def update_states(self, observed: ObservedPod, now_ns: int) -> None:
        """Apply what the pod's containers did since the last update to policy states, and requeue pods that read them."""
        policy = self.samples.policy_states.pod_updated(observed, now_ns)
        if policy is not None:
            self.queue.requeue({ClusterEvent.STATE}, now_ns, policy=policy, cause=observed.pod.namespace)

    def save_states(self, now_ns: int) -> None:
        """Save the policy states that are due."""
        texts = self.samples.policy_states.due_texts(now_ns)
        if texts is not None:
            self.commands.append(SavePolicyStates(self.canaries.saved_with(texts)))

    def save_canary(self, change: CanaryChange, now_ns: int) -> None:
        """Save at once, but not each time: a team may edit a canary every other second, each of which is rolled back, and a save is
        of the states of all policies."""
        saved_ns = self.canaries.saved_ns.get(change)
        if saved_ns is None or now_ns >= saved_ns + WRITE_INTERVAL_NS:
            self.canaries.saved_ns[change] = now_ns
            self.commands.append(SavePolicyStates(self.state_texts()))
        else:
            self.samples.policy_states.request_save(now_ns)

    def state_texts(self) -> dict[str, str]:
        """Everything that is saved beside the texts of policies, by policy."""
        return self.canaries.saved_with(self.samples.policy_states.texts())
