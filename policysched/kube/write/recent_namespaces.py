"""Remembers for some time what namespaces did, such as being slow: a slow webhook can be prompt now and then."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

SLOW_FOR_S = 60.0
"""How long a namespace counts as slow lately after it was last slow."""


Namespace = TypeVar("Namespace", bound=Hashable)
"""Any key for whoever can make requests slow."""


class RecentNamespaces(Generic[Namespace]):
    """The namespaces noted in the last `kept_s`, as of the last `expire`. `now_s` must not decrease."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._noted_s: OrderedDict[Namespace, float] = OrderedDict()  # the oldest first
        self._expires_s = float("inf")  # no entry expires before this

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
        """Forget and return the namespaces that were noted longer than `kept_s` ago."""
        expired = list[Namespace]()
        if now_s <= self._expires_s:
            return expired
        while self._noted_s and now_s - next(iter(self._noted_s.values())) > self._kept_s:
            expired.append(self._noted_s.popitem(last=False)[0])
        self._expires_s = next(iter(self._noted_s.values()), float("inf")) + self._kept_s
        return expired
