"""How many devices of a class a node can use, for scores: those that several nodes can use are counted once for all nodes."""

from typing import Any

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_counts import DeviceCounts
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.selector_results import SelectorResults
from policysched.kube.decode.devices import decode_allocation
from policysched.model.devices import PoolId, ResourceSlice
from tests.builders import node
from tests.devices import DRIVER, asking, claim, device_class, device_slice, given, gpu

SLICES, DEVICES, NODES = 8, 16, 20
ODD = f"device.attributes['{DRIVER}'].number % 2 == 1"


def test_devices_of_a_changed_slice_are_counted_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 seconds in one piece for 8,192 devices and 1,000 nodes, after each allocation of one."""

    def all_nodes(number: int, version: int) -> ResourceSlice:
        gpus = [gpu(f"g{number}-{at}") for at in range(DEVICES)]
        return device_slice(None, *gpus, name=f"s{number}", pool="p", allNodes=True, version=version)

    cache, of_class, visits = DeviceCache(), device_class("gpu", "true"), list[str]()
    cache.put_class(of_class)
    for number in range(SLICES):
        cache.put_slice(all_nodes(number, 1))
    matches = SelectorResults.matches

    def counting(self: SelectorResults, expression: str, resource_slice: ResourceSlice, index: int) -> bool:
        visits.append(resource_slice.name)
        return matches(self, expression, resource_slice, index)

    monkeypatch.setattr(SelectorResults, "matches", counting)
    visits_of_changes = []
    for change in ("start", "allocation", "slice"):
        if change == "allocation":
            cache.put_claim(claim("x", asking(), status=given("g0-1", node=None, pool="p")))
        elif change == "slice":
            cache.put_slice(all_nodes(3, 2))
        visits.clear()
        for number in range(NODES):
            counts = AvailableDevices(cache).device_counts(of_class, node(f"n{number}"))
            assert counts == (SLICES * DEVICES, 0 if change == "start" else 1)
        visits_of_changes.append(len(visits))

    assert visits_of_changes == [SLICES * DEVICES, 0, DEVICES]


# ── agreement with a count of all devices ────────────────────────────────────────────────────────────────────────────

WHERE = ["n0", "n1", "all", "zone", "each"]
CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(0, 2),
            st.sampled_from(WHERE),
            st.sampled_from("pq"),
            st.integers(0, 3),
        ),
        st.tuples(st.just("drop"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["allocate", "overlay"]), st.integers(0, 4), st.sampled_from("pq")),
        st.tuples(st.just("class"), st.sampled_from(["true", ODD])),
    ),
    max_size=12,
)


def a_slice(number: int, version: int, where: str, pool: str, count: int) -> ResourceSlice:
    """Every third device has no number, so that the selector of odd ones fails."""
    spec: dict[str, Any] = {"allNodes": True} if where == "all" else {}
    if where == "zone":
        terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        spec = {"nodeSelector": {"nodeSelectorTerms": terms}}
    gpus = []
    for at in range(count):
        more: dict[str, Any] = {"attributes": {"number": at}} if at < 2 else {}
        if where == "each":
            more |= {"nodeName": "n1"} if at else {"allNodes": True}
        gpus.append(gpu(f"g{at + number}", **more))
    if where == "each":
        spec = {"perDeviceNodeSelection": True}
    of_node = where if where in ("n0", "n1") else None
    return device_slice(of_node, *gpus, name=f"s{number}", pool=pool, version=version, **spec)


def counts_agree(changes: list[Any]) -> None:
    cache, overlaid, of_class = DeviceCache(), list[tuple[str, str]](), device_class("gpu", "true")
    cache.put_class(of_class)
    nodes = [node("n0"), node("n1", labels={"zone": "a"}), node("n2")]
    for version, change in enumerate(changes, 2):
        match change:
            case "put", number, where, pool, count:
                cache.put_slice(a_slice(number, version, where, pool, count))
            case "drop", number:
                cache.drop_slice(f"s{number}")
            case "allocate", device, pool:
                status = given(f"g{device}", node=None, pool=pool)
                cache.put_claim(claim("x", asking(), version=version, status=status))
            case "overlay", device, pool:
                overlaid.append((f"g{device}", pool))
            case "class", selector:
                of_class = device_class("gpu", selector)
                cache.put_class(of_class)
        overlay = DeviceOverlay()
        for device, pool in overlaid:
            allocation = decode_allocation(given(device, node=None, pool=pool)["allocation"])
            assert allocation is not None
            overlay.usage.add(allocation)
            overlay.note_change(cache.exclusive_node_of(PoolId(DRIVER, pool)), allocation)
        for each in nodes:
            for on in (None, overlay):
                kept = cache.allocation_cache.counts.of_node(of_class, each, on)
                assert kept == cache.allocation_cache.counts.count_uncached(of_class, each, on)


@given_by(CHANGES)
def test_the_counts_agree_with_a_count_of_all_devices(changes: list[Any]) -> None:
    counts_agree(changes)


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that changed keep their counts."""
    part = DeviceCounts._part
    kept: dict[str, Any] = {}
    monkeypatch.setattr(
        DeviceCounts,
        "_part",
        lambda self, of_class, each: kept.setdefault(each.name, part(self, of_class, each)),
    )

    with pytest.raises(AssertionError):
        counts_agree([("put", 0, "all", "p", 1), ("put", 0, "all", "p", 2)])
