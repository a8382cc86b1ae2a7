"""The device pools that a node can use, built from the slices of the latest generation.

A driver replaces a pool by publishing slices of a higher generation. Until all of them are
published the pool is incomplete and nothing is allocated from it. Source: `pools_incubating.go` in
k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_

from policysched.model.devices import Amounts, Device, PoolId, ResourceSlice
from policysched.model.nodes import Node

CounterKey = tuple[str, str | None]
"""A counter set and a counter in it."""


class PoolGeneration:
    """What all slices of a generation have together. A slice that is added or removed has its own devices visited, once for all
    nodes; for one node, if the generation `is_part` of what is published. `with_binding_conditions`: the slices that have such
    devices."""

    def __init__(self, slices: Iterable[ResourceSlice] = (), *, is_part: bool = False) -> None:
        self.is_part = is_part
        self.with_binding_conditions: set[str] = set()
        self._slices: dict[str, ResourceSlice] = {}
        self._in_order: tuple[ResourceSlice, ...] | None = None
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._repeated_names: set[str] = set()
        # How often each counter, and each set with no name of a counter, is defined and consumed.
        self._defined: Counter[CounterKey] = Counter()
        self._consumed: Counter[CounterKey] = Counter()
        self._wrong: set[CounterKey] = set()  # defined more than once, or consumed and not defined
        for each in slices:
            self.add(each)

    @property
    def slices(self) -> tuple[ResourceSlice, ...]:
        """The same tuple until one is added or removed."""
        if self._in_order is None:
            self._in_order = tuple(self._slices.values())
        return self._in_order

    @property
    def repeats_names(self) -> bool:
        return bool(self._repeated_names)

    @property
    def is_invalid(self) -> bool:
        return bool(self._wrong)

    def defines(self, counter: CounterKey) -> bool:
        return counter in self._defined

    def devices(self, name: str) -> tuple[Device, ...]:
        """Those with this name: more than one in a pool that is invalid."""
        return self._devices.get(name, ())

    def add(self, resource_slice: ResourceSlice) -> None:
        self._slices[resource_slice.name], self._in_order = resource_slice, None
        for device in resource_slice.devices:
            known = self._devices.get(device.name, ())
            self._devices[device.name] = (*known, device)
            if known:
                self._repeated_names.add(device.name)
            if device.binding_conditions:
                self.with_binding_conditions.add(resource_slice.name)
        self._count_counters(resource_slice, 1)

    def remove(self, resource_slice: ResourceSlice) -> None:
        del self._slices[resource_slice.name]
        self._in_order = None
        for device in resource_slice.devices:
            left = tuple(each for each in self._devices[device.name] if each is not device)
            if left:
                self._devices[device.name] = left
            else:
                del self._devices[device.name]
            if len(left) < 2:
                self._repeated_names.discard(device.name)
        self.with_binding_conditions.discard(resource_slice.name)
        self._count_counters(resource_slice, -1)

    def _count_counters(self, resource_slice: ResourceSlice, times: int) -> None:
        uses = (each for device in resource_slice.devices for each in device.consumes_counters)
        for counted, keys in (
            (self._defined, _keys_of(resource_slice.counters.items())),
            (self._consumed, _keys_of((use.counter_set, use.counters) for use in uses)),
        ):
            for key, number in Counter(keys).items():
                counted[key] += times * number
                if not counted[key]:
                    del counted[key]
                if self._defined[key] > 1 or (key in self._consumed and key not in self._defined):
                    self._wrong.add(key)
                else:
                    self._wrong.discard(key)

    def consists_of(self, slices: Sequence[ResourceSlice]) -> bool:
        return len(slices) == len(self.slices) and all(map(is_, slices, self.slices))


def _keys_of(counters: Iterable[tuple[str, Amounts]]) -> Iterator[CounterKey]:
    """A set counts also without a counter."""
    for counter_set, amounts in counters:
        yield counter_set, None
        for name in amounts:
            yield counter_set, name


_NO_SLICES = PoolGeneration()


class PoolSlices:
    """All slices of a pool. `newest`: the generation."""

    def __init__(self, slices: Iterable[ResourceSlice] = ()) -> None:
        self.by_name: dict[str, ResourceSlice] = {}
        self.newest = 0
        self._numbers: Counter[int] = Counter()
        self._generations: dict[int, PoolGeneration] = {}
        self._part: PoolGeneration | None = None
        self._nodes: dict[str, _NodesOfDevices] = {}
        for each in slices:
            self.add(each)

    def add(self, resource_slice: ResourceSlice) -> None:
        number = resource_slice.generation
        self.by_name[resource_slice.name] = resource_slice
        self._numbers[number] += 1
        self.newest = max(self.newest, number)
        if resource_slice.is_supported:
            self._generations.setdefault(number, PoolGeneration()).add(resource_slice)

    def remove(self, resource_slice: ResourceSlice) -> None:
        number = resource_slice.generation
        del self.by_name[resource_slice.name]
        self._nodes.pop(resource_slice.name, None)
        self._part = None
        if resource_slice.is_supported:
            self._generations[number].remove(resource_slice)
        self._numbers[number] -= 1
        if not self._numbers[number]:
            del self._numbers[number]
            self._generations.pop(number, None)
            self.newest = max(self._numbers, default=0)

    def of_generation(self, number: int) -> PoolGeneration:
        return self._generations.get(number, _NO_SLICES)

    def part(self, slices: Sequence[ResourceSlice]) -> PoolGeneration:
        """Those that count as the whole pool, where there are more than the pool is said to have."""
        if self._part is None or not self._part.consists_of(slices):
            self._part = PoolGeneration(slices, is_part=True)
        return self._part

    def is_relevant(self, resource_slice: ResourceSlice, node: Node) -> bool:
        """Whether the node can use one of its devices."""
        if not resource_slice.per_device_node_selection:
            return resource_slice.accessible_nodes.includes(node)
        nodes = self._nodes.get(resource_slice.name)
        if nodes is None:
            nodes = self._nodes[resource_slice.name] = _NodesOfDevices(resource_slice)
        return node.name in nodes.names or any(each.includes(node) for each in nodes.others)


class _NodesOfDevices:
    def __init__(self, resource_slice: ResourceSlice) -> None:
        nodes = [device.accessible_nodes for device in resource_slice.devices if device.accessible_nodes]
        self.names = frozenset(each.node for each in nodes if each.node is not None)
        self.others = [each for each in nodes if each.node is None]


@dataclass(frozen=True, slots=True)
class DevicePool:
    """`slices`: slices with devices for the node, sorted by name. `generation`: of these and the other slices of
    the pool, whose devices may consume the same counters. Nothing is allocated from an `incomplete`
    or `invalid` pool."""

    id: PoolId
    slices: tuple[ResourceSlice, ...] = ()
    generation: PoolGeneration = field(default=_NO_SLICES)
    incomplete: bool = False
    invalid: bool = False


def pools_for(
    node: Node,
    slices: Iterable[ResourceSlice],
    of_pool: Callable[[PoolId], PoolSlices],
) -> tuple[DevicePool, ...]:
    """Pools in search order. `slices`: slices that the node may be able to use. `of_pool` returns
    all slices of a pool."""
    by_pool: dict[PoolId, list[ResourceSlice]] = {}
    for resource_slice in slices:
        if resource_slice.is_supported and of_pool(resource_slice.pool).is_relevant(resource_slice, node):
            _add_newest(by_pool, resource_slice)
    pools = []
    for pool_id, relevant in by_pool.items():
        number, slice_count = relevant[0].generation, relevant[0].slice_count
        everything = of_pool(pool_id)
        generation = everything.of_generation(number)
        if len(relevant) != slice_count:
            if everything.newest > number:
                continue  # the newer generation has nothing for this node
            if len(generation.slices) != slice_count:
                pools.append(DevicePool(pool_id, incomplete=True))
                continue
        elif len(generation.slices) != slice_count:
            generation = everything.part(relevant)
        pools.append(_build_pool(pool_id, relevant, generation))
    return tuple(sorted(pools, key=lambda pool: (_has_binding_conditions(pool), pool.id)))


def visited_devices(pools: Iterable[DevicePool]) -> int:
    """Those that were visited for the pools of one node; all others are once for all nodes."""
    generations = (pool.generation for pool in pools)
    visited = (each.slices for each in generations if each.is_part or each.repeats_names)
    return sum(len(resource_slice.devices) for slices in visited for resource_slice in slices)


def _add_newest(by_pool: dict[PoolId, list[ResourceSlice]], resource_slice: ResourceSlice) -> None:
    pool_slices = by_pool.get(resource_slice.pool)
    if pool_slices is None or resource_slice.generation > pool_slices[0].generation:
        by_pool[resource_slice.pool] = [resource_slice]
    elif resource_slice.generation == pool_slices[0].generation:
        pool_slices.append(resource_slice)


def _build_pool(pool_id: PoolId, relevant: Sequence[ResourceSlice], generation: PoolGeneration) -> DevicePool:
    ordered = sorted(relevant, key=lambda resource_slice: resource_slice.name)
    with_devices = tuple(resource_slice for resource_slice in ordered if not resource_slice.counters)
    if generation.is_invalid or (generation.repeats_names and _repeat_names(with_devices)):
        return DevicePool(pool_id, generation=generation, invalid=True)
    return DevicePool(pool_id, with_devices, generation)


def _repeat_names(slices: Iterable[ResourceSlice]) -> bool:
    names = [device.name for resource_slice in slices for device in resource_slice.devices]
    return len(names) != len(set(names))


def _has_binding_conditions(pool: DevicePool) -> bool:
    """Pools with such devices come last, since binding them takes time."""
    with_conditions = pool.generation.with_binding_conditions
    return bool(with_conditions) and any(each.name in with_conditions for each in pool.slices)
