"""Volumes that CSI drivers can attach: counted once a distinct set of volumes in use, and remembered.

Only nodes whose CSINode limits one of the pod's drivers are looked at.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.claims import not_found
from policysched.cluster.objects import Attachment, ClaimUse, Mount, Pod
from policysched.cluster.volumes import Stock
from policysched.plan.column_kinds import Attached, AttachmentSet, InUse, VolumeLimit, VolumesInUse
from policysched.plan.columns import Array
from policysched.plan.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.plan.view import View

_TOO_MANY = "node(s) exceed max volume count"


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return _Filter(pod) if pod.claims or pod.mounts else None


class _Filter(PlainFilter):
    touch = Touch.NODE | Touch.USAGE | Touch.VOLUMES
    reason = _TOO_MANY
    resolvable = True

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    def refused(self, view: View) -> Array:
        if self._absent(view) is not None:
            return np.ones(view.count, np.bool_)
        found = np.zeros(view.count, np.bool_)
        own = view.stock.mounts_of(self._pod)
        limits = {driver: view.column(VolumeLimit(driver)) for driver in {mount.driver for mount in own}}
        if not any(limit.any() for limit in limits.values()):
            return found
        in_use, attachments = view.column(VolumesInUse()), view.column(AttachmentSet())
        limited = np.logical_or.reduce([limit > 0 for limit in limits.values()])
        pairs = np.stack((in_use[limited], attachments[limited]))
        distinct, which = np.unique(pairs, axis=1, return_inverse=True)
        counts = [self._counts_with(own, view, *pair) for pair in distinct.T.tolist()]
        for driver, limit in limits.items():
            there = limit[limited]
            wanted = np.array([one.get(driver, 0) for one in counts], np.int64)[which.reshape(-1)]
            found[limited] |= (there > 0) & (wanted >= there)
        return found

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self._absent(view) or _TOO_MANY, self.refused(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self._absent(view) is not None)

    def fingerprint(self, view: View) -> Hashable:
        return self._absent(view), view.stock.mounts_stamp

    def _absent(self, view: View) -> str | None:
        for use in self._pod.claims:
            if view.stock.claim(use.claim) is None:
                words = not_found("persistentvolumeclaim", use.claim.name)
                return f"looking up PVC {use.claim.namespace}/{use.claim.name}: {words}"
        return None

    def _counts_with(
        self, own: frozenset[Mount], view: View, in_use: int, attachments: int
    ) -> dict[str, int]:
        """How many volumes of each driver would be attached with the pod's, of drivers of which it brings a new one."""
        attached = _attached(view, in_use, attachments)
        new = Counter(mount.driver for mount in own - attached.of_pods)
        return {driver: attached.counts[driver] + count for driver, count in new.items()}


_MANY_KNOWN = 20_000


def _attached(view: View, in_use: int, attachments: int) -> Attached:
    """Remembered with the codes, for all pods, until other volumes may stand behind some claim."""
    codes, stamp = view.codes, view.stock.mounts_stamp
    if codes.attached_as_of != stamp or len(codes.attached) > _MANY_KNOWN:
        codes.attached_as_of = stamp
        codes.attached.clear()
    found = codes.attached.get((in_use, attachments))
    if found is None:
        found = codes.attached[in_use, attachments] = _count(
            codes.in_use.values[in_use], codes.attachments.values[attachments], view.stock
        )
    return found


def _count(in_use: InUse, attachments: frozenset[Attachment], stock: Stock) -> Attached:
    of_pods = set[Mount]()
    for one in in_use:
        mount = one if isinstance(one, Mount) else _of_claim(one, stock)
        if mount is not None:
            of_pods.add(mount)
    counts = Counter(mount.driver for mount in of_pods)
    for told in {found for one in attachments if (found := _told(one, stock)) is not None}:
        counts[told.driver] += told not in of_pods
    return Attached(frozenset(of_pods), counts)


def _of_claim(use: ClaimUse, stock: Stock) -> Mount | None:
    claim = stock.claim(use.claim)
    if claim is None or (use.made_for is not None and use.made_for != claim.controller_uid):
        return None
    return stock.mount(claim)


def _told(one: Attachment, stock: Stock) -> Mount | None:
    volume = stock.volume(one.volume)
    if volume is None or volume.mount is None or not volume.is_csi:
        return None
    return Mount(one.attacher, volume.mount.handle)
