"""The namespaces of a state's values, so that the pods of one cannot make the state forget those of all others."""

from collections.abc import Iterable

from policysched.model.identifiers import NodeName
from policysched.scheduler.queue.movable_heap import MovableHeap

ValueId = tuple[str, NodeName]
"""A key and a node."""

_SAVED = ""


class StateNamespaces:
    """A value is of the namespace whose pod updated it first: nobody takes it over by updating it. Values of an earlier
    process (`saved`, least recently updated first) count as one namespace, since they are saved without theirs."""

    def __init__(self, saved: Iterable[ValueId] = ()) -> None:
        self._owners = dict.fromkeys(saved, _SAVED)
        self._values = {_SAVED: dict.fromkeys(self._owners)}  # of each, least recently updated first
        self._most: MovableHeap[str] = MovableHeap()
        self._most.put(_SAVED, -len(self._owners))

    def updated(self, value: ValueId, namespace: str) -> None:
        """A new value is of the namespace."""
        owner = self._owners.setdefault(value, namespace)
        values = self._values.setdefault(owner, {})
        if value in values:
            del values[value]
        else:
            self._most.put(owner, -len(values) - 1)
        values[value] = None

    def dropped(self, value: ValueId) -> None:
        owner = self._owners.pop(value)
        values = self._values[owner]
        del values[value]
        if values:
            self._most.put(owner, -len(values))
        else:
            del self._values[owner]
            self._most.discard(owner)

    def next_to_drop(self) -> ValueId:
        """Of the namespace with the most values the least recently updated one."""
        namespace = self._most.first()
        assert namespace is not None, "a state without values drops none"
        return next(iter(self._values[namespace]))
