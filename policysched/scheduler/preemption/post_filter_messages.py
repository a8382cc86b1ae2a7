"""The messages of PostFilter, worded as in kube-scheduler: preemption, and DynamicResources before it."""

from enum import StrEnum

from policysched.builtins.registry import (
    KUBE_DEFAULT_VERSION,
    KUBE_SCHEDULER_RELEASES,
    KubeSchedulerRelease,
    release_of_filters,
)
from policysched.cluster.devices.availability import AvailableDevices
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.preemption.candidate_search import NOT_HELPFUL
from policysched.scheduler.preemption.gang_placement import PREEMPTION_NEVER
from policysched.scheduler.unschedulable_message import unavailable_message


class ClaimPostFilterMessage(StrEnum):
    """PostFilter message of kube-scheduler's DynamicResources, which precedes that of preemption. The
    first two are not written since 1.37."""

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
    release = _release(program)
    says_claims = release is not None and (
        release.says_claims or claims in (ClaimPostFilterMessage.DEALLOCATED, ClaimPostFilterMessage.DELETED)
    )
    return f"{f'{claims}, ' if says_claims else ''}preemption: {message}"


def placement_message(program: Program, node: NodeName, victim_count: int) -> str:
    """The message of a pod that preempts others; empty until 1.36."""
    release = _release(program) or KUBE_SCHEDULER_RELEASES[KUBE_DEFAULT_VERSION]
    if not release.says_placement:
        return ""
    return (
        f"preemption: found a potential placement for pod on node {node}, preempting {victim_count} victims"
    )


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


def message_after_rejection(
    program: Program, pod: Pod, node_count: int, rejected_by: str | None = None
) -> str:
    """The message that follows a filter's reason for rejecting the pod on every node.

    With kube-scheduler's default profile preemption does not run then, except after a rejection by
    DynamicResources. With fewer filters it runs, and helps nowhere.
    """
    if _release(program) is not None and rejected_by != "dynamic_resources":
        return NO_CLAIM_STATE
    if program.preemption.mode == "never":
        return ""
    if pod.preemption_policy == "Never":
        return preemption_message(program, PREEMPTION_NEVER)
    return preemption_message(program, unavailable_message(node_count, {NOT_HELPFUL: node_count}))


def _release(program: Program) -> KubeSchedulerRelease | None:
    """The kube-scheduler release whose default filters the policy has. None: it has those of none.

    With them, messages include that of the profile's DynamicResources.
    """
    return release_of_filters(
        [rule.builtin for rule in program.rules.filters if isinstance(rule, BuiltinFilter)]
    )
