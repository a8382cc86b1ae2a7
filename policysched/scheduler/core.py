"""The parts of the state machine, in one place: what admission, trials, binding and reloading work on."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypedDict

from policysched.cluster.cache import Cache
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.samples import MetricSamples, Samples
from policysched.evaluate import BeforeBind, Evaluator, Plan
from policysched.evaluate.compile.read_set import nameless
from policysched.lang.ir.program import Program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import (
    Namespace,
    NodeName,
    ObservedPod,
    Placement,
    Pod,
    PodFacts,
    PodUid,
    Preparable,
    ResourceClaimKey,
)
from policysched.scheduler.commands import ClearNomination, Command, DropClaim, KeepStates, Log
from policysched.scheduler.extenders.terms import Extenders
from policysched.scheduler.gangs.gangs import Gangs
from policysched.scheduler.limits import Limits
from policysched.scheduler.policies.assumed_load import Assumed
from policysched.scheduler.policies.first_samples import FirstSamples, SourceOf
from policysched.scheduler.policies.policies import Policies
from policysched.scheduler.policies.recoveries import Recoveries
from policysched.scheduler.policies.states import States
from policysched.scheduler.queue.entries import PendingPod, Unit
from policysched.scheduler.queue.heap import MovableHeap
from policysched.scheduler.queue.order import FairLine, Line
from policysched.scheduler.queue.queue import Queue
from policysched.scheduler.queue.standing import Standing
from policysched.scheduler.records import Counters, Decision
from policysched.scheduler.reports import PendingReason, Reports


@dataclass(frozen=True, slots=True)
class Flight:
    """A bind that is not answered yet, the policy text that decided it, and when."""

    pod: PendingPod
    node: NodeName
    sha256: str
    decided_ns: int


@dataclass(slots=True)
class Preparation:
    """A pod that is assumed and whose claims are not bound yet. `versions` None: what is to be written is not written yet."""

    flight: Flight
    needs: BeforeBind
    ends_ns: int
    versions: Mapping[Preparable, int] | None = None


class Known(TypedDict):
    """What the evaluator is told of a pod and of the time, by its names."""

    now_ns: int
    facts: PodFacts
    samples: Samples


class Core:
    """`pods` are the pending pods of ours by UID, until their bind is confirmed; `in_flight` the binds that wait for
    an answer, which outlive a pod that is deleted meanwhile (some of them are not sent yet: `preparations`); `reserved`
    the claims, by key and UID, that were reserved for their pods, `made` the one that is made for a pod's extended resources;
    `unsettled` what was to be written for pods that are gone meanwhile, and may be yet;
    `by_scheduler` every known pod by the schedulerName that it gives. `prepared` has what a policy's new text says of its
    pods, while that text takes over. `extenders` may be asked by policies. `out` collects the commands of one call.
    `source_of` names the source that a metric is asked of, for words."""

    def __init__(
        self,
        limits: Limits,
        extenders: Extenders | None = None,
        *,
        first_samples_s: float = 0.0,
        source_of: SourceOf = attrgetter("source"),
    ) -> None:
        self.limits = limits
        self.source_of = source_of
        self.extenders: Extenders = extenders or {}
        self.cache = Cache()
        self.evaluator = Evaluator(self.cache)
        self.policies = Policies(self.extenders)
        self.first_samples = FirstSamples(first_samples_s, source_of)
        self.queue = Queue(limits, self._line_of, self.first_samples.held)
        self.gangs = Gangs()
        self.reports = Reports(limits)
        self.samples: dict[str, dict[str, MetricSamples]] = {}
        self.assumed = Assumed()
        self.recoveries = Recoveries()
        self.states = States(lambda seen: self.namespace_of(seen.pod) or nameless(seen.pod))
        self.counters = Counters()
        self.decisions: deque[Decision] = deque(maxlen=limits.decisions_kept)
        self.decision_count = 0
        self.pods: dict[PodUid, PendingPod] = {}
        self.in_flight: dict[PodUid, Flight] = {}
        self.preparations: dict[PodUid, Preparation] = {}
        self.reserved: dict[PodUid, tuple[tuple[ResourceClaimKey, str], ...]] = {}
        self.made: dict[PodUid, ResourceClaimKey] = {}
        self.unsettled: dict[PodUid, DeviceChoice] = {}
        self.by_scheduler: dict[str, dict[PodUid, None]] = {}
        self.prepared: dict[PodUid, Standing] = {}
        self.out: list[Command] = []

    def take_samples(self, policy: str, metric: str, samples: MetricSamples) -> None:
        self.samples.setdefault(policy, {})[metric] = self.arrived(policy, metric, samples)

    def plan(self, policy: str) -> Plan:
        return self.policies.running[policy].plan

    def known_of(self, pod: PendingPod, now_ns: int) -> Known:
        """What the rules see beside the pod and the cluster when they are asked now."""
        return {"now_ns": now_ns, "facts": pod.facts, "samples": self.samples.get(pod.policy, {})}

    def _line_of(self, policy: str) -> Line:
        plan = self.plan(policy)
        if not plan.order_reads_shares:
            return MovableHeap()
        shares = self.cache.shares

        def key_now(unit: Unit) -> tuple[object, ...]:
            pod = unit.speaker
            return (
                unit.last_in_line,
                *plan.order_with_shares(unit.key, pod, self.namespace_of(pod), shares),
            )

        return FairLine(shares, key_now)

    def arrived(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples with all that is known beside them: what they do not show yet, and whom earlier ones hold back."""
        return self.recoveries.arrived(policy, metric, self.assumed.arrived(policy, metric, samples))

    def namespace_of(self, pod: Pod) -> Namespace | None:
        return self.cache.namespaces.get(pod.namespace)

    def drop_claims_unseen(self, uid: PodUid) -> None:
        """The pod is gone, and its claims go with it. Of one that the watch has never shown it may never say so either."""
        for key in sorted(self.cache.devices.made_for(uid) - self.cache.devices.claims.keys()):
            self.out.append(DropClaim(key, uid))

    def restore_states(self, texts: Mapping[str, str]) -> None:
        self.out += [Log("warning", problem, {}) for problem in self.states.restore(texts)]

    def follow_states(self, program: Program, now_ns: int) -> None:
        """The program runs from now on: its rules see the values of its states beside the samples."""
        self.samples.setdefault(program.name, {}).update(self.states.follow(program, now_ns))

    def feed_states(self, seen: ObservedPod, now_ns: int) -> None:
        """What the pod's containers did since it was last shown moves values, which may help those who wait."""
        policy = self.states.see(seen, now_ns)
        if policy is not None:
            self.queue.wake({ClusterEvent.STATE}, now_ns, policy=policy)

    def keep_states(self, now_ns: int) -> None:
        """Have the values written where it is time."""
        texts = self.states.due(now_ns)
        if texts is not None:
            self.out.append(KeepStates(texts))

    def follow_placement(self, uid: PodUid, before: Placement | None, now_ns: int) -> None:
        """After a change that may have brought the pod to a node or taken it away: what metrics assume follows the
        ledger, in the same step."""
        after = self.cache.ledger.placement(uid)
        if after is None:
            self.assumed.left(uid)
        elif before is None or before.node != after.node:
            self.assumed.landed(after.pod, self.namespace_of(after.pod), after.node, now_ns)

    def take_back_nomination(self, uid: PodUid, now_ns: int) -> None:
        """The pod does not go to the node that it is nominated to, if it is: nobody keeps room for it any more."""
        seen = self.cache.nominated.get(uid)
        if seen is None:
            return
        self.queue.wake(self.cache.nominate(uid, None), now_ns)
        self.out.append(ClearNomination(uid, seen.pod.namespace, seen.pod.name))

    def report(self, pod: PendingPod, reason: PendingReason, message: str, now_ns: int) -> None:
        """The pod stays pending; said aloud when the words are new."""
        pod.explanation = message
        self.out += self.reports.offer(pod.pod, reason, message, now_ns)
