"""The CEL selectors of devices that pods have, and their evaluation before the pods are attempted."""

from collections.abc import Iterable
from itertools import chain

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.selector_results import SELECTORS_MAX
from policysched.model.pods import Pod


def too_many_selectors_message(pods: Iterable[Pod], devices: DeviceCache) -> str | None:
    """Why the pods have too many selectors to be attempted together; None: the number is within the limit."""
    if _selectors(pods, devices) is not None:
        return None
    return f"the resource claims have more than {SELECTORS_MAX} different device selectors"


def evaluate_selectors(pods: Iterable[Pod], devices: DeviceCache, operations_max: int | None) -> bool:
    """Evaluate the pods' selectors for devices where they are not evaluated yet, within a number of operations (None: no limit).
    Returns whether the pods can be attempted: all are evaluated, or they are too many."""
    selectors, results = _selectors(pods, devices), devices.allocation_cache.selector_results
    return (
        selectors is None
        or results.is_evaluated(selectors)
        or results.evaluate_some(selectors, operations_max)
    )


def _selectors(pods: Iterable[Pod], devices: DeviceCache) -> dict[str, None] | None:
    """The CEL selectors that a search of devices for the pods can evaluate, in their order. None: more than SELECTORS_MAX, of which
    the rest is not visited. A gang or a pod can use one claim thousands of times."""
    available, users = AvailableDevices(devices), [pod for pod in pods if uses_devices(pod)]
    keys = dict.fromkeys(use.claim for pod in users for use in pod.device_claims)
    claims = [
        claim
        for key in keys
        if key and (claim := available.claim(key)) and available.allocation(claim.key) is None
    ]
    names = dict.fromkeys(name for claim in claims for name in claim.class_names)
    resources = dict.fromkeys(request.resource for pod in users for request in pod.extended)
    classes = [available.device_class(name) for name in names]
    classes += [available.class_of_resource(resource) for resource in resources]
    of_classes = (selector for of_class in classes if of_class for selector in of_class.selectors)
    of_claims = (selector for claim in claims for selector in claim.selectors)
    selectors: dict[str, None] = {}
    for selector in chain(of_classes, of_claims):
        if selector is not None:
            selectors[selector] = None
            if len(selectors) > SELECTORS_MAX:
                return None
    return selectors
