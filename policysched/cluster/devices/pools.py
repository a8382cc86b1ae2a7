"""The device pools that a node can use, built from the slices of the latest generation.

A driver replaces a pool by publishing slices of a higher generation. Until all of them are
published the pool is incomplete and nothing is allocated from it. Source: `pools_incubating.go` in
k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

from policysched.model.devices import Amounts, CounterConsumption, PoolId, ResourceSlice
from policysched.model.nodes import Node


class PoolGeneration:
    """What all slices of a generation have together: `consumptions` of counters by device, and `with_binding_conditions`, the
    slices that have such devices. Each device is visited once for all nodes; for one node, if the generation `is_part` of what is
    published."""

    def __init__(self, slices: Iterable[ResourceSlice], *, is_part: bool = False) -> None:
        self.slices = tuple(slices)
        self.is_part = is_part
        self.counters: dict[str, Amounts] = {}
        self.consumptions: dict[str, tuple[CounterConsumption, ...]] = {}
        self.with_binding_conditions: set[str] = set()
        defined = Counter(name for each in self.slices for name in each.counters)
        for each in self.slices:
            self.counters.update(each.counters)
        names: set[str] = set()
        self.repeats_names, undefined = False, False
        for each in self.slices:
            for device in each.devices:
                self.repeats_names |= device.name in names
                names.add(device.name)
                if device.binding_conditions:
                    self.with_binding_conditions.add(each.name)
                if device.consumes_counters:
                    known = self.consumptions.get(device.name, ())
                    self.consumptions[device.name] = (*known, *device.consumes_counters)
                    undefined |= not self._defines(device.consumes_counters)
        self.is_invalid = undefined or any(times > 1 for times in defined.values())

    def _defines(self, consumptions: Iterable[CounterConsumption]) -> bool:
        return all(
            use.counter_set in self.counters and use.counters.keys() <= self.counters[use.counter_set].keys()
            for use in consumptions
        )

    def consists_of(self, slices: Sequence[ResourceSlice]) -> bool:
        return len(slices) == len(self.slices) and all(map(is_, slices, self.slices))


_NO_SLICES = PoolGeneration(())


class PoolSlices:
    """All slices of a pool, until one is added or removed."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        self._slices = tuple(slices)
        self.newest = max((each.generation for each in self._slices), default=0)
        self._generations: dict[int, PoolGeneration] = {}
        self._part: PoolGeneration | None = None
        self._nodes: dict[str, _NodesOfDevices] = {}

    def of_generation(self, generation: int) -> PoolGeneration:
        known = self._generations.get(generation)
        if known is None:
            supported = [each for each in self._slices if each.generation == generation and each.is_supported]
            known = self._generations[generation] = PoolGeneration(supported)
        return known

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

    @property
    def counters(self) -> Mapping[str, Amounts]:
        return self.generation.counters


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
