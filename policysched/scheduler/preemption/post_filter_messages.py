"""The messages of PostFilter, worded as in kube-scheduler: preemption, and DynamicResources before it."""

from enum import StrEnum

from policysched.builtins.registry import BUILTINS, KUBE_SCHEDULER_RELEASES
from policysched.cluster.devices.availability import AvailableDevices
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter
from policysched.model.pods import Pod
from policysched.scheduler.preemption.candidates import (
    NOT_HELPFUL,
)
from policysched.scheduler.unschedulable_message import unavailable_message


class ClaimPostFilterMessage(StrEnum):
    """PostFilter message of kube-scheduler's DynamicResources, which precedes that of preemption."""

    NONE = "no new claims to deallocate"
    STILL_UNSCHEDULABLE = "still not schedulable"
    DEALLOCATED = "deallocation of ResourceClaim completed"
    DELETED = "deletion of ResourceClaim completed"


NO_CLAIM_STATE = "not found"
"""PostFilter message of kube-scheduler's DynamicResources for a pod rejected before its PreFilter ran."""


def preemption_message(
    program: Program, message: str, claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE
) -> str:
    """The message that follows the filters' reasons, in kube-scheduler's format."""
    return f"{f'{claims}, ' if _has_default_filters(program) else ''}preemption: {message}"


def claim_message(
    pod: Pod, devices: AvailableDevices, covers_extended: bool = True
) -> ClaimPostFilterMessage:
    """The message for a pod with device claims, or with extended resources of a device class (`covers_extended`: the
    policy allocates devices for those)."""
    has_device_resources = covers_extended and any(
        devices.class_of_resource(request.resource) is not None for request in pod.extended
    )
    return (
        ClaimPostFilterMessage.STILL_UNSCHEDULABLE
        if pod.device_claims or has_device_resources
        else ClaimPostFilterMessage.NONE
    )


def message_after_rejection(program: Program, node_count: int, rejected_by: str | None = None) -> str:
    """The message that follows a filter's reason for rejecting a pod on every node.

    With kube-scheduler's default profile preemption does not run then, except after a rejection by
    DynamicResources. With fewer filters it runs, and helps nowhere.
    """
    if _has_default_filters(program) and rejected_by != "dynamic_resources":
        return NO_CLAIM_STATE
    if program.preemption.mode == "never":
        return ""
    return preemption_message(program, unavailable_message(node_count, {NOT_HELPFUL: node_count}))


def _has_default_filters(program: Program) -> bool:
    """Whether the policy has all filters of the default profile of a kube-scheduler release.

    If so, messages include that of the profile's DynamicResources.
    """
    active_filters = {rule.builtin for rule in program.rules.filters if isinstance(rule, BuiltinFilter)}
    filters = {name for name, builtin in BUILTINS.items() if builtin.filters}
    return any(
        filters - release.missing_builtins <= active_filters for release in KUBE_SCHEDULER_RELEASES.values()
    )
