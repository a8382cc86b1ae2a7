"""The devices that a hypothetical cluster allocates, such as those of earlier members of a gang."""

from collections import Counter
from dataclasses import dataclass, field

from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.cluster.devices.search_outcomes import Specs
from policysched.model.devices import DeviceAllocation
from policysched.model.identifiers import NodeName, ResourceClaimKey


@dataclass(slots=True)
class DeviceOverlay:
    """Allocations of a hypothetical cluster on top of the real ones. `node_changes` identifies what
    is allocated of each node's devices, `shared_changes` what of devices that several nodes can use
    (0: nothing); see `state_after`. `overruns`: searches that exceeded the step limit."""

    allocations: dict[ResourceClaimKey, DeviceAllocation] = field(default_factory=dict)
    usage: DeviceUsage = field(default_factory=DeviceUsage)
    node_changes: dict[NodeName, int] = field(default_factory=dict)
    shared_changes: int = 0
    overruns: Counter[Specs] = field(default_factory=Counter)


def state_after(state: int, allocation: DeviceAllocation) -> int:
    """What identifies an overlay's allocations once this one is added: the same in another overlay
    with equal allocations in the same order. Names are hashed with the process's secret."""
    return hash(
        (
            state,
            *(
                (device.device, bool(device.share_id), device.consumed_capacity)
                for device in allocation.devices
                if not device.admin_access
            ),
        )
    )
