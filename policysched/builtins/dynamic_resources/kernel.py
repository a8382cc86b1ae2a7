"""Claims for devices, node by node: what there is for them is found by a search, which is kept until the node's devices change.

No column tells whether a node has the devices, for the answer depends on what all requests of all claims ask for
together; so each node is asked, and a pod whose claims ask for the same as another's costs a look at each answer kept.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.devices.pod_claims import (
    PodDevices,
    choice_on,
    devices_of,
    key_at,
    look,
    lost_claims,
    place_of,
    preference_on,
    refusal,
    same_for_all,
    told,
    uses_devices,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.device_answers import Coded, Refusal
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    Around,
    ByMaximum,
    FilterKernel,
    Normalizer,
    Params,
    PlainFilter,
    PlainScore,
    ScoreKernel,
    Touch,
)
from policysched.model.objects import Node, Pod


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    timeout_s = params["binding_timeout_seconds"]
    assert isinstance(timeout_s, int), f"a time-out of {timeout_s!r}"
    return DynamicResources(pod, around, timeout_s) if uses_devices(pod) else None


def bind_score(pod: Pod, params: Params, around: Around) -> ScoreKernel | None:
    return _Score(pod, around) if pod.device_claims else None


class _Claims:
    """The pod's claims as of some stamps. Pods without claims of their own share them."""

    def __init__(self, pod: Pod, around: Around, timeout_s: int | None = None) -> None:
        """Without a time-out nobody asks whether devices were bound in time."""
        self.pod = pod
        self._left_over = around.left_over
        self._timeout_s = timeout_s
        self.keys = tuple(use.claim for use in pod.device_claims if use.claim is not None)
        self._stamps: Hashable = None
        self._devices: PodDevices | str = ""

    def as_of(self, stock: DeviceStock) -> PodDevices | str:
        stamps = stock.stamps_of(self.keys)
        if stamps != self._stamps:
            self._stamps, self._devices = stamps, devices_of(self.pod, stock, left_over=self._left_over)
        return self._devices

    def at(self, view: View) -> PodDevices | str:
        """The same with what the clock says of devices that are to be bound."""
        found = self.as_of(view.devices)
        if isinstance(found, str) or self._timeout_s is None:
            return found
        lost = lost_claims(found, view.now_ns, self._timeout_s)
        return replace(found, lost=lost) if lost else found

    def lost(self, view: View) -> Hashable:
        found = self.at(view)
        return () if isinstance(found, str) else found.lost

    def stamps(self, stock: DeviceStock) -> Hashable:
        """Of a pod that asks for extended resources for which no class stands: nothing of all this."""
        if not self.pod.device_claims and not any(stock.class_of(one.resource) for one in self.pod.extended):
            return "of no class"
        return stock.stamps_of(self.keys)


class DynamicResources(PlainFilter):
    touch = Touch.NODE | Touch.USAGE | Touch.VOLUMES

    def __init__(self, pod: Pod, around: Around, timeout_s: int) -> None:
        self._claims = _Claims(pod, around, timeout_s)
        self.timeout_s = timeout_s

    def refused(self, view: View) -> Array:
        coded = self._coded(view)
        if coded is not None:
            return np.asarray(coded[1].codes != 0)
        return np.array([words is not None for words in self._words(view)], np.bool_)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        coded = self._coded(view)
        if coded is not None:
            return _by_words(*coded)
        words = self._words(view)
        return [
            (text, np.array([one == text for one in words], np.bool_))
            for text in dict.fromkeys(words)
            if text is not None
        ]

    def beforehand(self, view: View) -> str | None:
        devices = self._claims.as_of(view.devices)
        return devices if isinstance(devices, str) else None

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.stamps(view.devices), self._claims.lost(view)

    def choice(self, pod: Pod, node: Node, stock: DeviceStock) -> DeviceChoice:
        """What has to happen to the pod's claims on a node that this filter lets pass."""
        claims = self._claims.as_of(stock)
        assert not isinstance(claims, str), f"{pod.full_name} was let pass, and now: {claims}"
        found = choice_on(pod, claims, node, stock)
        assert isinstance(found, DeviceChoice), f"{pod.full_name} on {node.name}, that it may have: {found}"
        return found

    def _coded(self, view: View) -> tuple[PodDevices, Coded] | None:
        """By row, where claims of the same text have been asked about before, or may be again."""
        stock, devices = view.devices, self._claims.at(view)
        if isinstance(devices, str) or not devices.there_are_some:
            return None
        text = same_for_all(devices, stock)
        if text is None:
            return None
        of_pod = devices

        def ask(node: Node, stock: DeviceStock) -> Refusal | None:
            found = refusal(of_pod, node, stock)
            if found is None:
                return None
            return found[0], None if found[1] is None else place_of(of_pod, found[1])

        return devices, view.device_refusals(text, stock.shared_stamp, ask)

    def _words(self, view: View) -> list[str | None]:
        """Why each row is refused; None where it is not, or is no node."""
        stock = view.devices
        devices = self._claims.at(view)
        if isinstance(devices, str):
            return [devices] * view.count
        if not devices.there_are_some:
            return [None] * view.count
        found: list[str | None] = []
        for place in range(view.count):
            at = view.node_at(place)
            if at is None:
                found.append(None)
                continue
            outcome = look(devices, at[0], stock)
            found.append(outcome if isinstance(outcome, str) else None)
        return found


def _by_words(devices: PodDevices, coded: Coded) -> list[tuple[str, Array]]:
    found: dict[str, Array] = {}
    for code in np.unique(coded.codes).tolist():
        one = coded.refusals[code]
        if one is not None:
            words = told(one[0], None if one[1] is None else key_at(devices, one[1]))
            here = coded.codes == code
            found[words] = found[words] | here if words in found else here
    return list(found.items())


class _Score(PlainScore):
    touch = Touch.NODE | Touch.USAGE | Touch.CLUSTER
    normalizer: Normalizer = ByMaximum(reverse=False)

    def __init__(self, pod: Pod, around: Around) -> None:
        self._claims = _Claims(pod, around)

    def raw(self, view: View) -> Array:
        stock = view.devices
        devices = self._claims.as_of(stock)
        found = np.zeros(view.count, np.int64)
        if isinstance(devices, str) or not devices.have_alternatives:
            return found
        for place in range(view.count):
            at = view.node_at(place)
            if at is not None:
                found[place] = preference_on(devices, at[0], stock)
        return found

    def fingerprint(self, view: View) -> Hashable:
        return self._claims.stamps(view.devices)
