"""Devices for resource claims, searched node by node and cached until the node's devices change.

No column can tell whether a node has the devices, since the result depends on all requests of all
claims together. Pods whose claims request the same share the results, so that the next such pod
costs one lookup per node.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import (
    ClaimsByNode,
    PodResourceClaims,
    choose_devices,
    claim_index,
    claim_key_at,
    fill_claim_name,
    node_independent_key,
    pod_resource_claims,
    unbindable_claims,
    uses_devices,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.device_rejections import DeviceRejection, DeviceRejectionCodes
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    DefaultNormalizer,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    Normalizer,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.evaluate.verdict import PrebindRequirements
from policysched.model.nodes import Node
from policysched.model.pods import Pod


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    timeout_s = params["binding_timeout_seconds"]
    assert isinstance(timeout_s, int), f"binding_timeout_seconds is {timeout_s!r}"
    pod = _device_user(pod, cluster_context)
    return DynamicResourcesFilter(pod, cluster_context, timeout_s) if uses_devices(pod) else None


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    return _Score(_device_user(pod, cluster_context), cluster_context) if pod.device_claims else None


def _device_user(pod: Pod, cluster_context: ClusterContext) -> Pod:
    """The pod, without its extended resources where the policy allocates no devices for them."""
    return pod if cluster_context.allocates_devices or not pod.extended else replace(pod, extended=())


class _CachedPodDevices:
    """The pod's claims, resolved again when their change stamps differ. Pods without claims share
    the empty set.
    """

    def __init__(self, pod: Pod, cluster_context: ClusterContext, timeout_s: int | None = None) -> None:
        """Without a timeout, claims whose devices were not bound in time are not detected."""
        self.pod = pod
        self._has_stale_claim = cluster_context.has_stale_claim
        self._timeout_s = timeout_s
        self.keys = tuple(use.claim for use in pod.device_claims if use.claim is not None)
        self._change_stamps: Hashable = None
        self._devices: PodResourceClaims | str = ""

    def resolve(self, available: AvailableDevices) -> PodResourceClaims | str:
        stamps = available.stamps_of(self.keys)
        if stamps != self._change_stamps:
            self._change_stamps, self._devices = (
                stamps,
                pod_resource_claims(self.pod, available, has_stale_claim=self._has_stale_claim),
            )
        return self._devices

    def resolve_at(self, view: View) -> PodResourceClaims | str:
        """`resolve`, plus the claims whose devices were not bound in time as of the view."""
        claims = self.resolve(view.available_devices)
        if isinstance(claims, str) or self._timeout_s is None:
            return claims
        lost = unbindable_claims(claims, view.now_ns, self._timeout_s)
        return replace(claims, unbindable=lost) if lost else claims

    def lost_claims(self, view: View) -> Hashable:
        claims = self.resolve_at(view)
        return () if isinstance(claims, str) else claims.unbindable

    def change_stamps(self, available: AvailableDevices) -> Hashable:
        """A constant for a pod whose extended resources are mapped by no DeviceClass."""
        if not self.pod.device_claims and not any(
            available.class_of_resource(request.resource) for request in self.pod.extended
        ):
            return "of no class"
        return available.stamps_of(self.keys)


class DynamicResourcesFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.VOLUMES

    def __init__(self, pod: Pod, cluster_context: ClusterContext, timeout_s: int) -> None:
        self._claims = _CachedPodDevices(pod, cluster_context, timeout_s)
        self.timeout_s = timeout_s

    def rejected(self, view: View) -> Array:
        rejection_codes = self._rejection_codes(view)
        if rejection_codes is not None:
            return np.asarray(rejection_codes[1].codes != 0)
        return np.array([message is not None for message in self._messages(view)], np.bool_)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        rejection_codes = self._rejection_codes(view)
        if rejection_codes is not None:
            return _masks_by_message(*rejection_codes)
        message = self._messages(view)
        return [
            (text, np.array([row_message == text for row_message in message], np.bool_))
            for text in dict.fromkeys(message)
            if text is not None
        ]

    def prefilter(self, view: View) -> str | None:
        devices = self._claims.resolve(view.available_devices)
        return devices if isinstance(devices, str) else None

    def attempt_errors(self, view: View) -> Sequence[tuple[str, Array]]:
        rejection_codes = self._rejection_codes(view)
        if rejection_codes is not None:
            return _masks_by_message(*rejection_codes, errors_only=True)
        available, devices = view.available_devices, self._claims.resolve_at(view)
        if isinstance(devices, str) or not devices.has_unallocated(available):
            return ()
        located, by_node = (
            [view.node_at(index) for index in range(view.count)],
            ClaimsByNode(devices, available),
        )
        errors = [None if row is None else by_node.attempt_error(row[0]) for row in located]
        return [
            (text, np.array([error == text for error in errors], np.bool_))
            for text in dict.fromkeys(errors)
            if text is not None
        ]

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.change_stamps(view.available_devices), self._claims.lost_claims(view)

    def prebind_requirements(self, pod: Pod, node: Node, view: View) -> PrebindRequirements | None:
        choice = self.choice(pod, node, view.available_devices)
        return PrebindRequirements(None, choice, self.timeout_s) if choice else None

    def choice(self, pod: Pod, node: Node, available: AvailableDevices) -> DeviceChoice:
        """The allocations and reservations for the pod on a node that this filter accepts."""
        claims = self._claims.resolve(available)
        assert not isinstance(claims, str), f"{pod.full_name} passed the filter, but now: {claims}"
        choice = choose_devices(pod, claims, node, available)
        assert isinstance(choice, DeviceChoice), f"{pod.full_name} passed on {node.name}, but now: {choice}"
        return choice

    def _rejection_codes(self, view: View) -> tuple[PodResourceClaims, DeviceRejectionCodes] | None:
        """Rejections by row; None if the pod has none, or they cannot be shared with claims that request the same."""
        available, devices = view.available_devices, self._claims.resolve_at(view)
        if isinstance(devices, str) or not devices.is_needed:
            return None
        text = node_independent_key(devices, available)
        if text is None:
            return None
        of_pod = devices

        def rejections_in(available: AvailableDevices) -> _Rejections:
            return _Rejections(of_pod, available)

        return devices, view.device_rejections(text, available.results_stamp, rejections_in)

    def _messages(self, view: View) -> list[str | None]:
        """The message for each row; None where it is not rejected, or holds no node."""
        available = view.available_devices
        devices = self._claims.resolve_at(view)
        if isinstance(devices, str):
            return [devices] * view.count
        if not devices.is_needed:
            return [None] * view.count
        by_node = ClaimsByNode(devices, available)
        messages: list[str | None] = []
        for index in range(view.count):
            located = view.node_at(index)
            if located is None:
                messages.append(None)
                continue
            outcome = by_node.evaluate(located[0])
            messages.append(outcome if isinstance(outcome, str) else None)
        return messages


class _Rejections:
    """The rejections of claims, shared with claims that request the same."""

    def __init__(self, devices: PodResourceClaims, available: AvailableDevices) -> None:
        self._devices = devices
        self._by_node = ClaimsByNode(devices, available)

    def of_node(self, node: Node) -> DeviceRejection | None:
        rejection = self._by_node.rejection(node)
        if rejection is None:
            return None
        claim = None if rejection.claim is None else claim_index(self._devices, rejection.claim)
        return DeviceRejection(rejection.message, claim, rejection.stops_attempt)

    def groups(self, nodes: Sequence[Node | None]) -> Sequence[Sequence[int]]:
        looking = self._by_node.groups(nodes)
        while True:
            try:
                next(looking)
            except StopIteration as end:
                groups: Sequence[Sequence[int]] = end.value
                return groups


def _masks_by_message(
    devices: PodResourceClaims, rejection_codes: DeviceRejectionCodes, *, errors_only: bool = False
) -> list[tuple[str, Array]]:
    """bool by row, for each message. `errors_only`: only rejections that stop the attempt."""
    masks: dict[str, Array] = {}
    if errors_only and not any(known and known.stops_attempt for known in rejection_codes.rejections):
        return []
    for code in np.unique(rejection_codes.codes).tolist():
        rejection = rejection_codes.rejections[code]
        if rejection is not None and (rejection.stops_attempt or not errors_only):
            message = fill_claim_name(
                rejection.reason,
                None if rejection.claim_index is None else claim_key_at(devices, rejection.claim_index),
            )
            mask = rejection_codes.codes == code
            masks[message] = masks[message] | mask if message in masks else mask
    return list(masks.items())


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.CLUSTER
    normalizer: Normalizer = DefaultNormalizer(reverse=False)

    def __init__(self, pod: Pod, cluster_context: ClusterContext) -> None:
        self._claims = _CachedPodDevices(pod, cluster_context)

    def raw(self, view: View) -> Array:
        available = view.available_devices
        devices = self._claims.resolve(available)
        scores = np.zeros(view.count, np.int64)
        if isinstance(devices, str) or not devices.has_alternatives:
            return scores
        by_node = ClaimsByNode(devices, available)
        for index in range(view.count):
            located = view.node_at(index)
            if located is not None:
                scores[index] = by_node.score(located[0])
        return scores

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.change_stamps(view.available_devices)
