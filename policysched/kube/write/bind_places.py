"""How many bind requests may be open at once: of one namespace, of those of its standing, and of all.

A request that hangs leaves its place to others and is throttled, as are retries of failing namespaces: a quarter of the workers
for one namespace, half for all. Beyond that it is surplus: it stays open only until another bind waits for it, is given up
then, and sent again as a throttled one. So requests that hang hold no more connections, and no more seats of the API server,
than there are, and a new namespace waits for as long as it takes to see that others hang: beside N new ones that hang
SLOW_AFTER_S for each `workers` of those before it.

Trusted namespaces always find `spare` places, SPARE_SHARE each, beside what begins to hang, the others a reserve beside
trusted ones that take almost too long.
"""

from collections import OrderedDict

from policysched.kube.write.pending_binds import NamespaceBinds, PendingBind, Standing

SPARE_SHARE = 2
"""Binds that a namespace may have active to get a spare place, with it."""

LEAVING_MAX = 12
"""So many surplus requests are given up before the first of them has ended."""


class BindPlaces:
    """Counts open requests."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.share = self.spare = max(1, workers // 4)
        self.reserve = max(1, workers // 8)
        self.throttled_max = max(1, workers // 2)
        self.unknown_share = 1
        self.requests_max = workers + self.spare + 2 * self.reserve + self.throttled_max
        self._placed = [0] * len(Standing)
        self._throttled = 0
        self._fallen = 0  # throttled ones that were trusted
        self._leaving = 0
        self._surplus: OrderedDict[PendingBind, None] = OrderedDict()

    @property
    def is_calm(self) -> bool:
        """Of those that were trusted, no more hang than may be throttled."""
        return self._fallen <= self.throttled_max

    def free_for(self, standing: Standing) -> bool:
        placed, of_standing = sum(self._placed), self._placed[standing]
        if standing is Standing.TRUSTED:
            total = self.workers + self.spare
            return of_standing < total and placed < total + 2 * self.reserve
        if placed >= self.workers + self.spare:
            return of_standing < self.reserve
        if standing is Standing.DOUBTFUL and of_standing >= self.workers // 2:
            return False
        return placed - self._placed[Standing.TRUSTED] < self.workers

    @property
    def free_for_throttled(self) -> bool:
        return self._throttled - len(self._surplus) - self._leaving < self.throttled_max

    def share_of(self, standing: Standing) -> int:
        """How many requests a namespace may have open now and begin another one with a first place."""
        if standing is Standing.UNKNOWN:
            return self.unknown_share
        share = self.workers if self.is_calm else max(1, self.workers // 12)
        if standing is Standing.DOUBTFUL:
            return min(self.share, share)
        is_spare = self._placed[standing] >= self.workers or sum(self._placed) >= self.workers + self.spare
        return SPARE_SHARE if is_spare else share

    def give(self, pending: PendingBind, namespace: NamespaceBinds, standing: Standing) -> None:
        pending.standing, pending.throttled, pending.is_leaving = standing, False, False
        namespace.active += 1
        self._placed[standing] += 1

    def give_throttled(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        pending.standing, pending.throttled, pending.is_leaving = Standing.UNKNOWN, True, False
        namespace.active += 1
        namespace.throttled_active += 1
        self._throttled += 1

    def note_hanging(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        """Its request leaves its place to others."""
        if pending.throttled:
            return
        if not self.free_for_throttled or namespace.throttled_active >= self.share:
            self._surplus[pending] = None
        pending.throttled = True
        self._placed[pending.standing] -= 1
        self._fallen += pending.standing is Standing.TRUSTED
        namespace.throttled_active += 1
        self._throttled += 1

    @property
    def has_surplus(self) -> bool:
        """Whether a request may be given up."""
        return bool(self._surplus) and self._leaving < LEAVING_MAX

    def surplus(self) -> PendingBind:
        """A request to give up: the oldest, so that each has as much time as there is."""
        pending = self._surplus.popitem(last=False)[0]
        pending.is_leaving = True
        self._leaving += 1
        return pending

    def give_back(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        namespace.active -= 1
        if not pending.throttled:
            self._placed[pending.standing] -= 1
            return
        namespace.throttled_active -= 1
        self._throttled -= 1
        self._fallen -= pending.standing is Standing.TRUSTED
        self._leaving -= pending.is_leaving
        self._surplus.pop(pending, None)
