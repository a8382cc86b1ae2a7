"""Random changes of a cluster: nodes are added, changed and deleted; pods assumed, bound, withdrawn and deleted."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from tests.builders import pending, placed
from tests.evaluate.clusters import NODE_NAMES, ClusterRandom, random_node, random_pod, random_service

seeds = st.integers(0, 2**32 - 1)


def play(cache: ClusterCache, seed: int, changes: int) -> Iterator[None]:
    """Apply random changes to the cache; yields after each."""
    rng = ClusterRandom(seed)
    for number in range(changes):
        rng.choice(_CHANGES)(cache, rng, number)
        yield


def twin(cache: ClusterCache) -> ClusterCache:
    """A second cache with the same contents. A cache reports each change once: two evaluators cannot share it."""
    other = ClusterCache()
    for namespace in cache.namespaces.values():
        other.put_namespace(namespace)
    for selector_owner in cache.selector_owners.by_key.values():
        other.put_selector_owner(selector_owner)
    for node in cache.nodes.values():
        other.put_node(node)
    for pod in cache.pods.values():
        other.put_pod(pod)
    for placement in cache.ledger.unconfirmed:
        other.assume(placement.pod, placement.node)
    return other


def _put_node(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    cache.put_node(random_node(rng, rng.choice(NODE_NAMES)))


def _delete_node(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    cache.drop_node(NodeName(rng.choice(NODE_NAMES)))


def _assume_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.nodes:
        cache.assume(_new_pod(rng, number), rng.choice(sorted(cache.nodes)))


def _bind_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    cache.put_pod(placed(_new_pod(rng, number), rng.choice(NODE_NAMES)))


def _withdraw_assumed_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.ledger.unconfirmed:
        cache.withdraw(rng.choice(cache.ledger.unconfirmed).pod.uid)


def _delete_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.pods:
        cache.drop_pod(PodUid(rng.choice(sorted(cache.pods))))


def _put_service(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    cache.put_selector_owner(random_service(rng, rng.randrange(4)))


def _delete_selector_owner(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.selector_owners.by_key:
        cache.drop_selector_owner(*rng.choice(sorted(cache.selector_owners.by_key)))


def _add_pending_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    cache.put_pod(pending(_new_pod(rng, number)))


def _terminate_pod(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.pods:
        cache.put_pod(replace(cache.pods[rng.choice(sorted(cache.pods))], deleting=True))


def _change_readiness(cache: ClusterCache, rng: ClusterRandom, number: int) -> None:
    if cache.pods:
        observed = cache.pods[rng.choice(sorted(cache.pods))]
        ready = observed.node is not None and not observed.pod.ready
        cache.put_pod(replace(observed, pod=replace(observed.pod, ready=ready)))


def _new_pod(rng: ClusterRandom, number: int) -> Pod:
    return random_pod(rng, f"new-{number}")


_CHANGES: tuple[Callable[[ClusterCache, ClusterRandom, int], None], ...] = (
    _put_node,
    _delete_node,
    _assume_pod,
    _assume_pod,
    _bind_pod,
    _withdraw_assumed_pod,
    _delete_pod,
    _add_pending_pod,
    _terminate_pod,
    _change_readiness,
    _put_service,
    _delete_selector_owner,
)
