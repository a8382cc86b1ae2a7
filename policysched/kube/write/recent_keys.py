"""Keys that were noted lately, such as namespaces that were slow: a slow webhook can be prompt now and then."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class RecentKeys(Generic[Key]):
    """The keys noted in the last `kept_s`, as of the last `expire`. `now_s` must not decrease."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._noted_s: OrderedDict[Key, float] = OrderedDict()  # the oldest first
        self._expires_s = float("inf")  # no entry expires before this

    def __contains__(self, key: object) -> bool:
        return key in self._noted_s

    def note(self, key: Key, now_s: float) -> None:
        if not self._noted_s:
            self._expires_s = now_s + self._kept_s
        self._noted_s[key] = now_s
        self._noted_s.move_to_end(key)

    def forget(self, key: Key) -> None:
        self._noted_s.pop(key, None)

    def expire(self, now_s: float) -> list[Key]:
        """Forget and return the keys that were noted longer than `kept_s` ago."""
        expired = list[Key]()
        if now_s <= self._expires_s:
            return expired
        while self._noted_s and now_s - next(iter(self._noted_s.values())) > self._kept_s:
            expired.append(self._noted_s.popitem(last=False)[0])
        self._expires_s = next(iter(self._noted_s.values()), float("inf")) + self._kept_s
        return expired
