"""Which namespace sends the next bind: the one with the least use of places, counted by time, not by binds.

A bind that is answered after 0.45 s holds its place as long as 200 that are answered after 2 ms. If each namespace had as many
turns, hundreds that are so slow would have nearly all the time of all places. So a turn is charged with the time that binds of
the namespace took lately, at its end with what it took, and the next turn is that of the namespace whose charged time would be
least after it (fair queueing by virtual finish times). A namespace saves nothing while it has no binds, and owes one bind at most.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from policysched.kube.write.pending_binds import SLOW_AFTER_S, NamespaceBinds


class BindTurns:
    """Namespaces of one standing that have binds to send. If not `by_time`, in the order in which they joined."""

    def __init__(self, *, by_time: bool) -> None:
        self._by_time = by_time
        self._turns: list[tuple[float, int, NamespaceBinds]] = []  # sorted; the numbers are unique
        self._reached_s = 0.0  # the charged time of the namespace that had the last turn, before it

    def __len__(self) -> int:
        return len(self._turns)

    def in_order(self, *, newest: bool = False) -> Iterable[NamespaceBinds]:
        return (namespace for _, _, namespace in (reversed(self._turns) if newest else self._turns))

    def join(self, namespace: NamespaceBinds, number: int) -> None:
        """After those with an equal time that have a lower number."""
        least_s = self._reached_s
        namespace.charged_s = min(max(namespace.charged_s, least_s), least_s + SLOW_AFTER_S)
        namespace.turn = (
            namespace.charged_s + namespace.answer_s if self._by_time else 0.0,
            number,
            namespace,
        )
        insort(self._turns, namespace.turn)

    def leave(self, namespace: NamespaceBinds) -> None:
        assert namespace.turn is not None, f"{namespace.name} has no turn"
        del self._turns[bisect_left(self._turns, namespace.turn)]
        namespace.turn = None

    def begin(self, namespace: NamespaceBinds) -> None:
        """Its turn has come: it leaves."""
        self.leave(namespace)
        if namespace.charged_s > self._reached_s:
            self._reached_s = namespace.charged_s

    def move(self, namespace: NamespaceBinds) -> None:
        """What it was charged has changed."""
        if namespace.turn is not None and self._by_time:
            number = namespace.turn[1]
            self.leave(namespace)
            self.join(namespace, number)
