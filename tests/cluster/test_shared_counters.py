"""Counters that devices of a pool share: a pool of the whole cluster is visited once for all nodes, not once for each."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.device_usage import AllocatedDevices, DeviceUsage
from policysched.cluster.devices.pod_claims import PodResourceClaims, choose_devices, pod_resource_claims
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.devices.search_limits import ATTEMPT_STEPS_MAX, SearchAllowance
from policysched.cluster.devices.shared_counters import CountersLeft, Left
from policysched.model.devices import Device, DeviceId
from tests.builders import node
from tests.devices import asking, claim, device_class, device_slice, given, gpu, user

DEVICES, NODES = 32, 20
POOL: dict[str, Any] = {"pool": "shared", "slices": 2, "allNodes": True}


def partition(name: str, number: int = 0, memory: int = 1) -> dict[str, Any]:
    use = {"counterSet": f"card-{number}", "counters": {"memory": {"value": str(memory)}}}
    return gpu(name, consumesCounters=[use])


def cards(count: int, memory: int) -> Any:
    sets = [{"name": f"card-{at}", "counters": {"memory": {"value": str(memory)}}} for at in range(count)]
    return device_slice(None, name="counters", sharedCounters=sets, **POOL)


def cache_with(*slices: Any) -> DeviceCache:
    cache = DeviceCache()
    cache.put_class(device_class())
    for each in slices:
        cache.put_slice(each)
    return cache


@pytest.mark.parametrize("where", ["all nodes", "each device its node"])
def test_the_devices_of_a_pool_are_visited_once_for_all_nodes(where: str) -> None:
    """1.2 seconds in one piece for 8,192 devices on 1,000 nodes."""
    visits: list[None] = []

    class Devices(tuple[Device, ...]):
        def __iter__(self) -> Iterator[Device]:
            visits.append(None)
            return super().__iter__()

    of_one = {} if where == "all nodes" else {"nodeName": "n0"}
    of_slice = {} if where == "all nodes" else {"perDeviceNodeSelection": True, "allNodes": None}
    gpus = [{**partition(f"g{at}"), **of_one} for at in range(DEVICES)]
    devices = device_slice(None, *gpus, name="devices", **{**POOL, **of_slice})
    object.__setattr__(devices, "devices", Devices(devices.devices))
    cache = cache_with(devices, cards(1, memory=DEVICES))
    nodes = [node(f"n{number}") for number in range(NODES)]
    for version in range(1, 4):
        wanted = claim(f"c{version}", asking("r"))
        found = [AvailableDevices(cache).find([wanted], each, (wanted.spec_text,)) for each in nodes]
        assert len(list(filter(None, found))) == (NODES if where == "all nodes" else 1)
        cache.put_claim(claim("x", asking(), version=version, status=given(f"g{version}", node=None)))

    assert len(visits) <= 4, "by the generation, its counters, the nodes of its devices, and the index"


def test_a_device_costs_the_same_beside_counters_that_it_does_not_consume() -> None:
    """With 16,384 of them no device was found within the limit of a search."""

    def steps(sets: int) -> int:
        gpus = [partition(f"g{at}", memory=2 if at < DEVICES - 1 else 1) for at in range(DEVICES)]
        cache = cache_with(device_slice(None, *gpus, name="devices", **POOL), cards(sets, memory=1))
        allowance = SearchAllowance()
        with cache.allocation_cache.limited(allowance):
            assert AvailableDevices(cache).find([claim()], node("n0"), (claim().spec_text,)) is not None
        return ATTEMPT_STEPS_MAX - allowance.steps_left

    assert steps(500) == steps(1)


def test_what_an_overlay_leaves_of_counters_is_computed_once_for_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[None] = []
    after = Left.after

    def counting(*arguments: Any, **more: Any) -> Left:
        computed.append(None)
        return after(*arguments, **more)

    gpus = [partition(f"g{at}") for at in range(DEVICES)]
    cache = cache_with(device_slice(None, *gpus, name="devices", **POOL), cards(1, memory=DEVICES))
    available, overlay, wanted = AvailableDevices(cache), DeviceOverlay(), claim("c0", asking("r"))
    found = pod_resource_claims(user("p", "c0"), available) if cache.put_claim(wanted) else ""
    assert isinstance(found, PodResourceClaims)
    choice = choose_devices(user("p", "c0"), found, node("n0"), available)
    assert isinstance(choice, DeviceChoice)
    available.add_to_overlay(overlay, choice)
    monkeypatch.setattr(Left, "after", counting)

    for number in range(NODES):
        wanted = claim("c1", asking("s"))
        assert available.with_overlay(overlay).find([wanted], node(f"n{number}"), (wanted.spec_text,))

    assert len(computed) == 1


# ── what is left of the counters ──────────────────────────────────────────────────────────────────────────────


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.booleans()), max_size=12)
"""For a claim: which devices it has now, whole or a share, and those of the next name."""


def left_agrees(changes: list[tuple[int, int, bool]]) -> None:
    """What is kept for all nodes agrees with a count of all devices, also where an overlay allocates more."""
    partitions = [partition(f"g{at}", at % 2, at + 1) for at in range(8)]
    cache = cache_with(device_slice(None, *partitions, name="devices", **POOL), cards(2, memory=8))
    kept, overlay = CountersLeft(), DeviceUsage()
    (pool,) = cache.allocation_cache._pools_of(node("n0"))
    for version, (number, device, is_share) in enumerate(changes, 2):
        more: dict[str, Any] = {"shareID": "s"} if is_share else {}
        status = given(f"g{device}", f"g{(device + 1) % 8}", node=None, **more) if number < 4 else None
        changed = claim(f"c{number % 4}", asking(), version=version, status=status)
        if number == 3 and changed.allocation is not None:
            overlay.add(changed.allocation)
        else:
            cache.put_claim(changed)
        for uses in ([cache.usage], [cache.usage, overlay]):
            allocated, left = AllocatedDevices(*uses), Counter[tuple[str, str]]()
            for each in (each for resource_slice in pool.slices for each in resource_slice.devices):
                device_id = DeviceId(*pool.id, each.name)
                if allocated.is_wholly_allocated(device_id) or allocated.is_shared(device_id):
                    for use in each.consumes_counters:
                        left[use.counter_set, "memory"] += int(use.counters["memory"])
            expected = {(f"card-{at}", "memory"): Fraction(8 - left[f"card-{at}", "memory"]) for at in (0, 1)}
            actual = kept.of_pool(pool, allocated)
            assert actual.counters == expected
            assert actual.exceeded == {key for key, amount in expected.items() if amount < 0}


@given_by(CHANGES)
def test_what_is_left_of_counters_agrees_with_a_count_of_all_devices(
    changes: list[tuple[int, int, bool]],
) -> None:
    left_agrees(changes)


def _ignoring_shares(self: DeviceUsage, device: DeviceId) -> None:
    if device in self.whole:
        _NOTE(self, device)


_NOTE = DeviceUsage._note


@pytest.mark.parametrize(
    ("where", "part", "planted"),
    [
        (DeviceUsage, "_note", lambda *_: None),
        (DeviceUsage, "_note", _ignoring_shares),
        (Left, "after", lambda left, *_, **__: left),
    ],
    ids=["allocations are not noted", "shares are not noted", "counters are kept as they are"],
)
def test_a_planted_bug_is_caught(
    where: Any, part: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, part, planted)

    with pytest.raises(AssertionError):
        left_agrees([(0, 1, False), (3, 4, False)])
        left_agrees([(0, 1, True)])
