"""The search for the devices of a pod, in the steps of an attempt."""

from policysched.cluster.devices.node_searches import search_nodes
from policysched.cluster.devices.pod_claims import uses_devices
from policysched.evaluate import Overlay
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import DEVICE_STEPS_PER_COST_UNIT, Steps


def search_devices(core: SchedulerCore, pod: PendingPod, overlay: Overlay | None = None) -> Steps[None]:
    """Node by node, before the evaluation, which finds the results: on the cluster, or on the nodes whose devices the overlay
    changed."""
    plan = core.plan(pod.policy)
    if not plan.devices_timeout_s or not uses_devices(pod.pod):
        return  # the policy has no filter for devices
    for steps in search_nodes(
        pod.pod,
        core.cache,
        with_extended=plan.covers_extended_resources,
        overlay=None if overlay is None else overlay.device_reservations,
    ):
        yield steps // DEVICE_STEPS_PER_COST_UNIT
