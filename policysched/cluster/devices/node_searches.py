"""The search of devices for a pod on one node after the other, before its evaluation, which then finds the results in the
cache. An evaluation visits all nodes in one piece."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.pod_claims import ClaimsByNode, PodResourceClaims, pod_resource_claims
from policysched.cluster.devices.pod_selectors import too_many_selectors_message
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod


class Devices(Protocol):
    """Those of a cluster, and its nodes."""

    @property
    def nodes(self) -> Mapping[NodeName, Node]: ...
    @property
    def devices(self) -> DeviceCache: ...


def search_nodes(
    pod: Pod, cluster: Devices, *, with_extended: bool, overlay: DeviceOverlay | None = None
) -> Iterator[int]:
    """Search on nodes where it was not, until the slice is over, and on those that the overlay changed. Yields the steps of each
    piece. `with_extended`: for extended resources that a class provides, too."""
    devices, nodes = cluster.devices, cluster.nodes.values()
    available = AvailableDevices(devices)
    claims = _claims_of(pod, available, with_extended=with_extended)
    if isinstance(claims, str) or not claims.has_unallocated(available):
        return
    texts = [claim.spec_text for claim in claims.claims if available.allocation(claim.key) is None]
    if claims.extended is not None:
        texts.append(f"extended {claims.extended.requests}")
    cache, specs, shared_stamp = devices.allocation_cache, tuple(texts), available.shared_stamp
    if overlay is not None:
        on_overlay = ClaimsByNode(claims, available.with_overlay(overlay))

        def representatives() -> Iterator[Node | None]:
            listed = list(nodes)
            groups = yield from on_overlay.groups(listed)
            yield from (listed[group[0]] for group in groups)

        yield from cache.search_on_overlay(specs, cluster.nodes, overlay, on_overlay.on, representatives)
        return
    if cache.are_searched(specs, nodes, shared_stamp) or too_many_selectors_message([pod], devices):
        return
    yield from cache.search_in_pieces(specs, nodes, shared_stamp, ClaimsByNode(claims, available).on)


def has_devices_now(pod: Pod, cluster: Devices, node: NodeName, *, with_extended: bool) -> bool:
    """Whether the node that was chosen has the devices now, where results may be older. If not, the slice is over."""
    cache, available = cluster.devices.allocation_cache, AvailableDevices(cluster.devices)
    claims = _claims_of(pod, available, with_extended=with_extended)
    if isinstance(claims, str):
        return not cache.is_cut_off
    of_pod, chosen = ClaimsByNode(claims, available), cluster.nodes[node]
    return cache.confirm(lambda: of_pod.rejection(chosen) is None)


def _claims_of(pod: Pod, available: AvailableDevices, *, with_extended: bool) -> PodResourceClaims | str:
    return pod_resource_claims(
        pod if with_extended or not pod.extended else replace(pod, extended=()),
        available,
        has_stale_claim=available.has_extended_claim(pod),
    )
