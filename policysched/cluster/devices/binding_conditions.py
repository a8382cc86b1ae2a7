"""Devices that take a while to be bound to a node: whether a claim's are ready, failed, or too late.

A device may name conditions that have to be True, and others that must not be, before pods may use it (a fabric attaches it
first). They are reported in the claim's status, device by device. Source: `isClaimReadyForBinding` and `isClaimTimeout` in
kubernetes' `pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go`.
"""

from policysched.model.devices import DeviceAllocation, DeviceCondition, ResourceClaim

BINDING_TIMEOUT_S = 600
"""Where nothing else is said. Source: `DynamicResourcesBindingTimeoutDefault` of kube-scheduler's configuration."""
_SECOND_NS = 10**9


class DeviceBindingFailed(Exception):
    """A condition says so: in kube-scheduler's words."""


def has_binding_conditions(given: DeviceAllocation) -> bool:
    """Whether a pod has to wait for the devices."""
    return any(device.binding_conditions for device in given.devices)


def is_ready_for_binding(claim: ResourceClaim) -> bool:
    """Whether all conditions are met that devices name. Of those that are missing none are looked at behind the first. Raises
    BindingFailed."""
    if claim.allocation is None:
        return False
    for device in claim.allocation.devices:
        if not device.binding_conditions:
            continue
        status = next((device_status for device_status in claim.device_statuses if device_status.device == device.device), None)
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
    """When it is too late for devices that are not ready; None: nobody waits for them, or nobody wrote since when."""
    given = claim.allocation
    if given is None or given.allocated_ns is None or not has_binding_conditions(given):
        return None
    return given.allocated_ns + timeout_s * _SECOND_NS


def is_unbindable(claim: ResourceClaim, now_ns: int, timeout_s: int) -> bool:
    """Whether the claim had better be given other devices."""
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
