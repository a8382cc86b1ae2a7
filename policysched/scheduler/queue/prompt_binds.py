"""The binds in flight that decisions wait for, by namespace.

While there are more of them than `binds_in_flight_max`, a namespace with a tenth of that or more waits for answers, and others go
on. So nobody waits for the binds of one namespace whose webhook is slow.
"""

from collections import Counter
from collections.abc import Iterator

from policysched.model.identifiers import PodUid

_SHARE = 10


class PromptBinds:
    """Those that are sent, without an answer, and not delayed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._namespace_max = max(1, count_max // _SHARE)
        self._namespaces: dict[PodUid, str] = {}
        self._counts: Counter[str] = Counter()  # without zeros

    def __iter__(self) -> Iterator[PodUid]:
        return iter(self._namespaces)

    def add(self, uid: PodUid, namespace: str) -> None:
        if uid not in self._namespaces:
            self._namespaces[uid] = namespace
            self._counts[namespace] += 1

    def discard(self, uid: PodUid) -> None:
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]

    @property
    def are_too_many(self) -> bool:
        return len(self._namespaces) > self._count_max

    def are_too_many_of(self, namespace: str) -> bool:
        """Whether the namespace waits for answers."""
        return self.are_too_many and self._counts[namespace] >= self._namespace_max
