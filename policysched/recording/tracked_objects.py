"""The latest event about everything that exists, from which a snapshot is made.

Only references are kept: the cache holds the same values. Events about binds, evictions and other answers say nothing
that a later snapshot needs: their effects are in the pods, and in `SchedulerState`.
"""

from collections.abc import Hashable, Iterator
from typing import Any

from policysched.model.storage import (
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)
from policysched.scheduler import events as e

_STORAGE_KINDS: dict[type, str] = {
    PersistentVolume: "PersistentVolume",
    PersistentVolumeClaim: "PersistentVolumeClaim",
    StorageClass: "StorageClass",
    CsiDriver: "CSIDriver",
    CsiNode: "CSINode",
    StorageCapacity: "CSIStorageCapacity",
    VolumeAttachment: "VolumeAttachment",
}


def _qualified(kind: str, value: Any) -> Hashable:
    key = getattr(value, "key", value)
    return kind, getattr(key, "namespace", ""), key.name


_KEYS: dict[type, Any] = {
    e.PodUpdated: lambda event: ("Pod", event.pod.pod.uid),
    e.NodeUpdated: lambda event: ("Node", event.node.name),
    e.NodeObjectUpdated: lambda event: ("node object", event.kind, event.name),
    e.NamespaceUpdated: lambda event: ("Namespace", event.namespace.name),
    e.DisruptionBudgetUpdated: lambda event: ("PDB", event.budget.namespace, event.budget.name),
    e.SelectorOwnerUpdated: lambda event: (
        event.selector_owner.kind,
        event.selector_owner.namespace,
        event.selector_owner.name,
    ),
    e.StorageObjectUpdated: lambda event: _qualified(
        _STORAGE_KINDS[type(event.storage_object)], event.storage_object
    ),
    e.DeviceObjectUpdated: lambda event: _qualified(type(event.device_object).__name__, event.device_object),
    e.DeviceKindServed: lambda event: ("served", event.kind),
    e.PodGroupUpdated: lambda event: ("PodGroup", event.group.key),
    e.PodGroupApiServed: lambda event: ("served", event.api),
    e.WorkloadUpdated: lambda event: ("Workload", event.namespace, event.name),
    e.WorkloadsServed: lambda _: ("served", "Workload"),
    e.Synced: lambda _: "synced",
    e.PoliciesUpdated: lambda _: "policies",
}
"""By the event that shows an object: what identifies the object."""

_DELETED_KEYS: dict[type, Any] = {
    e.PodDeleted: lambda event: ("Pod", event.uid),
    e.NodeDeleted: lambda event: ("Node", event.name),
    e.NodeObjectDeleted: lambda event: ("node object", event.kind, event.name),
    e.NamespaceDeleted: lambda event: ("Namespace", event.name),
    e.DisruptionBudgetDeleted: lambda event: ("PDB", event.namespace, event.name),
    e.SelectorOwnerDeleted: lambda event: (event.kind, event.namespace, event.name),
    e.StorageObjectDeleted: lambda event: (event.kind, event.namespace, event.name),
    e.DeviceObjectDeleted: lambda event: (event.kind, event.namespace, event.name),
    e.PodGroupDeleted: lambda event: ("PodGroup", event.key),
    e.WorkloadDeleted: lambda event: ("Workload", event.namespace, event.name),
}
"""By the event that deletes an object: what identifies it."""


UNTRACKED = frozenset(
    {
        *(e.SamplesArrived, e.SamplesFailed),  # the core has those that count: `PolicySamples.of_metrics`
        *(e.SavedPolicyStatesLoaded, e.ExtendedClaimDeleted, e.ExtendersAnswered),
        *(e.BindConfirmed, e.BindRefused, e.BindLost, e.BindDelayed),
        *(e.PrebindWritten, e.PrebindRefused, e.Evicted, e.EvictionRefused),
    }
)
"""Events that show no object. A test requires that each event is in one of the three."""


class TrackedObjects:
    """`events` are those that make the present cluster of an empty one."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, e.Event] = {}

    def track(self, event: e.Event) -> None:
        kind = type(event)
        if (key_of := _KEYS.get(kind)) is not None:
            self._latest[key_of(event)] = event
        elif (key_of := _DELETED_KEYS.get(kind)) is not None:
            self._latest.pop(key_of(event), None)

    def policies(self) -> e.PoliciesUpdated | None:
        latest = self._latest.get("policies")
        return latest if isinstance(latest, e.PoliciesUpdated) else None

    def events(self) -> Iterator[e.Event]:
        """Without the policies and `Synced`."""
        for key, event in self._latest.items():
            if key not in ("policies", "synced"):
                yield event

    def is_synced(self) -> bool:
        return "synced" in self._latest
