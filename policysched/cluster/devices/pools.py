"""The pools of devices that a node can use: of all slices those that count, whole or not, valid or not.

A driver replaces a pool by publishing slices of a higher generation; until all of them are there nothing is taken from
it. Source: `pools_incubating.go` in k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.model.devices import Amounts, PoolId, ResourceSlice
from policysched.model.nodes import Node


@dataclass(frozen=True, slots=True)
class DevicePool:
    """`slices` have the devices for the node, in the order of their names; `other_slices` are the pool's others, whose devices
    may have taken of the same counters. `incomplete` or `invalid`: nothing is taken from it."""

    id: PoolId
    slices: tuple[ResourceSlice, ...] = ()
    other_slices: tuple[ResourceSlice, ...] = ()
    counters: Mapping[str, Amounts] = field(default_factory=dict)
    incomplete: bool = False
    invalid: bool = False


def pools_for(
    node: Node,
    slices: Iterable[ResourceSlice],
    of_pool: Callable[[PoolId], Iterable[ResourceSlice]],
) -> tuple[DevicePool, ...]:
    """In the order in which devices are looked for. `slices` are those that could be for the node, `of_pool` answers all
    of a pool."""
    by_pool: dict[PoolId, list[ResourceSlice]] = {}
    for one in slices:
        if _is_relevant(one, node):
            _add_newest(by_pool, one)
    found = []
    for pool_id, relevant in by_pool.items():
        generation, whole = relevant[0].generation, relevant
        if len(relevant) != relevant[0].slice_count:
            everything = list(of_pool(pool_id))
            if any(one.generation > generation for one in everything):
                continue  # the newer generation has nothing for this node
            whole = [one for one in everything if one.generation == generation]
            if len(whole) != relevant[0].slice_count:
                found.append(DevicePool(pool_id, incomplete=True))
                continue
        found.append(_build_pool(pool_id, relevant, whole))
    return tuple(sorted(found, key=lambda pool: (_has_binding_conditions(pool), pool.id)))


def _is_relevant(one: ResourceSlice, node: Node) -> bool:
    if one.counters:
        return True  # whoever takes from the pool needs to know what is left
    if one.per_device_node_selection:
        return any(
            device.accessible_nodes is not None and device.accessible_nodes.includes(node)
            for device in one.devices
        )
    return one.accessible_nodes.includes(node)


def _add_newest(by_pool: dict[PoolId, list[ResourceSlice]], one: ResourceSlice) -> None:
    known = by_pool.get(one.pool)
    if known is None or one.generation > known[0].generation:
        by_pool[one.pool] = [one]
    elif one.generation == known[0].generation:
        known.append(one)


def _build_pool(
    pool_id: PoolId, relevant: Sequence[ResourceSlice], whole: Sequence[ResourceSlice]
) -> DevicePool:
    ordered = sorted(relevant, key=lambda one: one.name)
    with_devices = tuple(one for one in ordered if not one.counters)
    names = [device.name for one in with_devices for device in one.devices]
    counters: dict[str, Amounts] = {}
    for one in ordered:
        for name, amounts in one.counters.items():
            if name in counters:
                return DevicePool(pool_id, invalid=True)
            counters[name] = amounts
    here = {one.name for one in ordered}
    elsewhere = tuple(one for one in whole if one.name not in here)
    if len(names) != len(set(names)) or not _defines_all_counters(counters, (*ordered, *elsewhere)):
        return DevicePool(pool_id, invalid=True)
    return DevicePool(pool_id, with_devices, elsewhere, counters)


def _defines_all_counters(counters: Mapping[str, Amounts], slices: Iterable[ResourceSlice]) -> bool:
    return all(
        use.counter_set in counters and use.counters.keys() <= counters[use.counter_set].keys()
        for one in slices
        for device in one.devices
        for use in device.consumes_counters
    )


def _has_binding_conditions(pool: DevicePool) -> bool:
    """Devices that take a while to be bound come last."""
    return any(device.binding_conditions for one in pool.slices for device in one.devices)
