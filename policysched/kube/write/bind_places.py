"""How many bind requests may be open at once: of a namespace, of those that are not trusted, and of all."""

from policysched.kube.write.pending_binds import NamespaceBinds, PendingBind

SPARE_SHARE = 2
"""Binds that a namespace may have active to get a spare place, with it."""


class BindPlaces:
    """Counts open requests. Those that hang are throttled, too, and leave their places to others; so do retries."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.share = max(1, workers // 4)
        self.spare = self.share
        self.requests_max = 2 * workers
        self.unknown_share = 1
        self.throttled_max = max(1, workers // 2)
        self._active = 0
        self._throttled = 0
        self._untrusted = 0

    @property
    def is_calm(self) -> bool:
        """No more requests hang than may be throttled."""
        return self._throttled <= self.throttled_max

    @property
    def _placed(self) -> int:
        return self._active - self._throttled

    @property
    def free_for_trusted(self) -> bool:
        return self._placed < self.workers + self.spare

    @property
    def free_for_untrusted(self) -> bool:
        return self._placed < self.workers and self._untrusted < self.workers

    @property
    def free_for_throttled(self) -> bool:
        return self._throttled < self.throttled_max and self._untrusted < self.workers

    def share_of(self, *, is_known: bool) -> int:
        """How many first attempts a namespace may have open now. `is_known`: it was prompt lately."""
        if self._placed >= self.workers:
            return SPARE_SHARE
        known_share = self.workers if self.is_calm else max(1, self.workers // 12)
        return known_share if is_known else self.unknown_share

    def give_first(self, pending: PendingBind, namespace: NamespaceBinds, *, untrusted: bool) -> None:
        pending.throttled, pending.untrusted = False, untrusted
        namespace.active += 1
        self._active += 1
        self._untrusted += untrusted

    def give_throttled(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        self.give_first(pending, namespace, untrusted=False)
        self.throttle(pending, namespace)

    def throttle(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        self._untrusted += not pending.untrusted
        pending.throttled = pending.untrusted = True
        namespace.throttled_active += 1
        self._throttled += 1

    def give_back(self, pending: PendingBind, namespace: NamespaceBinds) -> None:
        namespace.active -= 1
        self._active -= 1
        self._untrusted -= pending.untrusted
        if pending.throttled:
            namespace.throttled_active -= 1
            self._throttled -= 1
