"""A cluster that changes, one thing at a time: nodes come, change and go, pods are assumed, bound, withdrawn, deleted."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from tests.builders import pending, placed
from tests.evaluate.clusters import NODE_NAMES, Dice, random_node, random_pod, random_service

seeds = st.integers(0, 2**32 - 1)


def play(cache: ClusterCache, seed: int, changes: int) -> Iterator[None]:
    """Make changes to the cache; yields after each."""
    dice = Dice(seed)
    for number in range(changes):
        dice.choice(_CHANGES)(cache, dice, number)
        yield


def twin(cache: ClusterCache) -> ClusterCache:
    """Another cache that has seen the same. (A cache tells what changed once: two Evaluators cannot share one.)"""
    other = ClusterCache()
    for space in cache.namespaces.values():
        other.put_namespace(space)
    for one in cache.pod_sets.by_key.values():
        other.put_pod_set(one)
    for node in cache.nodes.values():
        other.put_node(node)
    for seen in cache.pods.values():
        other.put_pod(seen)
    for placement in cache.ledger.unconfirmed:
        other.assume(placement.pod, placement.node)
    return other


def _node_comes_or_changes(cache: ClusterCache, dice: Dice, number: int) -> None:
    cache.put_node(random_node(dice, dice.choice(NODE_NAMES)))


def _node_goes(cache: ClusterCache, dice: Dice, number: int) -> None:
    cache.drop_node(NodeName(dice.choice(NODE_NAMES)))


def _pod_is_assumed(cache: ClusterCache, dice: Dice, number: int) -> None:
    if cache.nodes:
        cache.assume(_newcomer(dice, number), dice.choice(sorted(cache.nodes)))


def _pod_is_bound(cache: ClusterCache, dice: Dice, number: int) -> None:
    cache.put_pod(placed(_newcomer(dice, number), dice.choice(NODE_NAMES)))


def _promise_is_withdrawn(cache: ClusterCache, dice: Dice, number: int) -> None:
    if cache.ledger.unconfirmed:
        cache.withdraw(dice.choice(cache.ledger.unconfirmed).pod.uid)


def _pod_goes(cache: ClusterCache, dice: Dice, number: int) -> None:
    if cache.pods:
        cache.drop_pod(PodUid(dice.choice(sorted(cache.pods))))


def _service_comes_or_changes(cache: ClusterCache, dice: Dice, number: int) -> None:
    cache.put_pod_set(random_service(dice, dice.randrange(4)))


def _service_or_controller_goes(cache: ClusterCache, dice: Dice, number: int) -> None:
    if cache.pod_sets.by_key:
        cache.drop_pod_set(*dice.choice(sorted(cache.pod_sets.by_key)))


def _pod_comes(cache: ClusterCache, dice: Dice, number: int) -> None:
    cache.put_pod(pending(_newcomer(dice, number)))


def _pod_is_to_end(cache: ClusterCache, dice: Dice, number: int) -> None:
    if cache.pods:
        cache.put_pod(replace(cache.pods[dice.choice(sorted(cache.pods))], deleting=True))


def _newcomer(dice: Dice, number: int) -> Pod:
    return random_pod(dice, f"newcomer-{number}")


_CHANGES: tuple[Callable[[ClusterCache, Dice, int], None], ...] = (
    _node_comes_or_changes,
    _node_goes,
    _pod_is_assumed,
    _pod_is_assumed,
    _pod_is_bound,
    _promise_is_withdrawn,
    _pod_goes,
    _pod_comes,
    _pod_is_to_end,
    _service_comes_or_changes,
    _service_or_controller_goes,
)
