"""Evictions that are not answered yet, and the pods that leave because of them.

decided ──accepted──► requested ──the watch shows it──► forgotten
   └──refused──► forgotten
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.commands import AbandonEviction, Victim
from policysched.scheduler.queue.gang_registry import GangId


@dataclass(slots=True)
class Eviction:
    """An `Evict` in flight.

    `terminating`: victims that were terminating already. `requeue_wanted`: an event arrived
    meanwhile that may help the pod. `gang_victims`: victims of answered evictions for other members
    of its gang. `first_names` of the victims are for the log, `warnings` for the policy. `rest_of`: the gang whose bound members
    the victims are. `counted`: those that the breaker has counted.
    """

    pod: Pod
    node: NodeName | None
    decided_ns: int
    victims: dict[PodUid, Victim] = field(default_factory=dict)
    terminating: set[PodUid] = field(default_factory=set)
    requeue_wanted: bool = False
    gang_victims: set[PodUid] = field(default_factory=set)
    first_names: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rest_of: GangId | None = None
    counted: set[PodUid] = field(default_factory=set)


def abandoned(eviction: Eviction | None) -> list[AbandonEviction]:
    """Its preemptor is gone, if it had one. The rest of a gang is evicted nevertheless."""
    return [] if eviction is None or eviction.node is None else [AbandonEviction(eviction.pod.uid)]


class LeavingPods:
    """`requested`: its deletion was accepted, and the watch has not shown it.

    A webhook of the preemptor's namespace can delay its evictions for as long as it likes, since the nomination comes first.
    So nobody of another namespace counts on an eviction that is not answered: it evicts the pod as well.
    """

    def __init__(self) -> None:
        self.requested: set[PodUid] = set()
        self._decided: dict[PodUid, list[str]] = {}  # with the namespaces of the preemptors

    def __contains__(self, uid: PodUid) -> bool:
        """Whether anybody evicts it."""
        return uid in self.requested or uid in self._decided

    def as_seen_by(self, namespace: str) -> Callable[[PodUid], bool]:
        """Whether preemptors of this namespace can count on it."""
        return lambda uid: self.is_leaving_for(uid, namespace)

    def is_leaving_for(self, uid: PodUid, namespace: str) -> bool:
        return uid in self.requested or namespace in self._decided.get(uid, ())

    def begin(self, eviction: Eviction) -> None:
        for uid in eviction.victims:
            self._decided.setdefault(uid, []).append(eviction.pod.namespace)

    def end(self, eviction: Eviction | None) -> None:
        if eviction is None:
            return
        for uid in eviction.victims:
            namespaces = self._decided[uid]
            namespaces.remove(eviction.pod.namespace)
            if not namespaces:
                del self._decided[uid]
