"""Pods with a volume claim each, at 5,000 nodes and 10,000 bound pods, a third of them with volumes.

Each decision is followed by its placement, as in a StatefulSet that grows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import DEFAULT, FACTS, NODES, NOW_NS, cluster, program
from tests.bench.measuring import Row, median_s, shown
from tests.builders import placed, pod
from tests.volumes import capacity, claim, csi_driver, csi_node, storage_class, using, volume

_BOUND, _ASKED = 10_000, 300
_DRIVER = "csi.example.com"
_ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class _Case:
    """`claim_of` creates the objects of the n-th pod's claim; `limits`: whether CSINodes have
    attach limits.
    """

    claim_of: Callable[[ClusterCache, str], None]
    limits: bool
    target: str
    local_volumes: int = 0


def _bound_in_a_zone(cache: ClusterCache, name: str) -> None:
    cache.put_storage(claim(name, of_class="made", bound_to=f"v-{name}"))
    term = {"key": _ZONE, "operator": "In", "values": [f"zone-{sum(name.encode()) % 3}"]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    bound = volume(
        f"v-{name}", of_class="made", claim=name, claim_uid=f"uid-{name}", spec={"nodeAffinity": terms}
    )
    cache.put_storage(bound)


def _bound_anywhere(cache: ClusterCache, name: str) -> None:
    cache.put_storage(claim(name, of_class="made", bound_to=f"v-{name}"))
    cache.put_storage(
        volume(f"v-{name}", of_class="made", claim=name, claim_uid=f"uid-{name}", handle=f"h-{name}")
    )


def _to_be_made(cache: ClusterCache, name: str) -> None:
    cache.put_storage(claim(name, of_class="made"))


def _to_be_found(cache: ClusterCache, name: str) -> None:
    cache.put_storage(claim(name, of_class="local"))


_CASES: Mapping[str, _Case] = {
    "bound in a zone": _Case(_bound_in_a_zone, limits=True, target="1 ms"),
    "to be made, with capacity in zones": _Case(_to_be_made, limits=True, target="1 ms"),
    "to be found among 5,000 local ones": _Case(
        _to_be_found, limits=True, target="1 ms", local_volumes=NODES
    ),
    "bound anywhere, limits alone": _Case(_bound_anywhere, limits=True, target="300 µs"),
    "bound anywhere, no limits": _Case(_bound_anywhere, limits=False, target="300 µs"),
}


def measure() -> Iterable[Row]:
    for words, case in _CASES.items():
        seconds = _decision_s(case)
        yield Row(
            f"decision and assume, a claim {words}, 5,000 nodes, 10,000 pods", shown(seconds), case.target
        )


def _decision_s(case: _Case) -> float:
    cache = world_with_volumes(limits=case.limits, local_volumes=case.local_volumes)
    plan, evaluator = compile_program(program(DEFAULT)), Evaluator(cache)
    evaluator.build_columns(plan)
    names = [f"db-{index}" for index in range(_ASKED + 2)]
    for name in names:
        case.claim_of(cache, name)
    waiting = [pod(name, cpu="100m", memory="64Mi", image="app-1:1", spec=using(name)) for name in names]

    def decide() -> None:
        pending_pod = waiting.pop()
        verdict = evaluator.evaluate(plan, pending_pod, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected is not None, (
            f"{pending_pod.full_name} found no node: {verdict.reason_counts()}"
        )
        needs = evaluator.prebind_requirements(
            plan, pending_pod, verdict.selected, now_ns=NOW_NS, facts=FACTS, samples={}
        )
        cache.assume(pending_pod, verdict.selected)
        if needs is not None and needs.volumes is not None:
            cache.volumes.reserve(pending_pod.uid, needs.volumes.choice, verdict.selected)

    decide()
    decide()
    return median_s(decide, _ASKED)


def world_with_volumes(*, limits: bool, local_volumes: int = 0) -> ClusterCache:
    """A third of the bound pods have a bound claim; each zone has capacity for volumes of the class
    `made`.
    """
    cache = cluster(pods=2 * _BOUND // 3)
    cache.put_storage(storage_class("made", _DRIVER))
    cache.put_storage(storage_class("local"))
    cache.put_storage(csi_driver(_DRIVER))
    for zone in range(3):
        cache.put_storage(capacity(f"room-{zone}", of_class="made", size="1Ti", zone=f"zone-{zone}"))
    for index in range(NODES if limits else 0):
        cache.put_csi_node(csi_node(f"node-{index}", limits={_DRIVER: 25}))
    for index in range(local_volumes):
        cache.put_storage(volume(f"local-{index}", node=f"node-{index}", phase="Available"))
    for index in range(_BOUND // 3):
        _bound_anywhere(cache, f"held-{index}")
        keeper = pod(f"keeper-{index}", cpu="100m", memory="256Mi", spec=using(f"held-{index}"))
        cache.put_pod(placed(keeper, f"node-{index % NODES}"))
    return cache
