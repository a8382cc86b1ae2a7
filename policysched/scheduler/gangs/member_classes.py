"""Equivalence classes of the members of one gang, within one attempt."""

from collections.abc import Callable, Collection, Hashable, Mapping

from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps, visit_in_pieces

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
