"""PodGroups as last observed, and the pods that name them.

`attach` gives a pod its group, or says why it cannot be placed with it. A pod and its group arrive in any order: every
change returns the pods that are to be applied again.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest

from policysched.model.copies import changed_copy
from policysched.model.identifiers import PodUid
from policysched.model.pod_groups import (
    REFERENCE_NAMES,
    GroupReference,
    PodGroup,
    PodGroupApi,
    PodGroupKey,
)
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.text.short_key import short_key

_NAMED_SCHEDULERS_MAX = 3
"""In a message that each pod of a group has. The API server limits neither their number nor their length."""


@dataclass(slots=True)
class GroupMembers:
    """The pods that name one group, as the API server reported them, and how many unfinished ones each scheduler has."""

    pods: dict[PodUid, ObservedPod] = field(default_factory=dict)
    schedulers: Counter[str] = field(default_factory=Counter)

    def put(self, observed: ObservedPod) -> None:
        self.drop(observed.pod.uid)
        self.pods[observed.pod.uid] = observed
        if not observed.finished:
            self.schedulers[observed.pod.scheduler] += 1

    def drop(self, uid: PodUid) -> None:
        group_key = self.pods.pop(uid, None)
        if group_key is not None and not group_key.finished:
            self.schedulers[group_key.pod.scheduler] -= 1
            if not self.schedulers[group_key.pod.scheduler]:
                del self.schedulers[group_key.pod.scheduler]


class PodGroups:
    """`served` has the version of each API that the server serves; an API that is not in it is not served."""

    def __init__(self) -> None:
        self.served: dict[PodGroupApi, str] = {}
        self.workloads_served = False
        self.groups: dict[PodGroupKey, PodGroup] = {}
        self._workloads: set[tuple[str, str]] = set()
        self._groups_by_workload: dict[tuple[str, str], dict[PodGroupKey, None]] = {}
        self._members: dict[PodGroupKey, GroupMembers] = {}
        self._keys_by_pod: dict[PodUid, tuple[PodGroupKey, ...]] = {}
        self._attached: dict[PodUid, tuple[Pod, Pod]] = {}
        """By pod: as the API server reports it, and with its group."""

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_pod(self, observed: ObservedPod) -> list[ObservedPod]:
        """Count the pod in the groups that it names. Returns the other pods to which it makes a difference."""
        pod = observed.pod
        known_keys = self._keys_by_pod.get(pod.uid, ())
        if not pod.group_references and not known_keys:
            return []
        keys = tuple([_key(pod, reference) for reference in pod.group_references])
        if keys == known_keys and self._counts_alike(keys[0], observed):
            for key in keys:
                self._members[key].pods[pod.uid] = observed
            return []
        touched = dict.fromkeys((*keys, *known_keys))
        before = {key: self._has_two_schedulers(key) for key in touched}
        self._forget(pod.uid)
        if keys:
            self._keys_by_pod[pod.uid] = keys
        for key in keys:
            members = self._members.get(key)
            if members is None:
                members = self._members[key] = GroupMembers()
            members.put(observed)
        return self._others(touched, before, pod.uid)

    def _counts_alike(self, key: PodGroupKey, observed: ObservedPod) -> bool:
        """Whether the member of this group counts as it did before."""
        before = self._members[key].pods[observed.pod.uid]
        return before.finished == observed.finished and before.pod.scheduler == observed.pod.scheduler

    def drop_pod(self, uid: PodUid) -> list[ObservedPod]:
        """The pod is deleted. Returns the other pods to which that makes a difference."""
        keys = self._keys_by_pod.get(uid, ())
        before = {key: self._has_two_schedulers(key) for key in keys}
        self._forget(uid)
        self._attached.pop(uid, None)
        return self._others(keys, before, uid)

    def _forget(self, uid: PodUid) -> None:
        for key in self._keys_by_pod.pop(uid, ()):
            members = self._members[key]
            members.drop(uid)
            if not members.pods:
                del self._members[key]

    def _others(
        self, keys: Iterable[PodGroupKey], before: dict[PodGroupKey, bool], uid: PodUid
    ) -> list[ObservedPod]:
        changed = [key for key in keys if self._has_two_schedulers(key) != before[key]]
        return [pod for key in changed for pod in self.members(key) if pod.pod.uid != uid]

    def _has_two_schedulers(self, key: PodGroupKey) -> bool:
        members = self._members.get(key)
        return members is not None and len(members.schedulers) > 1

    def members(self, key: PodGroupKey) -> list[ObservedPod]:
        """The pods that name the group, as the API server reported them."""
        members = self._members.get(key)
        return [] if members is None else list(members.pods.values())

    def observed(self, uid: PodUid) -> ObservedPod | None:
        """A pod that names a group, as the API server reported it."""
        keys = self.keys_of(uid)
        return self._members[keys[0]].pods[uid] if keys else None

    def keys_of(self, uid: PodUid) -> tuple[PodGroupKey, ...]:
        """The groups that the pod names."""
        return self._keys_by_pod.get(uid, ())

    # ── groups ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, group: PodGroup) -> list[ObservedPod]:
        """Returns the pods to which the change makes a difference; none if only the status changed."""
        cached = self.groups.get(group.key)
        if cached is not None and cached.workload != group.workload:
            self._forget_workload(cached)
        self.groups[group.key] = group
        if group.workload is not None:
            of_workload = self._groups_by_workload.setdefault((group.key.namespace, group.workload), {})
            of_workload[group.key] = None
        return [] if cached == group else self._same_name(group.key)

    def drop(self, key: PodGroupKey) -> list[ObservedPod]:
        group = self.groups.pop(key, None)
        if group is None:
            return []
        self._forget_workload(group)
        return self._same_name(key)

    def _forget_workload(self, group: PodGroup) -> None:
        if group.workload is not None:
            workload = group.key.namespace, group.workload
            del self._groups_by_workload[workload][group.key]
            if not self._groups_by_workload[workload]:
                del self._groups_by_workload[workload]

    def set_served(self, api: PodGroupApi, version: str | None) -> list[ObservedPod]:
        """The server serves the API in this version, or not at all (None): its groups are then unknown."""
        if self.served.get(api) == version:
            return []
        if version is None:
            del self.served[api]
            for key in [key for key in self.groups if key.api == api]:
                self._forget_workload(self.groups.pop(key))
        else:
            self.served[api] = version
        return [pod for key in self._members if key.api == api for pod in self.members(key)]

    def _same_name(self, key: PodGroupKey) -> list[ObservedPod]:
        keys = [PodGroupKey(api, key.namespace, key.name) for api in REFERENCE_NAMES]
        return [pod for same_key in keys for pod in self.members(same_key)]

    # ── Workloads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put_workload(self, namespace: str, name: str) -> list[ObservedPod]:
        is_cached = (namespace, name) in self._workloads
        self._workloads.add((namespace, name))
        return [] if is_cached else self._of_workload(namespace, name)

    def drop_workload(self, namespace: str, name: str) -> list[ObservedPod]:
        self._workloads.discard((namespace, name))
        return self._of_workload(namespace, name)

    def set_workloads_served(self, *, served: bool) -> list[ObservedPod]:
        """Where Workloads are not served, groups are not checked for theirs."""
        if served == self.workloads_served:
            return []
        self.workloads_served = served
        if not served:
            self._workloads.clear()
        return [pod for key, group in self.groups.items() if group.workload for pod in self.members(key)]

    def _has_workload(self, namespace: str, name: str) -> bool:
        return not self.workloads_served or (namespace, name) in self._workloads

    def _of_workload(self, namespace: str, name: str) -> list[ObservedPod]:
        keys = self._groups_by_workload.get((namespace, name), ())
        return [pod for key in keys for pod in self.members(key)]

    # ── what a pod gets of its group ───────────────────────────────────────────────────────────────────────────────

    def attach(self, observed: ObservedPod) -> ObservedPod:
        """The pod with its group, the group's priority and preemption policy, or the reason why it waits."""
        pod = observed.pod
        if not pod.group_references or observed.finished:
            return observed
        key = _key(pod, pod.group_references[0])
        group, problem = self.groups.get(key), self._problem(pod, key)
        priority, preemption_policy = pod.priority, pod.preemption_policy
        if group is not None:
            # As in kube-scheduler, a placed member that is preempted by itself has its own priority.
            if group.priority is not None and (observed.node is None or group.disruption == "all"):
                priority = group.priority
            preemption_policy = group.preemption_policy or preemption_policy
        wanted = (group, problem, priority, preemption_policy)
        reported, attached = self._attached.get(pod.uid, (None, pod))
        has = (attached.group, attached.group_problem, attached.priority, attached.preemption_policy)
        if reported is not pod or has != wanted:
            attached = changed_copy(
                pod,
                group=group,
                group_problem=problem,
                priority=priority,
                preemption_policy=preemption_policy,
            )
            self._attached[pod.uid] = pod, attached
        return changed_copy(observed, pod=attached)

    def problem(self, pod: Pod) -> str | None:
        """Why the pod cannot be placed with its group; None: it can."""
        return self._problem(pod, _key(pod, pod.group_references[0]))

    def _problem(self, pod: Pod, key: PodGroupKey) -> str | None:
        if len(pod.group_references) > 1:
            named = " and ".join(
                f"{reference.name} by {REFERENCE_NAMES[reference.api]}" for reference in pod.group_references
            )
            return f"the pod names more than one PodGroup: {named}"
        reference = pod.group_references[0]
        how = REFERENCE_NAMES[reference.api]
        if reference.api not in self.served:
            return (
                f"{how} names PodGroup {reference.name}, but policysched cannot read PodGroups of {reference.api}: "
                "the API server does not serve them, or RBAC forbids it"
            )
        group = self.groups.get(key)
        if group is None:
            return f"{how} names {key}, which does not exist"
        return self._group_problem(group)

    def _group_problem(self, group: PodGroup) -> str | None:
        key = group.key
        if group.parent is not None:
            return f"{key} belongs to CompositePodGroup {group.parent}; CompositePodGroups are not supported"
        if group.has_claims:
            return f"{key} has spec.resourceClaims, which are not supported"
        if group.workload is not None and not self._has_workload(key.namespace, group.workload):
            return f"{key} belongs to Workload {group.workload}, which does not exist"
        if self._has_two_schedulers(key):
            schedulers = self._members[key].schedulers
            names = ", ".join(map(short_key, nsmallest(_NAMED_SCHEDULERS_MAX, schedulers)))
            more = len(schedulers) - _NAMED_SCHEDULERS_MAX
            return f"the pods of {key} have different schedulers: {names}{f' and {more} more' if more > 0 else ''}"
        for api in REFERENCE_NAMES:
            if api != key.api and PodGroupKey(api, key.namespace, key.name) in self.groups:
                return f"{key} has the name of a PodGroup of {api}; give one of them another name"
        return None


def _key(pod: Pod, reference: GroupReference) -> PodGroupKey:
    return PodGroupKey(reference.api, pod.namespace, reference.name)
