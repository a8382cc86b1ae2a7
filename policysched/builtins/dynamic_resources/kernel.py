"""Claims for devices, node by node: what there is for them is found by a search, which is kept until the node's devices change.

No column tells whether a node has the devices, for the answer depends on what all requests of all claims ask for
together; so each node is asked, and a pod whose claims ask for the same as another's costs a look at each answer kept.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import (
    PodResourceClaims,
    choose_devices,
    claim_index,
    claim_key_at,
    evaluate_node,
    fill_claim_name,
    node_independent_key,
    node_refusal,
    pod_resource_claims,
    score_on,
    unbindable_claims,
    uses_devices,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.device_refusals import DeviceRefusal, DeviceRefusalCodes
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
from policysched.model.nodes import Node
from policysched.model.pods import Pod


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    timeout_s = params["binding_timeout_seconds"]
    assert isinstance(timeout_s, int), f"a time-out of {timeout_s!r}"
    return DynamicResourcesFilter(pod, around, timeout_s) if uses_devices(pod) else None


def specialize_score(pod: Pod, params: KernelParams, around: ClusterContext) -> ScoreKernel | None:
    return _Score(pod, around) if pod.device_claims else None


class _CachedPodDevices:
    """The pod's claims as of some stamps. Pods without claims of their own share them."""

    def __init__(self, pod: Pod, around: ClusterContext, timeout_s: int | None = None) -> None:
        """Without a time-out nobody asks whether devices were bound in time."""
        self.pod = pod
        self._has_stale_claim = around.has_stale_claim
        self._timeout_s = timeout_s
        self.keys = tuple(use.claim for use in pod.device_claims if use.claim is not None)
        self._change_stamps: Hashable = None
        self._devices: PodResourceClaims | str = ""

    def resolve(self, stock: AvailableDevices) -> PodResourceClaims | str:
        stamps = stock.stamps_of(self.keys)
        if stamps != self._change_stamps:
            self._change_stamps, self._devices = (
                stamps,
                pod_resource_claims(self.pod, stock, has_stale_claim=self._has_stale_claim),
            )
        return self._devices

    def resolve_at(self, view: View) -> PodResourceClaims | str:
        """The same with what the clock says of devices that are to be bound."""
        found = self.resolve(view.available_devices)
        if isinstance(found, str) or self._timeout_s is None:
            return found
        lost = unbindable_claims(found, view.now_ns, self._timeout_s)
        return replace(found, unbindable=lost) if lost else found

    def lost_claims(self, view: View) -> Hashable:
        found = self.resolve_at(view)
        return () if isinstance(found, str) else found.unbindable

    def change_stamps(self, stock: AvailableDevices) -> Hashable:
        """Of a pod that asks for extended resources for which no class stands: nothing of all this."""
        if not self.pod.device_claims and not any(
            stock.class_of_resource(one.resource) for one in self.pod.extended
        ):
            return "of no class"
        return stock.stamps_of(self.keys)


class DynamicResourcesFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.VOLUMES

    def __init__(self, pod: Pod, around: ClusterContext, timeout_s: int) -> None:
        self._claims = _CachedPodDevices(pod, around, timeout_s)
        self.timeout_s = timeout_s

    def refused(self, view: View) -> Array:
        coded = self._refusal_codes(view)
        if coded is not None:
            return np.asarray(coded[1].codes != 0)
        return np.array([words is not None for words in self._messages(view)], np.bool_)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        coded = self._refusal_codes(view)
        if coded is not None:
            return _masks_by_message(*coded)
        words = self._messages(view)
        return [
            (text, np.array([one == text for one in words], np.bool_))
            for text in dict.fromkeys(words)
            if text is not None
        ]

    def prefilter(self, view: View) -> str | None:
        devices = self._claims.resolve(view.available_devices)
        return devices if isinstance(devices, str) else None

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.change_stamps(view.available_devices), self._claims.lost_claims(view)

    def choice(self, pod: Pod, node: Node, stock: AvailableDevices) -> DeviceChoice:
        """What has to happen to the pod's claims on a node that this filter lets pass."""
        claims = self._claims.resolve(stock)
        assert not isinstance(claims, str), f"{pod.full_name} was let pass, and now: {claims}"
        found = choose_devices(pod, claims, node, stock)
        assert isinstance(found, DeviceChoice), f"{pod.full_name} on {node.name}, that it may have: {found}"
        return found

    def _refusal_codes(self, view: View) -> tuple[PodResourceClaims, DeviceRefusalCodes] | None:
        """By row, where claims of the same text have been asked about before, or may be again."""
        stock, devices = view.available_devices, self._claims.resolve_at(view)
        if isinstance(devices, str) or not devices.is_needed:
            return None
        text = node_independent_key(devices, stock)
        if text is None:
            return None
        of_pod = devices

        def ask(node: Node, stock: AvailableDevices) -> DeviceRefusal | None:
            found = node_refusal(of_pod, node, stock)
            if found is None:
                return None
            return found[0], None if found[1] is None else claim_index(of_pod, found[1])

        return devices, view.device_refusals(text, stock.shared_stamp, ask)

    def _messages(self, view: View) -> list[str | None]:
        """Why each row is refused; None where it is not, or is no node."""
        stock = view.available_devices
        devices = self._claims.resolve_at(view)
        if isinstance(devices, str):
            return [devices] * view.count
        if not devices.is_needed:
            return [None] * view.count
        found: list[str | None] = []
        for place in range(view.count):
            at = view.node_at(place)
            if at is None:
                found.append(None)
                continue
            outcome = evaluate_node(devices, at[0], stock)
            found.append(outcome if isinstance(outcome, str) else None)
        return found


def _masks_by_message(devices: PodResourceClaims, coded: DeviceRefusalCodes) -> list[tuple[str, Array]]:
    found: dict[str, Array] = {}
    for code in np.unique(coded.codes).tolist():
        one = coded.refusals[code]
        if one is not None:
            words = fill_claim_name(one[0], None if one[1] is None else claim_key_at(devices, one[1]))
            here = coded.codes == code
            found[words] = found[words] | here if words in found else here
    return list(found.items())


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.CLUSTER
    normalizer: Normalizer = DefaultNormalizer(reverse=False)

    def __init__(self, pod: Pod, around: ClusterContext) -> None:
        self._claims = _CachedPodDevices(pod, around)

    def raw(self, view: View) -> Array:
        stock = view.available_devices
        devices = self._claims.resolve(stock)
        found = np.zeros(view.count, np.int64)
        if isinstance(devices, str) or not devices.has_alternatives:
            return found
        for place in range(view.count):
            at = view.node_at(place)
            if at is not None:
                found[place] = score_on(devices, at[0], stock)
        return found

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.change_stamps(view.available_devices)
