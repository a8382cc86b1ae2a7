"""The search of devices for a pod on one node after the other, before its evaluation, which then finds the results in the
cache. An evaluation visits all nodes in one piece."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.pod_claims import node_rejection, pod_resource_claims
from policysched.cluster.devices.pod_selectors import too_many_selectors_message
from policysched.model.nodes import Node
from policysched.model.pods import Pod


def search_nodes(
    pod: Pod, devices: DeviceCache, nodes: Collection[Node], *, with_extended: bool
) -> Iterator[int]:
    """Search on nodes where it was not, until the slice is over. Yields the steps of each piece.
    `with_extended`: for extended resources that a class provides, too."""
    available = AvailableDevices(devices)
    claims = pod_resource_claims(
        pod if with_extended or not pod.extended else replace(pod, extended=()),
        available,
        has_stale_claim=available.has_extended_claim(pod),
    )
    if isinstance(claims, str) or not claims.has_unallocated(available):
        return
    texts = [claim.spec_text for claim in claims.claims if available.allocation(claim.key) is None]
    if claims.extended is not None:
        texts.append(f"extended {claims.extended.requests}")
    cache, specs, shared_stamp = devices.allocation_cache, tuple(texts), available.shared_stamp
    if cache.are_searched(specs, nodes, shared_stamp) or too_many_selectors_message([pod], devices):
        return
    yield from cache.search_in_pieces(
        specs, nodes, shared_stamp, lambda node: node_rejection(claims, node, available)
    )
