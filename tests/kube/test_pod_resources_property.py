"""What a pod requests agrees with the reference implementation, before, during and after a resize in place."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policysched.kube.decode import pod_resources
from policysched.kube.decode.pod_resources import decode_pod_resources
from tests.reference.pod_resources import pod_amount, pod_level_amounts

AMOUNTS = st.sampled_from(["0", "100m", "1", "1500m", "2", "3"])
RESOURCES = ("cpu", "memory", "example.com/gpu")


def lists(*names: str) -> st.SearchStrategy[dict[str, str]]:
    whole = st.sampled_from(["0", "1", "2", "3"])
    return st.fixed_dictionaries({}, optional={name: AMOUNTS if name == "cpu" else whole for name in names})


def specs(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"requests": lists(*names), "limits": lists(*names)})


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of spec and status, also those that no kubelet reports."""

    def containers(kind: str) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{kind}{index}",
                "resources": draw(specs(*RESOURCES)),
                **({"restartPolicy": "Always"} if kind == "init" and draw(st.booleans()) else {}),
            }
            for index in range(draw(st.integers(kind == "main", 2)))
        ]

    def reported(container: dict[str, Any]) -> dict[str, Any]:
        fields = {"resources": specs(*RESOURCES), "allocatedResources": lists(*RESOURCES)}
        return {"name": container["name"], **draw(st.fixed_dictionaries({}, optional=fields))}

    spec: dict[str, Any] = {"containers": containers("main"), "initContainers": containers("init")}
    if draw(st.booleans()):
        spec["resources"] = draw(specs("cpu", "memory"))
    if draw(st.booleans()):
        spec["overhead"] = draw(lists("cpu", "memory"))
    status: dict[str, Any] = {
        "containerStatuses": [reported(item) for item in spec["containers"] if draw(st.booleans())],
        "initContainerStatuses": [reported(item) for item in spec["initContainers"] if draw(st.booleans())],
        "conditions": [
            {"type": kind, "status": "True", "reason": draw(st.sampled_from(["Infeasible", "Deferred"]))}
            for kind in draw(
                st.lists(st.sampled_from(["PodResizePending", "PodResizeInProgress"]), max_size=2)
            )
        ],
    }
    if draw(st.booleans()):
        status["resources"] = draw(specs("cpu", "memory"))
    if draw(st.booleans()):
        status["allocatedResources"] = draw(lists("cpu", "memory"))
    return {"spec": spec, "status": status}


def agrees_with_the_reference(manifest: dict[str, Any]) -> None:
    pod_resources._cache.clear()  # a planted bug must not meet a result of the right code
    decoded = decode_pod_resources(manifest["spec"], manifest["status"])

    for resource in RESOURCES:
        unit = 1000 if resource == "cpu" else 1
        for what, amounts in (("requests", decoded.requests), ("limits", decoded.limits)):
            expected = pod_amount(manifest, resource, what=what)
            assert Fraction(amounts.get(resource, 0), unit) == expected, (what, resource)
    for resource, placed in zip(("cpu", "memory"), decoded.scoring_on_node, strict=True):
        expected = pod_amount(manifest, resource, what="requests")
        # Without any amount, a resize that is infeasible leaves the containers' assumed requests.
        if expected and resource in pod_level_amounts(manifest["spec"])["requests"]:
            assert Fraction(placed, 1000 if resource == "cpu" else 1) == expected


@settings(max_examples=200)
@given(manifests())
def test_requests_and_limits_are_those_of_the_reference(manifest: dict[str, Any]) -> None:
    agrees_with_the_reference(manifest)


def sum_without(state: str) -> object:
    right = pod_resources._sum
    return lambda containers, inits, what, assumed: (
        {} if what == state else right(containers, inits, what, assumed)
    )


def largest_of(container: pod_resources._Container) -> pod_resources._Container:
    amounts = container.requests, container.allocated, container.actual_requests
    return replace(container, requests=pod_resources._largest(*amounts))


BUGS: dict[str, tuple[object, str, object]] = {
    "an infeasible resize counts": (pod_resources, "_is_resize_infeasible", lambda _: False),
    "any pending resize is infeasible": (
        pod_resources,
        "_is_resize_infeasible",
        lambda status: any(item["type"] == "PodResizePending" for item in status["conditions"]),
    ),
    "allocated resources do not count": (pod_resources, "_sum", sum_without("allocated")),
    "actual resources do not count": (pod_resources, "_sum", sum_without("actual_requests")),
    "the largest amount of each container counts": (
        pod_resources,
        "_counted_requests",
        lambda containers, inits, *_, **__: pod_resources._sum(
            *([largest_of(container) for container in group] for group in (containers, inits)),
            "requests",
            {},
        ),
    ),
    "the pod's own status does not count": (
        pod_resources,
        "_pod_level",
        lambda spec, *_, **__: pod_resources._pod_level_spec(spec),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_comparison_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[name])
    search = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])

    with pytest.raises(AssertionError):
        search(given(manifests())(agrees_with_the_reference))()
