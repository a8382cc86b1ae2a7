"""Equivalence classes of the members of one gang, within one attempt."""

from collections.abc import Hashable, Sequence

from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod


def member_equivalence_keys(core: SchedulerCore, members: Sequence[PendingPod]) -> dict[PodUid, Hashable]:
    """Members with equal keys fail together. Terms of members that the same attempt places can select any label."""
    claims_of, quotas = core.cache.devices.extended_claims_of, core.quotas
    if any(pod.pod.pod_affinity or claims_of(pod.uid, pod.pod.namespace) for pod in members):
        labels = {pod.uid: tuple(sorted(pod.pod.labels.items())) for pod in members}
        return {
            pod.uid: ("stale claim", pod.uid)
            if claims_of(pod.uid, pod.pod.namespace)
            else (pod.equivalence_key, labels[pod.uid], quotas.charge(pod.pod))
            for pod in members
        }
    return {
        pod.uid: (pod.equivalence_key, core.cluster_read_key(pod), quotas.charge(pod.pod)) for pod in members
    }
