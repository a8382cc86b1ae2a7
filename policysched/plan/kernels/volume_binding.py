"""Claims and volumes over label codes: whom bound volumes can follow, and where unbound claims find one or get one made.

The volumes to choose from are arranged once for a state of the stock and remembered; each node's choice for each claim
is then the smallest place in that arrangement, so that a pod costs vectors over nodes and one pass over free volumes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from policysched.cluster.claims import (
    NO_SPACE,
    NO_SUCH_VOLUME,
    NO_VOLUME,
    NODE_CONFLICT,
    PodClaims,
    choose,
    claims_of,
    is_available,
    suits_in_kind,
)
from policysched.cluster.objects import Node, Pod
from policysched.cluster.storage import NO_PROVISIONER, PersistentVolumeClaim
from policysched.cluster.volumes import Stock, VolumeChoice
from policysched.plan.column_kinds import Name
from policysched.plan.columns import Array
from policysched.plan.free_volumes import NONE, FreeVolumes
from policysched.plan.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.plan.view import View
from policysched.plan.volume_terms import all_hold, selects, terms_fit, volume_fits


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    if not pod.claims:
        return None
    timeout_s = params["bind_timeout_seconds"]
    assert isinstance(timeout_s, int), f"a time-out of {timeout_s!r}"
    return VolumeBinding(pod, timeout_s)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the pod's claims ask for, as of some stamps. `to_match` are those that look for a volume, smallest first, each with
    the free volumes that would do; `places` numbers volumes across claims."""

    claims: PodClaims | str
    to_match: tuple[tuple[PersistentVolumeClaim, FreeVolumes], ...] = ()


class VolumeBinding(PlainFilter):
    touch = Touch.NODE | Touch.VOLUMES

    def __init__(self, pod: Pod, timeout_s: int) -> None:
        self._pod = pod
        self.timeout_s = timeout_s
        self._stamps: Hashable = None
        self._prepared = _Prepared("")

    def refused(self, view: View) -> Array:
        masks = [mask for _, mask in self.reasons(view)]
        return np.asarray(np.logical_or.reduce(masks))

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        prepared = self._as_of(view)
        if isinstance(prepared.claims, str):
            return ((prepared.claims, np.ones(view.count, np.bool_)),)
        conflict, missing = _bound(prepared.claims, view)
        no_volume, no_space = self._delayed(prepared, prepared.claims, view)
        return (
            (NODE_CONFLICT, conflict),
            (NO_VOLUME, no_volume),
            (NO_SPACE, no_space),
            (NO_SUCH_VOLUME, missing),
        )

    def beforehand(self, view: View) -> str | None:
        claims = self._as_of(view).claims
        return claims if isinstance(claims, str) else None

    def fingerprint(self, view: View) -> Hashable:
        return view.stock.stamps_of(self._pod)

    def choice(self, node: Node, stock: Stock) -> VolumeChoice:
        """What has to happen to the pod's claims on a node that this filter lets pass."""
        claims = claims_of(self._pod, stock)
        assert not isinstance(claims, str), f"{self._pod.full_name} was let pass, and now: {claims}"
        found = choose(claims, node, stock)
        assert isinstance(found, VolumeChoice), (
            f"{self._pod.full_name} on {node.name}, that it may have: {found}"
        )
        return found

    def _as_of(self, view: View) -> _Prepared:
        stock = view.stock
        stamps = stock.stamps_of(self._pod)
        if stamps != self._stamps:
            self._stamps, self._prepared = stamps, _prepare(self._pod, stock)
        return self._prepared

    def _delayed(self, prepared: _Prepared, claims: PodClaims, view: View) -> tuple[Array, Array]:
        """Where no volume is found or can be made, and where there is no room for it."""
        stock = view.stock
        no_volume, no_space = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
        everywhere = np.ones(view.count, np.bool_)
        to_make: list[tuple[PersistentVolumeClaim, Array]] = []
        for claim in claims.delayed:
            selected = stock.selected_node(claim)
            if selected is not None:
                names = view.column(Name())
                no_volume |= names != view.codes.strings.find(selected)
                to_make.append((claim, everywhere))
        settled = no_volume.copy()
        to_make += _unmatched(prepared, stock, view)
        for claim, where in to_make:
            left = where & ~settled
            if left.any():
                unfit, full = _cannot_make(claim, stock, view)
                no_volume |= left & unfit
                no_space |= left & full
                settled |= left & (unfit | full)
        return no_volume, no_space


def _prepare(pod: Pod, stock: Stock) -> _Prepared:
    claims = claims_of(pod, stock)
    if isinstance(claims, str):
        return _Prepared(claims)
    waiting = [claim for claim in claims.delayed if stock.selected_node(claim) is None]
    waiting.sort(key=lambda claim: claim.request_bytes or 0)
    arranged = []
    for claim in waiting:
        suiting = [
            volume
            for volume in stock.free(claim.class_name)
            if suits_in_kind(volume, claim) and is_available(volume, claim)
        ]
        arranged.append((claim, FreeVolumes(suiting, len(waiting))))
    return _Prepared(claims, tuple(arranged))


def _bound(claims: PodClaims, view: View) -> tuple[Array, Array]:
    """Where the first claim that does not hold conflicts with the node, and where its volume is not there."""
    conflict, missing = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    for claim in claims.bound:
        volume = view.stock.volume(claim.volume)
        if volume is None:
            missing = ~conflict
            break
        conflict |= ~volume_fits(volume, view)
    return conflict, missing


def _unmatched(prepared: _Prepared, stock: Stock, view: View) -> list[tuple[PersistentVolumeClaim, Array]]:
    """The claims that find no volume, and where."""
    numbers: dict[str, int] = {}
    taken: list[Array] = []
    found = []
    for claim, free in prepared.to_match:
        chosen = np.full(view.count, NONE)
        looking = np.ones(view.count, np.bool_)
        for volume in stock.held_for(claim):
            if suits_in_kind(volume, claim):
                number = numbers.setdefault(volume.name, len(numbers))
                here = looking & ~_is_taken(taken, number, view)
                chosen[here & terms_fit(volume.required, view)] = number
                looking &= ~here
        if looking.any() and free.volumes:
            known = np.array([numbers.setdefault(one.name, len(numbers)) for one in free.volumes])
            places = {number: place for place, number in enumerate(known.tolist())}
            as_places = [_translated(one, places) for one in taken]
            best = free.best(view, as_places)
            pick = looking & (best != NONE)
            chosen[pick] = known[best[pick]]
        taken.append(chosen)
        found.append((claim, chosen == NONE))
    return found


def _is_taken(taken: Sequence[Array], number: int, view: View) -> Array:
    found = np.zeros(view.count, np.bool_)
    for one in taken:
        found |= one == number
    return found


def _translated(taken: Array, places: dict[int, int]) -> Array:
    """Numbers as places in another arrangement; one that is not in it is taken from nobody."""
    return np.array([places.get(number, _NOWHERE) for number in taken.tolist()], np.int64)


_NOWHERE = -2


def _cannot_make(claim: PersistentVolumeClaim, stock: Stock, view: View) -> tuple[Array, Array]:
    """Where no volume can be made for the claim, and where there is no room for it."""
    nowhere, everywhere = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
    found = stock.storage_class(claim.class_name)
    assert found is not None, f"{claim.key} waits without a class"
    if found.provisioner in ("", NO_PROVISIONER):
        return everywhere, nowhere
    unfit = nowhere
    if found.allowed:
        allowed = np.zeros(view.count, np.bool_)
        for term in found.allowed:
            if term:
                allowed |= all_hold(term, view)
        unfit = ~allowed
    if claim.request_bytes is None or not stock.tracks_capacity(found.provisioner):
        return unfit, nowhere
    room = np.zeros(view.count, np.bool_)
    for one in stock.capacities(found.name):
        if (
            one.limit_bytes is not None
            and one.limit_bytes >= claim.request_bytes
            and one.topology is not None
        ):
            room |= selects(one.topology, view)
    return unfit, ~unfit & ~room
