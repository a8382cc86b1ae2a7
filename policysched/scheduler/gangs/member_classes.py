"""Equivalence classes of the members of one gang, within one attempt."""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field

from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, visit_in_pieces

MemberKeys = Mapping[PodUid, Hashable]


def member_equivalence_keys(
    core: SchedulerCore, members: Collection[PendingPod], numbers: dict[Hashable, int]
) -> Steps[MemberKeys]:
    """Members with equal keys fail together. Terms of members that the same attempt places can select any label. The keys
    are `numbers` of what the members have in common, which takes long to compare; of one attempt, so that equal ones stay
    equal when it goes on after a pause."""
    claims_of, charge = core.cache.devices.extended_claims_of, core.quotas.charge

    def key_of_some_labels(pod: PendingPod) -> Hashable:
        return pod.equivalence_key, core.cluster_read_key(pod), charge(pod.pod)

    def key_of_all_labels(pod: PendingPod) -> Hashable:
        if claims_of(pod.uid, pod.pod.namespace):
            return "stale claim", pod.uid
        return pod.equivalence_key, tuple(sorted(pod.pod.labels.items())), charge(pod.pod)

    key: Callable[[PendingPod], Hashable] = key_of_some_labels
    if any(pod.pod.pod_affinity or claims_of(pod.uid, pod.pod.namespace) for pod in members):
        key = key_of_all_labels
    keys: dict[PodUid, Hashable] = {}

    def add(pod: PendingPod) -> None:
        keys[pod.uid] = numbers.setdefault(key(pod), len(numbers))

    yield from visit_in_pieces(list(members), add, 1)
    return keys


@dataclass(slots=True)
class EvaluatedClasses:
    """The evaluation that members of a class share has to catch up with the members that were placed since the last of them. Where
    members of many classes take turns, that takes as long for each as a new class."""

    _placed_before: dict[Hashable, int] = field(default_factory=dict)

    def cost(self, key: Hashable, placed_count: int) -> int:
        """Of evaluating the next member, beside `evaluation_cost`: `key` is its class, and so many members are placed."""
        before = self._placed_before.get(key)
        self._placed_before[key] = placed_count
        return NEW_CLASS_COST if before is None else min(NEW_CLASS_COST, max(0, placed_count - before - 1))
