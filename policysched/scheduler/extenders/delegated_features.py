"""What the extender leaves to the plugins of the kube-scheduler that calls it."""

from dataclasses import replace

from policysched.cluster.devices.availability import AvailableDevices
from policysched.evaluate import Plan
from policysched.model.pods import Pod


def without_delegated_features(pod: Pod, plan: Plan, devices: AvailableDevices) -> Pod:
    """The pod without features that kube-scheduler's own plugins handle.

    These are features that no built-in covers, volume claims if the policy has no rule for them, and
    devices, which kube-scheduler allocates for claims and extended resources.
    """
    device_resources = {
        request.resource
        for request in pod.extended
        if devices.class_of_resource(request.resource) is not None
    }
    return replace(
        pod,
        uncovered=(),
        group_references=(),
        claims=pod.claims if plan.covers_claims else (),
        requests={name: amount for name, amount in pod.requests.items() if name not in device_resources},
        device_claims=(),
        extended=(),
    )
