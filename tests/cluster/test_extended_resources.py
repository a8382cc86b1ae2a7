"""Extended resources that devices provide: their classes, and the requests of the created claim."""

from typing import Any

import pytest

from policysched.cluster.devices.extended_resources import (
    ExtendedResourceMapping,
    classes_by_resource,
    may_be_device_resource,
    requests_and_mappings,
)
from policysched.kube.decode.devices import decode_extended_requests
from policysched.model.devices import DeviceRequest
from policysched.model.pods import ExtendedResourceRequest
from tests.devices import device_class

GPU = "example.com/gpu"
NIC = "example.com/nic"


def container(name: str, *, always: bool = False, **requests: str) -> dict[str, Any]:
    """Requests by the last part of the resource name: `gpu`, `nic`, `cpu`."""
    names = {"gpu": GPU, "nic": NIC}
    requested = {names.get(word, word): amount for word, amount in requests.items()}
    return {
        "name": name,
        "resources": {"requests": requested},
        **({"restartPolicy": "Always"} if always else {}),
    }


def pod_spec(
    *containers: dict[str, Any], inits: tuple[dict[str, Any], ...] = ()
) -> tuple[ExtendedResourceRequest, ...]:
    return decode_extended_requests({"initContainers": list(inits), "containers": list(containers)})


def counts(requests: tuple[DeviceRequest, ...]) -> dict[str, tuple[str, int]]:
    return {
        request.name: (request.exactly.class_name, request.exactly.count)
        for request in requests
        if request.exactly
    }


def test_requests_are_named_by_the_index_of_container_and_resource() -> None:
    spec = pod_spec(container("a", cpu="1", gpu="2"), container("b", nic="1", gpu="3"))

    requests, mapped = requests_and_mappings(spec, {GPU: "gpu", NIC: "nic"})

    assert counts(requests) == {
        "container-0-request-1": ("gpu", 2),
        "container-1-request-0": ("gpu", 3),
        "container-1-request-1": ("nic", 1),
    }
    assert mapped == (
        ExtendedResourceMapping("a", GPU, "container-0-request-1"),
        ExtendedResourceMapping("b", GPU, "container-1-request-0"),
        ExtendedResourceMapping("b", NIC, "container-1-request-1"),
    )


def test_requests_are_sorted_by_name() -> None:
    spec = pod_spec(*(container(f"c{number}", gpu="1") for number in range(11)))

    requests, _ = requests_and_mappings(spec, {GPU: "gpu"})

    assert [request.name for request in requests][:3] == [
        "container-0-request-0",
        "container-1-request-0",
        "container-10-request-0",
    ]


def test_an_init_container_uses_the_devices_of_later_containers() -> None:
    spec = pod_spec(container("main", gpu="3"), inits=(container("first", gpu="2"),))

    requests, mapped = requests_and_mappings(spec, {GPU: "gpu"})

    assert counts(requests) == {"container-1-request-0": ("gpu", 3)}
    assert mapped == (
        ExtendedResourceMapping("main", GPU, "container-1-request-0"),
        ExtendedResourceMapping("first", GPU, "container-1-request-0"),
    )


def test_the_further_needs_of_init_containers_are_one_request_for_the_largest() -> None:
    inits = (container("first", gpu="3"), container("second", gpu="5"), container("third", gpu="4"))
    spec = pod_spec(container("main", gpu="1"), inits=inits)

    requests, mapped = requests_and_mappings(spec, {GPU: "gpu"})

    assert counts(requests) == {"container-1-request-0": ("gpu", 4), "container-3-request-0": ("gpu", 1)}
    assert mapped == (
        ExtendedResourceMapping("main", GPU, "container-3-request-0"),
        *(
            ExtendedResourceMapping(name, GPU, request)
            for name in ("first", "second", "third")
            for request in ("container-3-request-0", "container-1-request-0")
        ),
    )


def test_init_containers_after_a_sidecar_cannot_use_its_devices() -> None:
    inits = (container("sidecar", always=True, gpu="1"), container("after", gpu="2"))
    spec = pod_spec(container("main", cpu="1"), inits=inits)

    requests, _ = requests_and_mappings(spec, {GPU: "gpu"})

    assert counts(requests) == {"container-0-request-0": ("gpu", 1), "container-1-request-0": ("gpu", 2)}


def test_a_resource_without_a_class_is_left_out() -> None:
    requests, mapped = requests_and_mappings(pod_spec(container("a", gpu="1", nic="1")), {NIC: "nic"})

    assert counts(requests) == {"container-0-request-1": ("nic", 1)}
    assert mapped == (ExtendedResourceMapping("a", NIC, "container-0-request-1"),)


def test_a_limit_without_a_request_is_the_request() -> None:
    decoded = decode_extended_requests({"containers": [{"name": "a", "resources": {"limits": {GPU: "2"}}}]})

    assert decoded == (ExtendedResourceRequest("a", 0, False, GPU, 0, 2),)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("example.com/gpu", True),
        ("deviceclass.resource.kubernetes.io/gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("example.kubernetes.io/gpu", False),
        ("requests.example.com/gpu", False),
    ],
)
def test_extended_and_implicit_class_resources_may_be_devices(resource: str, expected: bool) -> None:
    assert may_be_device_resource(resource) is expected


def test_a_class_has_its_named_resource_and_its_implicit_one() -> None:
    gpu_class = device_class("gpu", extendedResourceName=GPU)

    assert classes_by_resource([gpu_class]) == {
        GPU: gpu_class,
        "deviceclass.resource.kubernetes.io/gpu": gpu_class,
    }


def test_the_newest_class_wins_a_resource_then_the_first_by_name() -> None:
    old = device_class("a", extendedResourceName=GPU, created="2026-01-01T00:00:00Z")
    new = device_class("c", extendedResourceName=GPU, created="2026-01-02T00:00:00Z")
    twin = device_class("b", extendedResourceName=GPU, created="2026-01-02T00:00:00Z")

    assert classes_by_resource([old, new])[GPU] == new
    assert classes_by_resource([new, twin, old])[GPU] == twin
