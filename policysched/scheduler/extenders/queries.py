"""What kube-scheduler asks through the extender protocol, and what is answered, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod


class ExtenderServerError(Exception):
    """Why there is no answer, as a message for the client. `ready` False: retry in a moment."""

    def __init__(self, reason: str, *, ready: bool) -> None:
        super().__init__(reason)
        self.ready = ready


@dataclass(frozen=True, slots=True)
class ExtenderQuery:
    """A pod and the nodes to evaluate. `nodes` None: only names were sent."""

    policy: str
    pod: Pod
    node_names: tuple[NodeName, ...]
    nodes: tuple[Node, ...] | None


@dataclass(frozen=True, slots=True)
class FilterResponse:
    """Each queried node is in one of the three fields. `unresolvable`: preemption would not help.

    The messages equal those of the scheduler's own events, which show values that differ from node
    to node as `…`.
    """

    passed: tuple[NodeName, ...]
    failed: Mapping[NodeName, str]
    unresolvable: Mapping[NodeName, str]


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """Victims on one node; `pods` holds those that were sent as full objects."""

    uids: tuple[PodUid, ...]
    pods: Mapping[PodUid, Pod]
