"""The device search for claims, in kube-scheduler's order, and reservations of devices."""

from typing import Any

import pytest

from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.pod_claims import (
    ClaimsByNode,
    PodResourceClaims,
    choose_devices,
    pod_resource_claims,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.devices.search_limits import ATTEMPT_STEPS_MAX, SearchAllowance
from policysched.kube.decode.devices import decode_device_taint_rule, decode_resource_claim
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import DeviceTaintRule, ResourceClaim
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.model.pods import Pod
from tests.builders import node
from tests.devices import (
    DRIVER,
    ask,
    asking,
    claim,
    claim_manifest,
    device_class,
    device_slice,
    given,
    gpu,
    user,
)

ATTRIBUTES = f'device.attributes["{DRIVER}"]'

ADVICE = ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields"


def world(*objects: object) -> DeviceCache:
    """A device cache with these objects and the class `gpu`."""
    devices = DeviceCache()
    devices.put_class(device_class())
    for item in objects:
        match item:
            case ResourceClaim():
                devices.put_claim(item)
            case _ if hasattr(item, "selectors"):
                devices.put_class(item)  # type: ignore[arg-type]
            case _:
                devices.put_slice(item)  # type: ignore[arg-type]
    return devices


def choose(devices: DeviceCache, pod: Pod, at: str = "a", **labels: str) -> DeviceChoice | str:
    """The choice for the pod on the named node, or the reason why it is infeasible."""
    claims = pod_resource_claims(pod, AvailableDevices(devices))
    return (
        claims
        if isinstance(claims, str)
        else choose_devices(pod, claims, node(at, labels=labels), AvailableDevices(devices))
    )


def names(choice: DeviceChoice | str) -> list[str] | str:
    """The devices of all claims, each with its request."""
    if isinstance(choice, str):
        return choice
    return [
        f"{result.request}:{result.device.device}"
        for _, allocation in choice.allocated
        for result in allocation.devices
    ]


def got(devices: DeviceCache, *claims: str, at: str = "a", **labels: str) -> list[str] | str:
    return names(choose(devices, user("p", *claims), at, **labels))


# ── the order ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_free_device_is_chosen() -> None:
    taken = claim("old", status=given("g0", reserved=["q"]))
    devices = world(device_slice("a", gpu("g0"), gpu("g1"), gpu("g2")), taken, claim("c"))

    assert got(devices, "c") == ["r:g1"]


def test_pools_are_searched_by_driver_and_name_and_slices_by_name() -> None:
    devices = world(
        device_slice("a", gpu("g"), name="1", driver="z.example.com", pool="a"),
        device_slice("a", gpu("h"), name="2", driver="b.example.com", pool="z", slices=2),
        device_slice("a", gpu("i"), name="0", driver="b.example.com", pool="z", slices=2),
        claim("c", asking(count=3)),
    )

    assert got(devices, "c") == ["r:i", "r:h", "r:g"]


def test_the_search_backtracks() -> None:
    devices = world(
        device_slice("a", gpu("g0", attributes={"big": True}), gpu("g1", attributes={"big": False})),
        claim("c", asking("any"), asking("big", f"{ATTRIBUTES}.big")),
    )

    assert got(devices, "c") == ["any:g1", "big:g0"]


def test_requests_of_several_claims_are_satisfied_together() -> None:
    devices = world(
        device_slice("a", gpu("g0", attributes={"big": True}), gpu("g1", attributes={"big": False})),
        claim("first"),
        claim("second", asking("r", f"{ATTRIBUTES}.big")),
    )

    assert got(devices, "first", "second") == ["r:g1", "r:g0"]
    assert got(devices, "first") == ["r:g0"]


def test_a_request_for_more_devices_than_exist_fails() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c", asking(count=2)))

    assert got(devices, "c") == "cannot allocate all claims"


# ── what a request says ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_device_must_match_the_selectors_of_class_and_request() -> None:
    devices = world(
        device_class("fast", f"{ATTRIBUTES}.speed > 1"),
        device_slice("a", *(gpu(f"g{n}", attributes={"speed": n, "even": n % 2 == 0}) for n in range(4))),
        claim("c", asking("r", f"{ATTRIBUTES}.even", of_class="fast")),
    )

    assert got(devices, "c") == ["r:g2"]


def test_a_request_for_all_devices_gets_all_selected_or_none() -> None:
    slices = device_slice("a", gpu("g0"), gpu("g1"), gpu("x", attributes={"x": 1}))
    all_of_them = asking("r", f"!has({ATTRIBUTES}.x)", allocationMode="All")
    taken = claim("old", status=given("g1"))

    assert got(world(slices, claim("c", all_of_them)), "c") == ["r:g0", "r:g1"]
    assert got(world(slices, taken, claim("c", all_of_them)), "c") == "cannot allocate all claims"
    assert got(world(claim("c", all_of_them)), "c") == "cannot allocate all claims"


def test_the_first_possible_alternative_is_chosen_and_earlier_ones_score_higher() -> None:
    first = {
        "name": "r",
        "firstAvailable": [
            {"name": "two", **ask(f"{ATTRIBUTES}.big", count=2)},
            {"name": "one", **ask(f"{ATTRIBUTES}.big")},
            {"name": "small", **ask(f"!{ATTRIBUTES}.big")},
        ],
    }
    big, small = gpu("big", attributes={"big": True}), gpu("small", attributes={"big": False})
    devices = world(device_slice("a", small, big), device_slice("b", small), claim("c", first))
    claims = PodResourceClaims((devices.claims[ResourceClaimKey("default", "c")],))

    assert got(devices, "c", at="a") == ["r/one:big"]
    assert got(devices, "c", at="b") == ["r/small:small"]
    assert [
        ClaimsByNode(claims, AvailableDevices(devices)).score(node(name)) for name in ("a", "b", "c")
    ] == [7, 6, 0]


def test_allocated_alternatives_score_only_beside_unallocated_claims() -> None:
    either = {"name": "r", "firstAvailable": [{"name": "x", **ask()}, {"name": "y", **ask()}]}
    taken = claim("taken", either, status=given("g0", node=None, request="r/y", reserved=("other",)))
    devices = world(device_slice("a", gpu("g1")), taken, claim("open", either))
    alone, beside = (
        pod_resource_claims(user("p", *names), AvailableDevices(devices))
        for names in (["taken"], ["taken", "open"])
    )
    assert isinstance(alone, PodResourceClaims)
    assert isinstance(beside, PodResourceClaims)

    scores = [ClaimsByNode(claim, AvailableDevices(devices)).score(node("a")) for claim in (alone, beside)]

    assert scores == [0, 7 + 8]


def test_admin_access_ignores_other_allocations() -> None:
    taken = claim("old", status=given("g0"))
    devices = world(device_slice("a", gpu("g0")), taken, claim("c", asking(adminAccess=True)))
    watcher = choose(devices, user("p", "c"))

    assert names(watcher) == ["r:g0"]
    assert isinstance(watcher, DeviceChoice)
    devices.reserve(PodUid("p"), watcher, 1)
    assert devices.check() == []


def test_a_claim_gets_at_most_as_many_devices_as_its_status_can_list() -> None:
    many = device_slice("a", *(gpu(f"g{n:02}") for n in range(40)))

    assert got(world(many, claim("c", asking("x", count=20), asking("y", count=13))), "c") == (
        "claim default/c, request y: adding 13 devices exceeds the claim limit of 32, with 20 already accounted for"
    )


def test_a_tainted_device_needs_a_toleration() -> None:
    tainted = gpu("g0", taints=[{"key": "broken", "effect": "NoSchedule"}])
    noted = gpu("g1", taints=[{"key": "noted", "effect": "None"}])
    tolerant = asking(tolerations=[{"key": "broken", "operator": "Exists"}])
    devices = world(device_slice("a", tainted, noted), claim("c"), claim("tolerant", tolerant))

    assert got(devices, "c") == ["r:g1"]
    assert got(devices, "tolerant") == ["r:g0"]


# ── constraints ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_match_constraint_requires_equal_attributes() -> None:
    offered = [gpu(f"g{n}", attributes={"rack": rack, "n": n}) for n, rack in enumerate("xyy")]
    constraint = {"constraints": [{"matchAttribute": f"{DRIVER}/rack"}]}
    devices = world(device_slice("a", *offered), claim("c", asking(count=2), **constraint))

    assert got(devices, "c") == ["r:g1", "r:g2"]


def test_a_constraint_applies_to_the_requests_it_lists() -> None:
    offered = [gpu(f"g{n}", attributes={"rack": rack}) for n, rack in enumerate("xyx")]
    constraint = {"constraints": [{"matchAttribute": f"{DRIVER}/rack", "requests": ["one", "three"]}]}
    devices = world(
        device_slice("a", *offered), claim("c", asking("one"), asking("two"), asking("three"), **constraint)
    )

    assert got(devices, "c") == ["one:g0", "two:g1", "three:g2"]


def test_a_distinct_constraint_requires_different_attributes() -> None:
    offered = [gpu(f"g{n}", attributes={"rack": rack}) for n, rack in enumerate("xxyx")]
    constraint = {"constraints": [{"distinctAttribute": f"{DRIVER}/rack"}]}
    devices = world(
        device_slice("a", *offered),
        claim("two", asking(count=2), **constraint),
        claim("three", asking(count=3), **constraint),
    )

    assert got(devices, "two") == ["r:g0", "r:g2"]
    assert got(devices, "three") == "cannot allocate all claims"


# ── where devices are ──────────────────────────────────────────────────────────────────────────────────────────────


def test_local_devices_are_used_on_their_node_and_others_where_they_are_accessible() -> None:
    rack = {"key": "rack", "operator": "In", "values": ["7"]}
    selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [rack]}]}}
    devices = world(
        device_slice("a", gpu("own")),
        device_slice(None, gpu("near"), pool="near", **selector),
        device_slice(None, gpu("far"), pool="far", allNodes=True),
        claim("c", asking(count=1, selectors=[{"cel": {"expression": 'device.driver != ""'}}])),
        claim("both", asking(count=2)),
    )

    assert got(devices, "c", at="a") == ["r:own"]
    assert got(devices, "c", at="b") == ["r:far"]
    assert got(devices, "both", at="b", rack="7") == ["r:far", "r:near"]
    near = choose(devices, user("p", "both"), "b", rack="7")
    assert isinstance(near, DeviceChoice)
    ((_, allocation),) = near.allocated
    assert allocation.usable_on(node("z", labels={"rack": "7"}))
    assert not allocation.usable_on(node("z"))


def test_a_device_can_select_its_own_nodes() -> None:
    devices = world(
        device_slice(
            None,
            gpu("of-a", nodeName="a"),
            gpu("of-all", allNodes=True),
            pool="mixed",
            perDeviceNodeSelection=True,
        ),
        claim("c"),
    )

    assert got(devices, "c", at="a") == ["r:of-a"]
    assert got(devices, "c", at="b") == ["r:of-all"]


def test_only_the_latest_complete_generation_of_a_pool_counts() -> None:
    old = device_slice("a", gpu("old"), name="old", generation=1)
    new = device_slice("a", gpu("new"), name="new", generation=2, slices=2)
    rest = device_slice("a", gpu("rest"), name="rest", generation=2, slices=2)

    assert got(world(old, claim("c")), "c") == ["r:old"]
    assert got(world(old, new, claim("c")), "c") == "cannot allocate all claims"
    assert got(world(old, new, rest, claim("c")), "c") == ["r:new"]
    assert got(world(old, new, claim("c", asking(allocationMode="All"))), "c") == (
        f"claim default/c, request r: asks for all devices, but resource pool {DRIVER}/a is currently being updated"
    )


def test_a_newer_generation_elsewhere_makes_an_old_slice_obsolete() -> None:
    old = device_slice("a", gpu("old"), name="old", pool="p", generation=1, slices=2)
    new = device_slice("b", gpu("new"), name="new", pool="p", generation=2, slices=1)

    assert got(world(old, new, claim("c")), "c", at="a") == "cannot allocate all claims"
    assert got(world(old, new, claim("c")), "c", at="b") == ["r:new"]


def test_a_pool_with_duplicate_device_names_is_invalid() -> None:
    devices = world(device_slice("a", gpu("g"), gpu("g")), claim("c"))

    assert got(devices, "c") == "invalid resource pools were encountered"


# ── parts of devices ───────────────────────────────────────────────────────────────────────────────────────────────


def counted(name: str, memory: str) -> dict[str, Any]:
    return gpu(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": memory}}}])


def card(memory: str) -> Any:
    counters = [{"name": "card", "counters": {"memory": {"value": memory}}}]
    return device_slice("a", name="counters", slices=2, sharedCounters=counters)


def test_partitions_consume_their_shared_counters() -> None:
    parts = device_slice(
        "a", counted("whole", "40Gi"), counted("h0", "20Gi"), counted("h1", "20Gi"), slices=2
    )
    taken = claim("old", status=given("h0"))

    assert got(world(card("40Gi"), parts, claim("c")), "c") == ["r:whole"]
    assert got(world(card("40Gi"), parts, taken, claim("c")), "c") == ["r:h1"]
    assert got(world(card("40Gi"), parts, claim("c", asking(count=2))), "c") == ["r:h0", "r:h1"]
    assert got(world(card("40Gi"), parts, claim("c", asking(count=3))), "c") == "cannot allocate all claims"


def test_several_claims_share_a_device_up_to_its_capacity() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "6Gi"}}
    shared = gpu(
        "g", allowMultipleAllocations=True, capacity={"memory": {"value": "8Gi", "requestPolicy": policy}}
    )
    devices = world(
        device_slice("a", shared),
        *(claim(name, asking(capacity={"requests": {"memory": "2500Mi"}})) for name in ("x", "y", "z")),
        claim("w", asking(capacity={"requests": {"memory": "7Gi"}})),
    )

    assert got(devices, "w") == "cannot allocate all claims"
    shares = []
    for name in ("x", "y"):
        choice = choose(devices, user(name, name))
        assert isinstance(choice, DeviceChoice)
        devices.reserve(PodUid(name), choice, 1)
        ((_, allocation),) = choice.allocated
        (device,) = allocation.devices
        shares.append(device.share_id)
        assert dict(device.consumed_capacity) == {"memory": 3 * 2**30}
    assert len(set(shares)) == 2
    assert got(devices, "z") == "cannot allocate all claims"
    assert devices.check() == []


# ── what keeps a pod from all nodes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("objects", "pod", "message"),
    [
        ((), user("p", "c"), 'could not find ResourceClaim "default/c"'),
        ((), user("p", made={"t": "t-1"}), 'could not find ResourceClaim "default/t-1"'),
        ((claim("t-1", owner="uid-q"),), user("p", made={"t": "t-1"}),
         "ResourceClaim default/t-1 was not created for Pod default/p (Pod is not owner)"),
        ((claim("c", asking(of_class="none")),), user("p", "c"), "request r: device class none does not exist"),
        ((claim("c", {"name": "r", "firstAvailable": [{"name": "s", **ask(of_class="none")}]}),), user("p", "c"),
         "request r/s: device class none does not exist"),
        ((claim("c", {"name": "r", "later": {}}),), user("p", "c"),
         "resource claim default/c, request r: unknown request type"),
        ((claim("c", status=given("g", reserved=[f"q{n}" for n in range(256)])),), user("p", "c"),
         "resourceclaim in use"),
    ],
)  # fmt: skip
def test_a_pod_with_an_unusable_claim_is_rejected_on_all_nodes(
    objects: tuple[ResourceClaim, ...], pod: Pod, message: str
) -> None:
    devices = world(device_slice("a", gpu("g0")), *objects)

    assert choose(devices, pod) == message


def test_a_pod_waits_for_a_claim_from_a_template_unless_none_is_created() -> None:
    waiting = user("p", resourceClaims=[{"name": "t", "resourceClaimTemplateName": "t"}])

    assert choose(world(), waiting) == 'pod "default/p": ResourceClaim not created yet'
    assert choose(world(), user("p", made={"t": None})) == DeviceChoice()


def test_unserved_kinds_are_reported_until_they_are_served() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c"))

    devices.mark_kind_unserved("ResourceSlice")

    assert got(devices, "c") == (
        "the API server does not serve resource.k8s.io/v1 (ResourceSlice), which the pod's resource claims need"
    )
    assert devices.mark_kind_served("ResourceSlice") == {ClusterEvent.DEVICES_FREED}
    assert got(devices, "c") == ["r:g0"]


def test_a_failing_selector_rejects_the_node_with_its_error() -> None:
    devices = world(device_class("odd", f"{ATTRIBUTES}.gone"), device_slice("a", gpu("g0")))
    devices.put_claim(claim("c", asking("r", f"{ATTRIBUTES}.gone == 1")))
    devices.put_claim(claim("d", asking(of_class="odd")))

    assert (
        got(devices, "c")
        == "claim default/c: selector #0 on device gpu.example.com/a/g0: CEL runtime error: no such key: gone"
        + ADVICE
    )
    assert (
        got(devices, "d")
        == "class odd: selector #0 on device gpu.example.com/a/g0: CEL runtime error: no such key: gone"
        + ADVICE
    )


def test_the_allocation_contains_the_binding_conditions_of_its_devices() -> None:
    slow = gpu("g0", bindingConditions=["Attached"], bindingFailureConditions=["Failed"])
    devices = world(device_slice("a", slow), claim("c"))

    choice = choose(devices, user("p", "c"))

    assert isinstance(choice, DeviceChoice)
    ((_, allocation),) = choice.allocated
    (device,) = allocation.devices
    assert (device.binding_conditions, device.binding_failure_conditions) == (("Attached",), ("Failed",))
    assert choice.awaiting_binding == (ResourceClaimKey("default", "c"),)


def test_a_search_beyond_the_step_limit_fails() -> None:
    offered = [gpu(f"g{n:02}", attributes={"n": n}) for n in range(30)]
    constraint = {"constraints": [{"matchAttribute": f"{DRIVER}/none", "requests": ["last"]}]}
    requests = [asking(f"r{n}") for n in range(12)]
    devices = world(device_slice("a", *offered), claim("c", *requests, asking("last"), **constraint))

    assert got(devices, "c") == "the device search exceeded its limit of 10000 steps"


def test_the_options_of_claims_count_as_steps() -> None:
    """They are read for each node: 3 ms for five claims, also if the claims are then refused, and no more claims are read."""
    options = [{"name": f"s{n}", **ask(*["true"] * 32)} for n in range(8)]
    requests = [{"name": f"r{n}", "firstAvailable": options} for n in range(32)]
    names_of_claims = [f"c{n}" for n in range(40)]
    devices = world(device_slice("a", gpu("g")), *(claim(name, *requests) for name in names_of_claims))
    allowance = SearchAllowance()

    with devices.allocation_cache.limited(allowance):
        reason = got(devices, *names_of_claims)

    assert "request more than 128 devices" in reason
    assert 900 <= ATTEMPT_STEPS_MAX - allowance.steps_left < 2_000


def test_a_pod_may_have_very_many_claims_that_request_nothing() -> None:
    """The exception would drop what is kept of its policy's evaluations, with each attempt."""
    manifests = [{**claim_manifest(f"c{number}"), "spec": {}} for number in range(1_500)]
    devices = world(device_slice("a", gpu("g")), claim("used"), *map(decode_resource_claim, manifests))

    assert got(devices, *[f"c{number}" for number in range(1_500)], "used") == ["r:g"]


def test_claims_that_request_nothing_count_as_steps() -> None:
    constraints = [{"matchAttribute": f"{DRIVER}/same"}] * 32
    manifests = [
        {**claim_manifest(f"c{at}"), "spec": {"devices": {"constraints": constraints}}} for at in range(100)
    ]
    devices = world(device_slice("a", gpu("g")), *map(decode_resource_claim, manifests))
    allowance = SearchAllowance()

    with devices.allocation_cache.limited(allowance):
        chosen = got(devices, *[f"c{at}" for at in range(100)])

    assert chosen == []
    assert ATTEMPT_STEPS_MAX - allowance.steps_left >= 1_700


def test_a_negative_request_makes_no_room_on_a_shared_device() -> None:
    """The API server takes it. kube-scheduler refuses it since 1.37."""
    shared = gpu("g", allowMultipleAllocations=True, capacity={"memory": "8Gi"})
    consumed = given(
        "g", shareID="5b5bb0b3-3b3d-4f0a-8f0e-0c8f1c1c1c1c", consumedCapacity={"memory": "-80Gi"}
    )
    asked = {name: asking(capacity={"requests": {"memory": name}}) for name in ("-80Gi", "9Gi", "8Gi")}
    claims = [claim(f"c{at}", request) for at, request in enumerate(asked.values())]
    devices = world(device_slice("a", shared), claim("allocated", status=consumed), *claims)

    results = [got(devices, f"c{at}") for at in range(3)]

    assert results == ["cannot allocate all claims", "cannot allocate all claims", ["r:g"]]


@pytest.mark.parametrize("step", ["-100u", "0"])
def test_a_step_of_a_capacity_that_is_next_to_nothing_divides_by_nothing(step: str) -> None:
    """The API server takes a step of -0.0001, which it rounds to -1."""
    policy = {"default": "1", "validRange": {"min": "1", "step": step}}
    shared = gpu("g", allowMultipleAllocations=True, capacity={"n": {"value": "8", "requestPolicy": policy}})
    devices = world(device_slice("a", shared), claim("c", asking(capacity={"requests": {"n": "2"}})))

    assert got(devices, "c") == ["r:g"]


def test_the_text_of_a_large_spec_is_not_kept() -> None:
    """Caches keep it, and compare it for each node."""
    first, second, other = (
        claim(name, config=[{"opaque": {"driver": DRIVER, "parameters": {"text": text * 9_000}}}])
        for name, text in (("a", "x"), ("b", "x"), ("c", "y"))
    )

    assert first.spec_text == second.spec_text != other.spec_text
    assert len(first.spec_text) < 253


# ── reservations ───────────────────────────────────────────────────────────────────────────────────────────────────


def reserve(devices: DeviceCache, name: str, *claims: str) -> DeviceChoice:
    choice = choose(devices, user(name, *claims))
    assert isinstance(choice, DeviceChoice)
    devices.reserve(PodUid(name), choice, 1)
    return choice


def test_reserved_devices_are_taken_until_they_are_unreserved() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c"), claim("d"))

    choice = reserve(devices, "p", "c")
    meanwhile = got(devices, "d")
    freed = devices.unreserve(PodUid("p"), choice, 1)

    assert meanwhile == "cannot allocate all claims"
    assert freed == {ClusterEvent.DEVICES_FREED}
    assert got(devices, "d") == ["r:g0"]


def test_a_written_reservation_lasts_until_the_watch_shows_the_claim() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    choice = reserve(devices, "p", "c")

    devices.mark_written(PodUid("p"), choice, {ResourceClaimKey("default", "c"): 7}, 1)
    assert devices.unreserve(PodUid("p"), choice, 1) == frozenset()
    devices.put_claim(claim("c", version=5, finalizers=["f"]))
    assert got(devices, "d") == "cannot allocate all claims"
    devices.put_claim(claim("c", version=7, status=given("g0", reserved=["p"])))
    assert got(devices, "d") == "cannot allocate all claims"
    freed = devices.put_claim(claim("c", version=9))

    assert freed == {ClusterEvent.DEVICES_FREED, ClusterEvent.RESOURCE_CLAIM_UPDATE}
    assert got(devices, "d") == ["r:g0"]
    assert devices.check() == []


def test_pods_that_share_a_claim_share_its_reservation() -> None:
    devices = world(device_slice("a", gpu("g0")), device_slice("b", gpu("g0")), claim("c"))

    first = reserve(devices, "p", "c")
    second = reserve(devices, "q", "c")

    assert first.allocated == second.allocated
    assert got(devices, "c", at="b") == "resourceclaim not available on the node"
    assert devices.unreserve(PodUid("p"), first, 1) == frozenset()
    assert devices.unreserve(PodUid("q"), second, 1) == {ClusterEvent.DEVICES_FREED}
    assert got(devices, "c", at="b") == ["r:g0"]


def test_a_new_claim_with_the_same_name_has_no_reservation() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    reserve(devices, "p", "c")

    devices.put_claim(claim("c", uid="another", version=3))

    assert got(devices, "d") == ["r:g0"]
    assert devices.check() == []


def test_an_allocated_claim_is_reserved_for_the_pod_once() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c", status=given("g0", reserved=["q"])))

    assert choose(devices, user("p", "c")) == DeviceChoice(
        (), (devices.claims[ResourceClaimKey("default", "c")],)
    )
    assert choose(devices, user("q", "c")) == DeviceChoice()


def test_the_allocation_contains_the_configuration_of_claim_and_class() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "Sharing"}}}
    devices = world(
        device_class("gpu", config=[opaque]),
        device_slice("a", gpu("g0"), gpu("g1")),
        claim("c", asking("x"), asking("y"), config=[{"requests": ["y"], **opaque}, opaque]),
    )

    choice = choose(devices, user("p", "c"))

    assert isinstance(choice, DeviceChoice)
    ((_, allocation),) = choice.allocated
    assert [(config.source, config.requests) for config in allocation.configs] == [
        ("FromClass", ()),
        ("FromClaim", ("y",)),
        ("FromClaim", ()),
    ]


# ── what is kept ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_with_equal_specs_are_searched_once_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = world(
        *(device_slice(name, gpu("g0"), gpu("g1")) for name in "abc"), *(claim(f"c{n}") for n in range(4))
    )
    searched: list[NodeName] = []
    search = AllocationCache._begin_search

    def counting(self: AllocationCache, claims: Any, at: Any, overlay: Any, *more: Any) -> Any:
        searched.append(at.name)
        return search(self, claims, at, overlay, *more)

    monkeypatch.setattr(AllocationCache, "_begin_search", counting)
    for name in ("c0", "c1"):
        for at in "abc":
            got(devices, name, at=at)
    reserve(devices, "p", "c0")
    for at in "abc":
        got(devices, "c2", at=at)

    assert searched == ["a", "b", "c", "a"]


@pytest.mark.parametrize("field", ["nodeAllocatableResources", "nodeAllocatableResourceMappings"])
def test_a_device_that_stands_for_resources_of_its_node_is_not_allocated_and_the_reason_names_it(
    field: str,
) -> None:
    mapped = gpu("g0", **{field: {"cpu": {"allocationMultiplier": "2"}}})
    devices = world(device_slice("a", mapped), claim("c"))

    assert got(devices, "c") == (
        "device gpu.example.com/a/g0 has nodeAllocatableResources, which is not supported"
    )


@pytest.mark.parametrize("where", ["device", "slice"])
def test_a_pool_with_a_slice_that_is_not_supported_is_incomplete(where: str) -> None:
    grouped = gpu("g1", consumesCounters=[{"counterSet": "s", "counters": {}, "compatibilityGroups": ["x"]}])
    second = (
        device_slice("a", grouped, name="second", slices=2)
        if where == "device"
        else device_slice("a", gpu("g1"), name="second", slices=2, skipNodeOperations=["Prepare"])
    )
    devices = world(device_slice("a", gpu("g0"), name="first", slices=2), second, claim("c"))

    assert got(devices, "c") == "cannot allocate all claims"


def test_a_request_with_derived_attributes_is_refused_by_name() -> None:
    asked = asking("r", derivedAttributes=[{"name": "numa", "expression": "1"}])
    devices = world(device_slice("a", gpu("g0")), claim("c", asked))

    assert got(devices, "c") == (
        "claim default/c, request r: cannot handle request with derived attributes, the feature is disabled"
    )


# ── taint rules ──────────────────────────────────────────────────────────────────────────────────────────────────────


def taint_rule(name: str, selector: dict[str, str] | None, effect: str = "NoSchedule") -> DeviceTaintRule:
    spec: dict[str, Any] = {"taint": {"key": "broken", "effect": effect}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return decode_device_taint_rule({"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize(
    ("selector", "given"),
    [
        ({}, None),
        ({"driver": DRIVER}, None),
        ({"driver": DRIVER, "pool": "a", "device": "g0"}, ["r:g1"]),
        ({"pool": "b"}, ["r:g0"]),
        ({"driver": "other.example.com"}, ["r:g0"]),
        (None, ["r:g0"]),
    ],
    ids=["any device", "the driver", "one device", "another pool", "another driver", "no selector"],
)
def test_a_taint_rule_taints_the_devices_that_it_selects(
    selector: dict[str, str] | None, given: list[str] | None
) -> None:
    devices = world(device_slice("a", gpu("g0"), gpu("g1")), claim("c"))

    events = devices.put_taint_rule(taint_rule("r", selector))

    assert got(devices, "c") == (given or "cannot allocate all claims")
    assert events == ({ClusterEvent.RESOURCE_SLICE_UPDATE} if given != ["r:g0"] else frozenset())


def test_devices_lose_the_taints_of_a_rule_that_is_deleted_and_slices_get_those_of_earlier_rules() -> None:
    devices = world(claim("c"))
    devices.put_taint_rule(taint_rule("r", {"driver": DRIVER}))
    devices.put_slice(device_slice("a", gpu("g0")))
    assert got(devices, "c") == "cannot allocate all claims"

    devices.put_taint_rule(taint_rule("r", {"driver": DRIVER}, effect="None"))
    assert got(devices, "c") == ["r:g0"]

    devices.put_taint_rule(taint_rule("r", {"driver": DRIVER}))
    assert devices.drop_taint_rule("r") == {ClusterEvent.RESOURCE_SLICE_UPDATE}
    assert got(devices, "c") == ["r:g0"]
    assert devices.drop_taint_rule("r") == frozenset()


def test_an_api_server_without_taint_rules_keeps_no_pod_waiting() -> None:
    devices = world(device_slice("a", gpu("g0")), claim("c"))

    devices.mark_kind_unserved("DeviceTaintRule")

    assert got(devices, "c") == ["r:g0"]


def test_a_claim_of_another_namespace_is_not_made_for_the_pod_that_it_names() -> None:
    """Whoever knows the UID of a pod could otherwise keep it pending, by a claim that a finalizer keeps from being deleted."""
    forged = claim("forged", namespace="other", owner="uid-p", extended=True)
    devices = world(forged)
    own = user("p")
    assert not AvailableDevices(devices).has_extended_claim(own)

    devices.put_claim(claim("made", owner="uid-p", extended=True))
    assert AvailableDevices(devices).has_extended_claim(own)
