"""Gangs whose members take devices that several nodes share: an outcome of a search serves all nodes that can use the same ones."""

from itertools import combinations
from typing import Any

import pytest

from policysched.cluster.devices import search_outcomes
from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.node_groups import NodeGroup, NodeGroups
from policysched.cluster.devices.pod_claims import (
    ClaimsByNode,
    PodResourceClaims,
    choose_devices,
    pod_resource_claims,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.scheduler import attempt_runner
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import node
from tests.devices import asking, claim, device_class, device_slice, gpu
from tests.scheduler.test_device_selectors import GANG, NODES, decide, member, rig_with, searches, user

assert searches  # a fixture
MEMBERS = 10
OF_KIND = 'device.attributes["gpu.example.com"].kind == "{}"'


def shared(count: int, kind: str = "shared", **more: Any) -> Any:
    gpus = [gpu(f"s{at:02}", attributes={"kind": kind}) for at in range(count)]
    return device_slice(None, *gpus, **{"name": "shared", "allNodes": True, **more})


@pytest.mark.parametrize("own", [0, 2])
def test_a_gang_that_takes_devices_of_several_nodes_starts(
    own: int, monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    """Each slice read the outcomes of all members on all nodes from the start, of which the first ones were dropped already.
    The nodes have none or other devices of their own."""
    monkeypatch.setattr(search_outcomes, "_OUTCOMES_CACHED_MAX", 3 * NODES)
    monkeypatch.setattr(attempt_runner, "GANG_SLICE_STEPS_MAX", 4 * NODES)
    monkeypatch.setattr(attempt_runner, "MEMBER_STEPS_MAX", 4)
    rig = rig_with(*[claim(f"c{number}", asking("r", OF_KIND.format("shared"))) for number in range(MEMBERS)])
    rig.apply_policies(GANG % MEMBERS)
    gpus = [gpu(f"g{at}", attributes={"kind": "own"}) for at in range(own)]
    slices = [device_slice(f"n{number}", *gpus, version=3, generation=3) for number in range(NODES)]
    rig.handle(*[e.DeviceObjectUpdated(each) for each in (*slices, shared(MEMBERS))])
    rig.observe(*[member(number, f"c{number}") for number in range(MEMBERS)])

    for _ in range(400):
        if rig.of(c.Prebind):
            break
        decide(rig, elapsed_ms=1) if rig.scheduler.ready(rig.now_ns) else rig.pass_time(1)

    assert len(rig.of(c.Prebind)) == MEMBERS
    assert len([made for made in searches if made[2]]) == MEMBERS - 1


def test_an_evaluation_reads_one_outcome_of_nodes_with_the_same_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_with(*[claim(f"c{number}") for number in range(MEMBERS)])
    rig.apply_policies(GANG % MEMBERS)
    slices = [device_slice(f"n{number}", version=3, generation=3) for number in range(NODES)]
    rig.handle(*[e.DeviceObjectUpdated(each) for each in (*slices, shared(MEMBERS))])
    read, find = list[None](), AllocationCache.find

    def counting(self: AllocationCache, claims: Any, on: Any, overlay: Any, specs: Any) -> Any:
        read.extend([None] * (overlay is not None and overlay.shared_changes != 0))
        return find(self, claims, on, overlay, specs)

    monkeypatch.setattr(AllocationCache, "find", counting)
    rig.observe(*[member(number, f"c{number}") for number in range(MEMBERS)])
    while not rig.of(c.Prebind):
        decide(rig, elapsed_ms=1) if rig.scheduler.ready(rig.now_ns) else rig.pass_time(1)

    assert len(read) < 5 * MEMBERS


# ── groups of nodes ────────────────────────────────────────────────────────────────────────────────────────────────

SLICES = (
    shared(2, name="everywhere", pool="everywhere"),
    shared(
        1,
        name="east",
        pool="east",
        allNodes=False,
        nodeSelector={
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}
            ]
        },
    ),
    device_slice(
        None,
        *[gpu(f"d{at}", attributes={"kind": "shared"}, nodeName=f"n{at}") for at in range(2)],
        name="by-device",
        pool="by-device",
        perDeviceNodeSelection=True,
    ),
    device_slice("n0", gpu("own", attributes={"kind": "shared"})),
    device_slice("n1", gpu("other", attributes={"kind": "other"})),
    device_slice("n2", gpu("without")),
    shared(1, name="part", pool="part", slices=2),
)
CASES = [chosen for count in (2, 3) for chosen in combinations(SLICES, count)]


def groups_agree() -> None:
    """With a search on each node, where members take all that the nodes share, one after the other."""
    nodes = [node(f"n{at}", labels={"zone": "east"} if at % 2 else {}) for at in range(5)]
    for slices in CASES:
        cache, overlay = DeviceCache(), DeviceOverlay()
        for each in (device_class(), *slices):
            put = cache.put_slice if each in slices else cache.put_class
            put(each)  # type: ignore[arg-type]
        for number in range(4):
            cache.put_claim(claim(f"c{number}", asking("r", OF_KIND.format("shared"))))
            pod = user(f"p{number}", f"c{number}")
            fast, slow = AvailableDevices(cache, overlay), AvailableDevices(cache, overlay, uncached=True)
            claims = pod_resource_claims(pod, slow)
            assert isinstance(claims, PodResourceClaims)
            outcomes = [str(ClaimsByNode(claims, fast).rejection(each)) for each in nodes]
            expected = [str(ClaimsByNode(claims, slow).rejection(each)) for each in nodes]
            assert outcomes == expected, [each.name for each in slices]
            choices = [choose_devices(pod, claims, each, slow) for each in nodes]
            for at, each in enumerate(nodes):
                assert choose_devices(pod, claims, each, fast) == choices[at], each
            found = [choice for choice in choices if isinstance(choice, DeviceChoice)]
            if found:
                slow.add_to_overlay(overlay, found[-1])


def test_the_outcome_of_a_group_is_that_of_each_of_its_nodes() -> None:
    groups_agree()


def test_one_group_of_nodes_with_different_devices_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug."""

    def one_group(self: NodeGroups, pools: Any, may_select: Any) -> NodeGroup:
        return self._by_pools.setdefault(None, NodeGroup(tuple(pools)))

    monkeypatch.setattr(NodeGroups, "_find", one_group)

    with pytest.raises(AssertionError):
        groups_agree()
