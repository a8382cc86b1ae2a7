"""What a pod requests, from its manifest: the reference for `policysched.kube.decode.pod_resources`.

Written from `PodRequests` and `PodLimits` of k8s.io/component-helpers v0.37.2 with `UseStatusResources` and
`InPlacePodLevelResourcesVerticalScalingEnabled`, one resource at a time and in exact fractions.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]
SUFFIXES = {"m": Fraction(1, 1000), "k": Fraction(1000), "Mi": Fraction(2**20), "Gi": Fraction(2**30)}


def pod_amount(manifest: Json, resource: str, *, what: str) -> Fraction:
    """How much of the resource counts for the pod; `what` is `requests` or `limits`. 0 if it names none."""
    spec, status = manifest["spec"], manifest.get("status", {})
    infeasible = _is_infeasible(status)
    amount = _containers_amount(spec, status, resource, what)
    levels = pod_level_amounts(spec)
    applies = levels["requests"] if what == "requests" else {**levels["requests"], **levels["limits"]}
    if applies and (resource in ("cpu", "memory") or resource.startswith("hugepages-")):
        lists = [{} if infeasible and "resources" in status else levels[what]]
        if "resources" in status:
            lists.append(_amounts(status["resources"].get(what)))
            lists += [_amounts(status.get("allocatedResources"))] * (what == "requests")
        amount = max((named[resource] for named in lists if resource in named), default=amount)
    overhead = Fraction(0)
    if resource in spec.get("overhead", {}):
        overhead = quantity(spec["overhead"][resource])
    return amount + overhead if what == "requests" or amount > 0 else amount


def pod_level_amounts(spec: Json) -> dict[str, dict[str, Fraction]]:
    """`spec.resources` of the resources that a pod may have, with the API server's defaults for requests."""
    written = spec.get("resources") or {}
    amounts = {
        what: {
            resource: quantity(text)
            for resource, text in written.get(what, {}).items()
            if resource in ("cpu", "memory") or resource.startswith("hugepages-")
        }
        for what in ("requests", "limits")
    }
    if amounts["limits"]:
        for resource in (*amounts["limits"], "cpu", "memory"):
            if resource not in amounts["requests"]:
                named = any(
                    resource in container.get("resources", {}).get(group, {})
                    for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
                    for group in ("requests", "limits")
                )
                if named:
                    amounts["requests"][resource] = _containers_amount(spec, {}, resource, "requests")
                elif resource in amounts["limits"]:
                    amounts["requests"][resource] = amounts["limits"][resource]
    return amounts


def quantity(text: str) -> Fraction:
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)


def _amounts(texts: Mapping[str, str] | None) -> dict[str, Fraction]:
    return {resource: quantity(text) for resource, text in (texts or {}).items()}


def _containers_amount(spec: Json, status: Json, resource: str, what: str) -> Fraction:
    """The largest of three sums: what the spec wants, unless that is infeasible, what is allocated, and what is there."""
    infeasible = _is_infeasible(status)
    sums = [] if infeasible else [_sum(spec, lambda container: _wanted(container, resource, what))]
    statuses = {
        container["name"]: container
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in status.get(kind, ())
    }

    def unless_infeasible(container: Json) -> Fraction:
        return Fraction(0) if infeasible else _wanted(container, resource, what)

    def allocated(container: Json) -> Fraction:
        given = statuses.get(container["name"], {}).get("allocatedResources")
        return unless_infeasible(container) if given is None else _amounts(given).get(resource, Fraction(0))

    def actual(container: Json) -> Fraction:
        given = statuses.get(container["name"], {}).get("resources", {}).get(what)
        if given is not None:
            return _amounts(given).get(resource, Fraction(0))
        return allocated(container) if what == "requests" else unless_infeasible(container)

    of_pod = status.get("resources", {}).get(what)
    if what == "limits":
        sums.append(_sum(spec, actual) if of_pod is None else _amounts(of_pod).get(resource, Fraction(0)))
    elif of_pod is not None and "allocatedResources" in status:
        sums += [
            _amounts(given).get(resource, Fraction(0)) for given in (of_pod, status["allocatedResources"])
        ]
    else:
        sums += [_sum(spec, allocated), _sum(spec, actual)]
    return max(sums)


def _wanted(container: Json, resource: str, what: str) -> Fraction:
    resources = container.get("resources", {})
    text = resources.get("limits", {}).get(resource, "0")
    if what == "requests":
        text = resources.get("requests", {}).get(resource, text)
    return quantity(text)


def _sum(spec: Json, amount_of: Callable[[Json], Fraction]) -> Fraction:
    running = sum((amount_of(container) for container in spec["containers"]), Fraction(0))
    sidecars = peak = Fraction(0)
    for init in spec.get("initContainers", ()):
        amount = amount_of(init)
        peak = max(peak, sidecars + amount)
        sidecars += amount if init.get("restartPolicy") == "Always" else 0
    return max(running + sidecars, peak)


def _is_infeasible(status: Json) -> bool:
    pending = [item for item in status.get("conditions", ()) if item["type"] == "PodResizePending"]
    return bool(pending) and pending[0]["reason"] == "Infeasible"
