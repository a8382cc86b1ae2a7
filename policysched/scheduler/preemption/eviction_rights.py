"""Which pods one pod may evict: those that its policy selects, except what the operator's settings protect, and for a while
those whose deletion was refused (`refused_evictions`), and those whose gangs are not known yet."""

from collections.abc import Collection, Hashable, Iterable
from typing import Any

from policysched.evaluate import VictimChange, VictimOrder, VictimPredicate
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.refused_evictions import RefusedEvictions
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.quotas.quota_owners import QuotaOwners
from policysched.scheduler.steps import Steps, pod_operations_cost

QUESTIONS_COST_MAX = 20_000
"""Of a policy that takes long to say whether a pod may be evicted: 0.2 s in an attempt, in which nothing else is decided."""


class EvictionRights:
    """A predicate on victims for one attempt, shared by members of a gang with the same rights. It counts the pods that only the
    settings or a refusal protect, for the message."""

    def __init__(
        self,
        core: SchedulerCore,
        policy: str,
        selects: VictimPredicate,
        next_change: VictimChange | None = None,
        order: VictimOrder | None = None,
        refused: RefusedEvictions | None = None,
        now_ns: int = 0,
        owners: QuotaOwners | None = None,
        *,
        is_limited: bool = True,
    ) -> None:
        """`is_limited`: slow questions have a limit, as nothing else is decided meanwhile. `next_change`: when the policy's answer about a pod changes; None: never by itself. `order`: which pods go
        first. `owners`: for the message."""
        self.order = None if order is None else _remembered(order)
        running = core.policies.running.get(policy)
        self._question_cost = pod_operations_cost(running.plan.victim_operations if running else 0)
        self._cost_left = QUESTIONS_COST_MAX
        self._answers: dict[PodUid, bool] = {}  # of slow questions
        self._is_limited = is_limited
        self.left_out: set[PodUid] = set()
        """Pods that are no victims, as nothing more was asked. The next attempt should begin with others."""
        self.have_left_out = False
        self.next_change_ns: int | None = None
        """When one of the pods asked about may be evicted that the policy does not select now."""
        self._next_change = next_change
        self._core = core
        self._policy = policy
        self._selects = selects
        self._refusals, self._now_ns = refused, now_ns
        self._owners = owners
        self._owner = core.permissions.owner(policy)
        self._protected: set[PodUid] = set()
        self._refused: set[PodUid] = set()

    @property
    def is_slow(self) -> bool:
        """Whether the policy takes long to say whether a pod may be evicted, or its place in the `order`."""
        return self._question_cost > 0

    def ask(self, pods: Iterable[Pod]) -> Steps[None]:
        """Learn in pieces what is asked about these pods next. Once all questions cost too much, others are left out."""
        unknown = [pod for pod in pods if pod.uid not in self._answers] if self.is_slow else []
        if self._is_limited:
            if self._cost_left <= 0:
                self._answers |= dict.fromkeys((pod.uid for pod in unknown), False)
                self.left_out.update(pod.uid for pod in unknown)
                self.have_left_out |= bool(unknown)
                return
            self._cost_left -= self._question_cost * len(unknown)
        for pod in unknown:
            if self(pod) and self.order is not None:
                self.order(pod)
            yield self._question_cost

    def ask_more(self) -> None:
        """For a search of another kind: as much may be asked again, also about those that were left out."""
        for uid in self.left_out:
            del self._answers[uid]
        self.left_out.clear()
        self._cost_left = QUESTIONS_COST_MAX

    def __call__(self, victim: Pod) -> bool:
        if not self.is_slow:
            return self._answer(victim)
        if victim.uid not in self._answers:
            self._answers[victim.uid] = self._answer(victim)
        return self._answers[victim.uid]

    def _answer(self, victim: Pod) -> bool:
        if self._owner is not None and victim.namespace != self._owner:
            return False  # the clause of a team's policy reads no pod of others: the message would count them
        if not self._selects(victim):
            if self._next_change is not None:
                self.next_change_ns = earlier_ns(self.next_change_ns, self._next_change(victim))
            return False
        is_known = victim.scheduler not in self._core.unstarted_policies
        if not is_known or self._core.is_uncounted(victim.scheduler, victim.namespace):
            self.next_change_ns = earlier_ns(self.next_change_ns, self._now_ns + SECOND_NS)
            return False
        if self._core.permissions.victims.protects(victim, self._core.namespace_of(victim)):
            self._protected.add(victim.uid)
            return False
        until_ns = None if self._refusals is None else self._refusals.until_ns(victim, self._now_ns)
        if until_ns is not None:
            self._refused.add(victim.uid)
            self.next_change_ns = earlier_ns(self.next_change_ns, until_ns)
            return False
        return True

    def explain(self, message: str) -> str:
        """The message of a failed preemption, with the numbers of protected pods if there are any."""
        if self._protected:
            message = f"{message} {_pods_are(self._protected)} protected from eviction by the settings."
        if self._refused:
            message = f"{message} {_pods_are(self._refused)} passed over for a while, because deletions were refused."
        if self._owners is not None and self._owners.kept:
            message = f"{message} {self._owners.explain()}."
        return message


def _remembered(order: VictimOrder) -> VictimOrder:
    keys: dict[PodUid, Any] = {}

    def key(pod: Pod) -> Any:
        if pod.uid not in keys:
            keys[pod.uid] = order(pod)
        return keys[pod.uid]

    return key


def _pods_are(uids: Collection[PodUid]) -> str:
    return "1 pod is" if len(uids) == 1 else f"{len(uids)} pods are"


def rights_key(core: SchedulerCore, pod: PendingPod) -> Hashable:
    """Equal for pods that may evict the same pods now."""
    if core.policies.running[pod.policy].reads_queue:
        return pod.uid
    return pod.policy, core.plan(pod.policy).victims_key(pod.pod, core.namespace_of(pod.pod))


def eviction_rights(
    core: SchedulerCore,
    pod: PendingPod,
    now_ns: int,
    refused: RefusedEvictions,
    owners: QuotaOwners | None,
    *,
    is_limited: bool = True,
) -> EvictionRights:
    """The rights of a pending pod."""
    plan, value = core.plan(pod.policy), pod.pod
    arguments = value, core.namespace_of(value), pod.facts, now_ns
    return EvictionRights(
        core,
        pod.policy,
        plan.may_evict(*arguments, core.cache.shares),
        plan.next_victim_change(*arguments),
        plan.victim_order(*arguments, core.cache.shares),
        refused,
        now_ns,
        owners,
        is_limited=is_limited,
    )
