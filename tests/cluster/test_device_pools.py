"""What the slices of a pool have together is kept slice by slice: a driver that changes one all the time has its devices alone
visited, not those of its pool."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool, PoolGeneration
from policysched.cluster.devices.shared_counters import CountersLeft, Left
from policysched.model.devices import Device, PoolId, ResourceSlice
from tests.builders import node
from tests.devices import DRIVER, asking, claim, device_class, device_slice, given, gpu

SLICES, DEVICES = 16, 8
POOL = PoolId(DRIVER, "p")


def devices_with(number: int, *, per_device: bool) -> ResourceSlice:
    use = {"counterSet": "card", "counters": {"memory": {"value": "1"}}}
    where = {"allNodes": True} if per_device else {}
    gpus = [gpu(f"g{number}-{at}", consumesCounters=[use], **where) for at in range(DEVICES)]
    more: dict[str, Any] = {"perDeviceNodeSelection": True} if per_device else {"allNodes": True}
    return device_slice(None, *gpus, name=f"s{number}", pool="p", slices=SLICES + 1, **more)


def card(memory: int = 1_000, version: int = 1) -> ResourceSlice:
    sets = [{"name": "card", "counters": {"memory": {"value": str(memory)}}}]
    return device_slice(
        None, name="c", sharedCounters=sets, pool="p", slices=SLICES + 1, allNodes=True, version=version
    )


def cache_with(*slices: ResourceSlice) -> DeviceCache:
    cache = DeviceCache()
    cache.put_class(device_class())
    for each in slices:
        cache.put_slice(each)
    return cache


@pytest.mark.parametrize("changed", ["devices", "counters"])
@pytest.mark.parametrize("per_device", [False, True], ids=["all nodes", "each device its nodes"])
def test_a_slice_that_changes_has_its_own_devices_visited_and_not_those_of_its_pool(
    changed: str, per_device: bool
) -> None:
    """17 ms in one piece for a pool of 8,192 devices, at each change."""
    visits: list[str] = []

    class Devices(tuple[Device, ...]):
        def __iter__(self) -> Iterator[Device]:
            visits.append(self[0].name)
            return super().__iter__()

    slices = [devices_with(number, per_device=per_device) for number in range(SLICES)]
    for each in slices:
        object.__setattr__(each, "devices", Devices(each.devices))
    cache, wanted = cache_with(*slices, card()), claim("c", asking("r"))
    cache.put_claim(claim("x", asking(), status=given("g5-0", node=None)))
    assert AvailableDevices(cache).find([wanted], node("n0"), (wanted.spec_text,))
    visits.clear()

    cache.put_slice(card(memory=999, version=2) if changed == "counters" else replace(slices[3], version=2))
    for number in range(3):
        assert AvailableDevices(cache).find([wanted], node(f"n{number}"), (wanted.spec_text,))

    assert set(visits) == (set() if changed == "counters" else {"g3-0"})
    assert len(visits) <= 6, "when it goes, when it comes, for its nodes and for what is left of the counters"


# ── agreement with a count of all slices ─────────────────────────────────────────────────────────────────────────────

NAMES = st.lists(st.sampled_from("abcd"), max_size=3)
SLICE = st.tuples(
    st.integers(0, 3),
    st.sampled_from([1, 1, 1, 2]),
    NAMES,
    st.lists(st.integers(0, 2), max_size=2),
    st.booleans(),
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SLICE),
        st.tuples(st.just("drop"), st.integers(0, 3)),
        st.tuples(st.just("allocate"), NAMES),
    ),
    max_size=12,
)
"""A slice has a name, a generation, devices, the sets of counters that it defines, and is supported or not. The devices of a claim."""


def a_slice(version: int, of: Any) -> ResourceSlice:
    number, generation, names, sets, is_supported = of
    gpus = []
    for name in names:
        counters = {"memory": {"value": str(1 + "abcd".index(name))}}
        use = {"counterSet": f"set-{'abcd'.index(name) % 2}", "counters": counters}
        conditions = (
            {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]} if name == "d" else {}
        )
        gpus.append(gpu(name, consumesCounters=[use], **conditions))
    defined = [
        {
            "name": f"set-{at}",
            "counters": {"memory": {"value": str(version + at)}, f"other-{version}": {"value": "1"}},
        }
        for at in dict.fromkeys(sets)
    ]
    more = {"sharedCounters": defined} if defined else {}
    made = device_slice(
        None,
        *gpus,
        name=f"s{number}",
        version=version,
        generation=generation,
        pool="p",
        allNodes=True,
        **more,
    )
    return replace(made, is_supported=is_supported)


def pool_agrees(changes: list[Any]) -> None:
    """What is kept of each generation, and what is left of its counters, agrees with a count of all slices and devices."""
    cache, kept = cache_with(), CountersLeft()
    published: dict[str, ResourceSlice] = {}
    allocated: set[str] = set()
    for version, (what, of) in enumerate(changes, 2):
        if what == "put":
            changed = a_slice(version, of)
            published[changed.name] = changed
            cache.put_slice(changed)
        elif what == "drop":
            published.pop(f"s{of}", None)
            cache.drop_slice(f"s{of}")
        else:
            allocated = set(of)
            cache.put_claim(
                claim("x", asking(), version=version, status=given(*allocated, node=None, pool="p"))
            )
        if not published:
            continue
        pool = cache._slices.of_pool(POOL)
        assert pool.by_name == published
        assert pool.newest == max(each.generation for each in published.values())
        for number in (1, 2):
            generation = pool.of_generation(number)
            slices = [each for each in published.values() if each.generation == number and each.is_supported]
            assert {each.name: each for each in generation.slices} == {each.name: each for each in slices}
            expected = counted(slices)
            defined, uses = expected["defined"], expected["uses"]
            assert generation.repeats_names == (max(expected["names"].values(), default=0) > 1)
            assert generation.with_binding_conditions == expected["conditions"]
            wrong = max(Counter(name for name, _ in defined).values(), default=0) > 1
            assert generation.is_invalid == (
                wrong or not {key[0] for key, *_ in uses} <= {name for name, _ in defined}
            )
            amounts = Counter[tuple[str, str]]()
            for name, counters in defined:
                amounts.update({(name, key): int(amount) for key, amount in counters.items()})
            for key, device, amount in uses:
                amounts[key] -= amount if device in allocated else 0
            is_defined = {(name, key) for name, counters in defined for key in counters}
            left = kept.of_pool(DevicePool(POOL, generation=generation), AllocatedDevices(cache.usage))
            assert left.counters == {
                key: Fraction(amount) for key, amount in amounts.items() if amount or key in is_defined
            }
            assert left.exceeded == {key for key, amount in amounts.items() if amount < 0}


def counted(slices: list[ResourceSlice]) -> dict[str, Any]:
    """The sets and counters that each of these defines, and the devices that consume some."""
    return {
        "names": Counter(device.name for each in slices for device in each.devices),
        "conditions": {each.name for each in slices for device in each.devices if device.binding_conditions},
        "defined": [item for each in slices for item in each.counters.items()],
        "uses": [
            ((use.counter_set, name), device.name, int(amount))
            for each in slices
            for device in each.devices
            for use in device.consumes_counters
            for name, amount in use.counters.items()
        ],
    }


@given_by(CHANGES)
def test_what_is_kept_of_a_pool_agrees_with_a_count_of_all_its_slices(changes: list[Any]) -> None:
    pool_agrees(changes)


BUGS: list[tuple[str, type, str, Any]] = [
    ("devices that go stay", PoolGeneration, "remove", lambda self, each: self._slices.pop(each.name)),
    ("counters are not counted", PoolGeneration, "_count_counters", lambda *_: None),
    ("what is left stays", Left, "beside", lambda left, pool: Left(pool.slices, left.version, left.devices)),
]


@pytest.mark.parametrize(
    ("where", "part", "planted"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS]
)
def test_a_planted_bug_is_caught(
    where: Any, part: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters, devices = (0, 1, [], [0, 1], True), (1, 1, ["a", "b"], [], True)
    monkeypatch.setattr(where, part, planted)

    with pytest.raises((AssertionError, KeyError)):
        pool_agrees(
            [
                ("put", counters),
                ("put", devices),
                ("allocate", ["a"]),
                ("drop", 1),
                ("drop", 0),
                ("put", devices),
            ]
        )
