"""What was seen of namespaces not long ago, such as who was slow: a webhook can be prompt now and then."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

SLOW_FOR_S = 60.0
"""How long a namespace counts as one that was slow lately, since it was last seen so."""


Namespace = TypeVar("Namespace", bound=Hashable)
"""Any key that stands for whoever can make requests slow."""


class RecentNamespaces(Generic[Namespace]):
    """Those that were noted in the last `kept_s`, as of the last `expire`. Times do not go back."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._noted_s: OrderedDict[Namespace, float] = OrderedDict()  # the oldest first
        self._expires_s = float("inf")  # nothing does before

    def __contains__(self, namespace: object) -> bool:
        return namespace in self._noted_s

    def note(self, namespace: Namespace, now_s: float) -> None:
        if not self._noted_s:
            self._expires_s = now_s + self._kept_s
        self._noted_s[namespace] = now_s
        self._noted_s.move_to_end(namespace)

    def forget(self, namespace: Namespace) -> None:
        self._noted_s.pop(namespace, None)

    def expire(self, now_s: float) -> list[Namespace]:
        """Forgets those that were noted longer ago, and returns them."""
        expired = list[Namespace]()
        if now_s <= self._expires_s:
            return expired
        while self._noted_s and now_s - next(iter(self._noted_s.values())) > self._kept_s:
            expired.append(self._noted_s.popitem(last=False)[0])
        self._expires_s = next(iter(self._noted_s.values()), float("inf")) + self._kept_s
        return expired
