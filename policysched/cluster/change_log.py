"""A log of changed keys, for caches that catch up with the changes since a version that they have
applied."""

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

KEYS_MAX = 20_000


class ChangeLog(Generic[Key]):
    """The last change of each key. `version` grows by one with each change.

    The log is bounded: beyond `keys_max` keys it forgets the older half. A reader at a version before
    those that are left gets None and has to start over; one that keeps up never does.
    """

    __slots__ = ("_oldest_version", "_versions", "version")

    def __init__(self) -> None:
        self.version = 0
        self._versions: dict[Key, int] = {}  # of the last change of each key, oldest first
        self._oldest_version = 0  # changes up to here are forgotten

    def __len__(self) -> int:
        return len(self._versions)

    def record(self, key: Key, *, keys_max: int = KEYS_MAX) -> None:
        self.version += 1
        self._versions.pop(key, None)
        self._versions[key] = self.version
        if len(self._versions) > keys_max:
            self._forget_older(len(self._versions) - keys_max // 2)

    def record_all(self) -> None:
        """Every key may have changed."""
        self.version += 1
        self._versions.clear()
        self._oldest_version = self.version

    def reaches(self, version: int) -> bool:
        """Whether it has all changes after the version."""
        return version >= self._oldest_version

    def since(self, version: int) -> list[Key] | None:
        """The keys that changed after the version, each once, the latest first. None: the log does
        not reach back that far."""
        if not self.reaches(version):
            return None
        keys = []
        for key in reversed(self._versions):
            if self._versions[key] <= version:
                break
            keys.append(key)
        return keys

    def _forget_older(self, count: int) -> None:
        for key in list(islice(self._versions, count)):
            self._oldest_version = self._versions.pop(key)
