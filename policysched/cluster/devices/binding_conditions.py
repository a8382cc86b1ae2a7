"""Binding conditions of devices: whether the devices of a claim are ready, failed, or timed out.

A device may declare conditions that must become True before the pod is bound, and failure
conditions that must not (for example a fabric that attaches the device). The claim's status reports
them by device. Source: `isClaimReadyForBinding` and `isClaimTimeout` in kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go`.
"""

from policysched.model.devices import DeviceAllocation, DeviceCondition, ResourceClaim

BINDING_TIMEOUT_S = 600
"""The default timeout. Source: `DynamicResourcesBindingTimeoutDefault` of kube-scheduler's
configuration."""
_SECOND_NS = 10**9


class DeviceBindingFailed(Exception):
    """A failure condition is True. The message is kube-scheduler's."""


def has_binding_conditions(allocation: DeviceAllocation) -> bool:
    """Whether the pod has to wait for the devices before it is bound."""
    return any(device.binding_conditions for device in allocation.devices)


def is_ready_for_binding(claim: ResourceClaim) -> bool:
    """Whether all binding conditions of all devices are True. Stops at the first device that is not
    ready. Raises DeviceBindingFailed."""
    if claim.allocation is None:
        return False
    for device in claim.allocation.devices:
        if not device.binding_conditions:
            continue
        status = next(
            (
                device_status
                for device_status in claim.device_statuses
                if device_status.device == device.device
            ),
            None,
        )
        if status is None:
            return False
        conditions = {condition.type: condition for condition in status.conditions}
        for name in device.binding_failure_conditions:
            failed = conditions.get(name)
            if failed is not None and failed.status == "True":
                raise DeviceBindingFailed(_failure_message(claim, failed))
        if any(
            conditions[name].status != "True" if name in conditions else True
            for name in device.binding_conditions
        ):
            return False
    return True


def binding_deadline_ns(claim: ResourceClaim, timeout_s: int) -> int | None:
    """When waiting for the devices times out. None: no binding conditions, or no allocation time is
    known."""
    allocation = claim.allocation
    if allocation is None or allocation.allocated_ns is None or not has_binding_conditions(allocation):
        return None
    return allocation.allocated_ns + timeout_s * _SECOND_NS


def is_unbindable(claim: ResourceClaim, now_ns: int, timeout_s: int) -> bool:
    """Whether binding the devices of the claim failed or timed out, so that it should be
    deallocated."""
    if claim.allocation is None:
        return False
    try:
        if is_ready_for_binding(claim):
            return False
    except DeviceBindingFailed:
        return True
    end_ns = binding_deadline_ns(claim, timeout_s)
    return end_ns is not None and end_ns < now_ns


def _failure_message(claim: ResourceClaim, failed: DeviceCondition) -> str:
    return (
        f'device binding failed: claim={claim.key.name}, reason={failed.reason}, message="{failed.message}"'
    )
