"""What attempts of a gang that ended before their searches leave to the next ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.evaluate import TopologyDomain
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler.queue.entries import PendingPod


@dataclass(frozen=True, slots=True)
class KeptPlacement:
    """A node that was found for a member, with the victims there, and what it was found for: the node and its pods as they were.
    `is_local`: nothing else counts for it, so that it need not be evaluated again. `disruption`: what a candidate has beside its
    victims; `violations`: how many of these violated a budget."""

    pod: PendingPod
    spec: Pod
    node: Node
    pods: Mapping[PodUid, Pod]
    victims: tuple[Pod, ...]
    disruption: tuple[int, int, tuple[Any, ...]]
    violations: int
    is_local: bool
    found_ns: int


@dataclass(slots=True)
class SearchProgress:
    """`spared_victims`: in a row of attempts that ended in doubts about them; `beyond`: where these take back quota, victims that were
    more than is borrowed. `inside_ended`: the search among what is borrowed inside of entities is over, and this is the next one.
    `kept`: of the last search. `scope`: its domain, the namespace as it was, and the order of the members. `has_fitting`: all that fit
    without evictions are among them, or were. `failed_domains`: have no placement. `goes_on`: the search ended for others that wait.
    `placed_anew`: members whose victims violated more budgets than when they were chosen."""

    spared_victims: set[PodUid] = field(default_factory=set)
    beyond: frozenset[PodUid] = frozenset()
    inside_ended: bool = False
    scope: tuple[object, ...] = ()
    has_fitting: bool = False
    kept: list[KeptPlacement] = field(default_factory=list)
    failed_domains: set[TopologyDomain] = field(default_factory=set)
    goes_on: bool = False
    placed_anew: set[PodUid] = field(default_factory=set)
