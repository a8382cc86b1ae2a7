"""The device pools that a node can use, built from the slices of the latest generation.

A driver replaces a pool by publishing slices of a higher generation. Until all of them are
published the pool is incomplete and nothing is allocated from it. Source: `pools_incubating.go` in
k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.model.devices import Amounts, PoolId, ResourceSlice
from policysched.model.nodes import Node


@dataclass(frozen=True, slots=True)
class DevicePool:
    """`slices`: slices with devices for the node, sorted by name. `other_slices`: other slices of
    the pool, whose devices may consume the same counters. Nothing is allocated from an `incomplete`
    or `invalid` pool."""

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
    """Pools in search order. `slices`: slices that the node may be able to use. `of_pool` returns
    all slices of a pool."""
    by_pool: dict[PoolId, list[ResourceSlice]] = {}
    for resource_slice in slices:
        if resource_slice.is_supported and _is_relevant(resource_slice, node):
            _add_newest(by_pool, resource_slice)
    pools = []
    for pool_id, relevant in by_pool.items():
        generation, whole = relevant[0].generation, relevant
        if len(relevant) != relevant[0].slice_count:
            everything = list(of_pool(pool_id))
            if any(resource_slice.generation > generation for resource_slice in everything):
                continue  # the newer generation has nothing for this node
            whole = [
                resource_slice
                for resource_slice in everything
                if resource_slice.generation == generation and resource_slice.is_supported
            ]
            if len(whole) != relevant[0].slice_count:
                pools.append(DevicePool(pool_id, incomplete=True))
                continue
        pools.append(_build_pool(pool_id, relevant, whole))
    return tuple(sorted(pools, key=lambda pool: (_has_binding_conditions(pool), pool.id)))


def _is_relevant(resource_slice: ResourceSlice, node: Node) -> bool:
    if resource_slice.per_device_node_selection:
        return any(
            device.accessible_nodes is not None and device.accessible_nodes.includes(node)
            for device in resource_slice.devices
        )
    return resource_slice.accessible_nodes.includes(node)


def _add_newest(by_pool: dict[PoolId, list[ResourceSlice]], resource_slice: ResourceSlice) -> None:
    pool_slices = by_pool.get(resource_slice.pool)
    if pool_slices is None or resource_slice.generation > pool_slices[0].generation:
        by_pool[resource_slice.pool] = [resource_slice]
    elif resource_slice.generation == pool_slices[0].generation:
        pool_slices.append(resource_slice)


def _build_pool(
    pool_id: PoolId, relevant: Sequence[ResourceSlice], whole: Sequence[ResourceSlice]
) -> DevicePool:
    ordered = sorted(relevant, key=lambda resource_slice: resource_slice.name)
    with_devices = tuple(resource_slice for resource_slice in ordered if not resource_slice.counters)
    names = [device.name for resource_slice in with_devices for device in resource_slice.devices]
    counters: dict[str, Amounts] = {}
    for resource_slice in whole:  # a slice of another node can have the counters of all
        for name, amounts in resource_slice.counters.items():
            if name in counters:
                return DevicePool(pool_id, invalid=True)
            counters[name] = amounts
    slice_names = {resource_slice.name for resource_slice in ordered}
    elsewhere = tuple(resource_slice for resource_slice in whole if resource_slice.name not in slice_names)
    if len(names) != len(set(names)) or not _defines_all_counters(counters, (*ordered, *elsewhere)):
        return DevicePool(pool_id, invalid=True)
    return DevicePool(pool_id, with_devices, elsewhere, counters)


def _defines_all_counters(counters: Mapping[str, Amounts], slices: Iterable[ResourceSlice]) -> bool:
    return all(
        use.counter_set in counters and use.counters.keys() <= counters[use.counter_set].keys()
        for resource_slice in slices
        for device in resource_slice.devices
        for use in device.consumes_counters
    )


def _has_binding_conditions(pool: DevicePool) -> bool:
    """Pools with such devices come last, since binding them takes time."""
    return any(
        device.binding_conditions for resource_slice in pool.slices for device in resource_slice.devices
    )
