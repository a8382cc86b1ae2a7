"""What a pod requests, from its manifest: the reference for `policysched.kube.decode.pod_resources`.

Written from `PodRequests` and `PodLimits` of k8s.io/component-helpers v0.36.3 with `UseStatusResources` and
`InPlacePodLevelResourcesVerticalScalingEnabled`, one resource at a time and in exact fractions. As in v0.37.2,
`allocatedResources` count also where a status has no `resources`.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]
SUFFIXES = {"m": Fraction(1, 1000), "k": Fraction(1000), "Mi": Fraction(2**20), "Gi": Fraction(2**30)}


def pod_amount(manifest: Json, resource: str, *, what: str) -> Fraction:
    """How much of the resource counts for the pod; `what` is `requests` or `limits`. 0 if it names none."""
    spec, status = manifest["spec"], manifest.get("status", {})
    amount = _containers_amount(spec, status, resource, what)
    pod_level = pod_level_amounts(spec)[what]
    if resource in pod_level:
        amount = pod_level[resource]
        amount = _counted(amount, status, infeasible=_is_infeasible(status), resource=resource, what=what)
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


def _containers_amount(spec: Json, status: Json, resource: str, what: str) -> Fraction:
    statuses = {
        container["name"]: container
        for kind in ("containerStatuses", "initContainerStatuses")
        for container in status.get(kind, ())
    }

    def amount_of(container: Json, *, resizable: bool) -> Fraction:
        resources = container.get("resources", {})
        texts = [resources.get("limits", {}).get(resource, "0")]
        if what == "requests":
            texts = [resources.get("requests", {}).get(resource, texts[0])]
        amount = quantity(texts[0])
        reported = statuses.get(container["name"])
        if not resizable or reported is None:
            return amount
        return _counted(amount, reported, infeasible=_is_infeasible(status), resource=resource, what=what)

    running = sum((amount_of(container, resizable=True) for container in spec["containers"]), Fraction(0))
    sidecars = peak = Fraction(0)
    for init in spec.get("initContainers", ()):
        sidecar = init.get("restartPolicy") == "Always"
        amount = amount_of(init, resizable=sidecar)
        peak = max(peak, sidecars + amount)
        sidecars += amount if sidecar else 0
    return max(running + sidecars, peak)


def _counted(wanted: Fraction, reported: Json, *, infeasible: bool, resource: str, what: str) -> Fraction:
    """The most of what is wanted, unless that is infeasible, what is there and, for requests, what is allocated."""
    fields = ("resources", "allocatedResources") if what == "requests" else ("resources",)
    if all(reported.get(field) is None for field in fields):
        return wanted
    texts: Sequence[str] = [reported.get("resources", {}).get(what, {}).get(resource, "0")]
    if what == "requests":
        texts = [*texts, reported.get("allocatedResources", {}).get(resource, "0")]
    amounts = [quantity(text) for text in texts]
    return max(amounts if infeasible else [wanted, *amounts])


def _is_infeasible(status: Json) -> bool:
    pending = [item for item in status.get("conditions", ()) if item["type"] == "PodResizePending"]
    return bool(pending) and pending[0]["reason"] == "Infeasible"
