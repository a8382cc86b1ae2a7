"""The parts of the state machine, in one place: what admission, trials, binding and reloading work on."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypedDict

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.samples import MetricSamples, Samples
from policysched.evaluate import Evaluator, Plan, PrebindRequirements
from policysched.evaluate.plan.read_set import unknown_namespace
from policysched.lang.ir.program import Program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement, Pod, QueuedPodInfo
from policysched.scheduler.commands import (
    ClearNomination,
    Command,
    DeleteExtendedClaim,
    Log,
    SavePolicyStates,
)
from policysched.scheduler.extenders.capabilities import ExtendersByName
from policysched.scheduler.gangs.registry import GangRegistry
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.pending_reports import PendingReason, PendingReports
from policysched.scheduler.policies.assumed_load import AssumedLoadTracker
from policysched.scheduler.policies.first_samples import FirstSamples, SourceNameOf
from policysched.scheduler.policies.policy_states import PolicyStates
from policysched.scheduler.policies.recovery_tracker import RecoveryTracker
from policysched.scheduler.policies.registry import PolicyRegistry
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.ordered_queue import FairShareQueue, OrderedQueue
from policysched.scheduler.queue.pre_enqueue import PreEnqueueResult
from policysched.scheduler.queue.queue import SchedulingQueue
from policysched.scheduler.records import Decision, SchedulerCounters


@dataclass(frozen=True, slots=True)
class InFlightBind:
    """A bind that is not answered yet, the policy text that decided it, and when."""

    pod: PendingPod
    node: NodeName
    policy_sha256: str
    decided_ns: int


@dataclass(slots=True)
class PrebindState:
    """A pod that is assumed and whose claims are not bound yet. `written_versions` None: what is to be written is not written yet."""

    in_flight_bind: InFlightBind
    prebind_work: PrebindRequirements
    deadline_ns: int
    written_versions: Mapping[PrebindTarget, int] | None = None


class EvaluationInputs(TypedDict):
    """What the evaluator is told of a pod and of the time, by its names."""

    now_ns: int
    facts: QueuedPodInfo
    samples: Samples


class SchedulerCore:
    """`pods` are the pending pods of ours by UID, until their bind is confirmed; `in_flight_binds` the binds that wait for
    an answer, which outlive a pod that is deleted meanwhile (some of them are not sent yet: `prebinding`); `reserved_claims`
    the claims, by key and UID, that were reserved for their pods, `created_claims` the one that is made for a pod's extended resources;
    `unconfirmed_device_writes` what was to be written for pods that are gone meanwhile, and may be yet;
    `pods_by_scheduler` every known pod by the schedulerName that it gives. `precomputed` has what a policy's new text says of its
    pods, while that text takes over. `extenders` may be asked by policies. `commands` collects the commands of one call.
    `source_name_of` names the source that a metric is asked of, for words."""

    def __init__(
        self,
        limits: SchedulerLimits,
        extenders: ExtendersByName | None = None,
        *,
        first_samples_s: float = 0.0,
        source_name_of: SourceNameOf = attrgetter("source"),
    ) -> None:
        self.limits = limits
        self.source_name_of = source_name_of
        self.extenders: ExtendersByName = extenders or {}
        self.cache = ClusterCache()
        self.evaluator = Evaluator(self.cache)
        self.policies = PolicyRegistry(self.extenders)
        self.first_samples = FirstSamples(first_samples_s, source_name_of)
        self.queue = SchedulingQueue(limits, self._new_policy_queue, self.first_samples.held_policies)
        self.gangs = GangRegistry()
        self.reports = PendingReports(limits)
        self.samples: dict[str, dict[str, MetricSamples]] = {}
        self.assumed_load = AssumedLoadTracker()
        self.recovery_tracker = RecoveryTracker()
        self.policy_states = PolicyStates(
            lambda seen: self.namespace_of(seen.pod) or unknown_namespace(seen.pod)
        )
        self.counters = SchedulerCounters()
        self.decisions: deque[Decision] = deque(maxlen=limits.decisions_kept)
        self.decision_count = 0
        self.pods: dict[PodUid, PendingPod] = {}
        self.in_flight_binds: dict[PodUid, InFlightBind] = {}
        self.prebinding: dict[PodUid, PrebindState] = {}
        self.reserved_claims: dict[PodUid, tuple[tuple[ResourceClaimKey, str], ...]] = {}
        self.created_claims: dict[PodUid, ResourceClaimKey] = {}
        self.unconfirmed_device_writes: dict[PodUid, DeviceChoice] = {}
        self.pods_by_scheduler: dict[str, dict[PodUid, None]] = {}
        self.precomputed: dict[PodUid, PreEnqueueResult] = {}
        self.commands: list[Command] = []

    def put_samples(self, policy: str, metric: str, samples: MetricSamples) -> None:
        self.samples.setdefault(policy, {})[metric] = self.adjust_samples(policy, metric, samples)

    def plan(self, policy: str) -> Plan:
        return self.policies.running[policy].plan

    def evaluation_inputs(self, pod: PendingPod, now_ns: int) -> EvaluationInputs:
        """What the rules see beside the pod and the cluster when they are asked now."""
        return {"now_ns": now_ns, "facts": pod.facts, "samples": self.samples.get(pod.policy, {})}

    def _new_policy_queue(self, policy: str) -> OrderedQueue:
        plan = self.plan(policy)
        if not plan.order_reads_shares:
            return MovableHeap()
        shares = self.cache.shares

        def key_now(unit: QueueEntry) -> tuple[object, ...]:
            pod = unit.representative_pod
            return (
                unit.ordered_last,
                *plan.order_with_shares(unit.order_key, pod, self.namespace_of(pod), shares),
            )

        return FairShareQueue(shares, key_now)

    def adjust_samples(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples with all that is known beside them: what they do not show yet, and whom earlier ones hold back."""
        return self.recovery_tracker.apply_samples(
            policy, metric, self.assumed_load.apply_samples(policy, metric, samples)
        )

    def namespace_of(self, pod: Pod) -> Namespace | None:
        return self.cache.namespaces.get(pod.namespace)

    def delete_unseen_claims(self, uid: PodUid) -> None:
        """The pod is gone, and its claims go with it. Of one that the watch has never shown it may never say so either."""
        for key in sorted(self.cache.devices.extended_claims_of(uid) - self.cache.devices.claims.keys()):
            self.commands.append(DeleteExtendedClaim(key, uid))

    def restore_states(self, texts: Mapping[str, str]) -> None:
        self.commands += [Log("warning", problem, {}) for problem in self.policy_states.restore(texts)]

    def activate_states(self, program: Program, now_ns: int) -> None:
        """The program runs from now on: its rules see the values of its states beside the samples."""
        self.samples.setdefault(program.name, {}).update(self.policy_states.activate(program, now_ns))

    def update_states(self, seen: ObservedPod, now_ns: int) -> None:
        """What the pod's containers did since it was last shown moves values, which may help those who wait."""
        policy = self.policy_states.pod_updated(seen, now_ns)
        if policy is not None:
            self.queue.requeue({ClusterEvent.STATE}, now_ns, policy=policy)

    def save_states(self, now_ns: int) -> None:
        """Have the values written where it is time."""
        texts = self.policy_states.due_texts(now_ns)
        if texts is not None:
            self.commands.append(SavePolicyStates(texts))

    def update_assumed_load(self, uid: PodUid, before: Placement | None, now_ns: int) -> None:
        """After a change that may have brought the pod to a node or taken it away: what metrics assume follows the
        ledger, in the same step."""
        after = self.cache.ledger.placement(uid)
        if after is None:
            self.assumed_load.pod_removed(uid)
        elif before is None or before.node != after.node:
            self.assumed_load.pod_placed(after.pod, self.namespace_of(after.pod), after.node, now_ns)

    def clear_nomination(self, uid: PodUid, now_ns: int) -> None:
        """The pod does not go to the node that it is nominated to, if it is: nobody keeps room for it any more."""
        seen = self.cache.nominated.get(uid)
        if seen is None:
            return
        self.queue.requeue(self.cache.nominate(uid, None), now_ns)
        self.commands.append(ClearNomination(uid, seen.pod.namespace, seen.pod.name))

    def report_pending(self, pod: PendingPod, reason: PendingReason, message: str, now_ns: int) -> None:
        """The pod stays pending; said aloud when the words are new."""
        pod.pending_message = message
        self.commands += self.reports.report(pod.pod, reason, message, now_ns)
