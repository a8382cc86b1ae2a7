"""What an attempt needs before it begins, in slices. The entry is put back after each: no cluster waits for the next one, and others
may go first."""

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.pod_selectors import evaluate_selectors
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.layer_rules import layers_to_lower
from policysched.scheduler.namespace_events import NamespaceEvents
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import OPERATIONS_PER_COST_UNIT


class AttemptPreparation:
    """`payer_of_slice` is asked for each entry that was just popped."""

    def __init__(
        self,
        core: SchedulerCore,
        enqueuer: PodEnqueuer,
        namespace_events: NamespaceEvents,
        pod_attempts: PodAttempts,
    ) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._namespace_events = namespace_events
        self._pod_attempts = pod_attempts

    def awaits_slice(self, entry: QueueEntry, now_ns: int) -> str | None:
        """Who pays for a slice, without which the entry cannot be attempted: a change of its namespace had not reached its pods, or
        its gang opens or closes, or quotas of its policy had not counted a placed pod. None: it can be attempted."""
        gates, events = self._enqueuer.gates, self._namespace_events
        if events.charge_placed(entry.policy, now_ns):
            payer = "policy"
        elif gates.has_reached(entry, now_ns) and events.has_reached(entry, now_ns):
            return None
        else:
            payer = "namespace"
        is_empty = isinstance(entry, QueuedGang) and not entry.pending_members
        if entry.state is QueueState.DETACHED and not is_empty:
            self._core.queue.put_back(entry)
        self._core.queue.yielded = None
        return payer

    def payer_of_slice(
        self, entry: QueueEntry, cost_max: int | None, now_ns: int, *, may_change: bool
    ) -> str | None:
        """Who pays for the slice that was made, "policy" alone or its "namespace", too. The entry was put back. None: it can be
        attempted. `may_change`: totals over pods of any namespace may follow changes."""
        if may_change and self._core.evaluator.catch_up_slice(self._core.plan(entry.policy)):
            payer = "policy"
        elif cost_max is not None and self._core.evaluator.index_volumes_slice(entry.representative_pod):
            payer = "policy"  # all namespaces use it
        elif self._has_evaluated_selectors(entry, cost_max) and (
            cost_max is None or (self._has_charges(entry) and self._has_lowered_rules(entry, now_ns))
        ):
            return None
        else:
            payer = "namespace"
        self._core.queue.put_back(entry)
        self._core.queue.yielded = None
        return payer

    def _has_evaluated_selectors(self, entry: QueueEntry, cost_max: int | None) -> bool:
        """False: a slice of its selectors of devices was evaluated."""
        members = entry.pending_members.values() if isinstance(entry, QueuedGang) else ()
        pods = [member.pod for member in members] or [entry.representative_pod]
        operations_max = None if cost_max is None else cost_max * OPERATIONS_PER_COST_UNIT
        return not any(map(uses_devices, pods)) or evaluate_selectors(
            pods, self._core.cache.devices, operations_max
        )

    def _has_charges(self, entry: QueueEntry) -> bool:
        """The same for the quota charges of the members of a gang, which are asked for several times."""
        if not isinstance(entry, QueuedGang):
            return True
        pods = (member.pod for member in entry.pending_members.values())
        return self._core.quotas.keep_some_charges(entry.policy, entry.namespace, pods)

    def _has_lowered_rules(self, entry: QueueEntry, now_ns: int) -> bool:
        """The same for the rules with the layers of the pod. Of a gang, for one of its members, as mostly all are equal; the search
        pauses while it lowers those of others."""
        core = self._core
        members = entry.pending_members.values() if isinstance(entry, QueuedGang) else ()
        pod = next(iter(members), entry)
        if not isinstance(pod, PendingPod):
            return True  # all members are placed
        active = layers_to_lower(core, pod, now_ns)
        return (
            active is None
            or core.queue.blocked_group(self._pod_attempts.equivalence_key(pod)) is not None
            or core.plan(entry.policy).lower_some(active, entry.namespace)
        )
