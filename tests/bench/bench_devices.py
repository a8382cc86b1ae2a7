"""Pods with devices, at 5,000 nodes of eight devices each: a claim for each pod, or an extended resource of a class.

Each decision is followed by its placement, as in a job that grows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.kube.decode import devices
from policysched.model.pods import Pod
from tests.bench.clusters import DEFAULT, FACTS, NODES, NOW_NS, cluster, program
from tests.bench.measuring import Row, median_s, shown
from tests.builders import pod
from tests.devices import DRIVER, asking, claim_manifest, claiming, class_manifest, gpu, slice_manifest

_BOUND, _ASKED = 10_000, 60
_A_NODE = 8
_CARD = "example.com/card"
_BIG = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'
Spec = Mapping[str, Any]


def measure() -> Iterable[Row]:
    claims = {
        "a claim of its own": asking(),
        "a claim of its own with a selector": asking("r", _BIG),
        "a claim of its own for four devices": asking(count=4),
    }
    for words, request in claims.items():
        seconds = _decision_s(_with_claims(request))
        yield Row(f"decision and assume, {words}, 5,000 nodes with 8 devices each", shown(seconds), "1 ms")
    seconds = _decision_s(_with_resources)
    words = "an extended resource that a class stands for"
    yield Row(f"decision and assume, {words}, 5,000 nodes with 8 devices each", shown(seconds), "1 ms")


def _with_claims(request: Spec) -> Callable[[ClusterCache, str], Pod]:
    def made(cache: ClusterCache, name: str) -> Pod:
        cache.put_device_object(devices.decode_resource_claim(claim_manifest(name, dict(request))))
        return pod(name, cpu="100m", memory="64Mi", image="app-1:1", spec=claiming(name))

    return made


def _with_resources(cache: ClusterCache, name: str) -> Pod:
    return pod(name, cpu="100m", memory="64Mi", image="app-1:1", resources={_CARD: "1"})


def _decision_s(made: Callable[[ClusterCache, str], Pod]) -> float:
    cache = world_with_devices()
    plan, evaluator = compile_program(program(DEFAULT)), Evaluator(cache)
    evaluator.build_columns(plan)
    waiting = [made(cache, f"job-{index}") for index in range(_ASKED + 2)]

    def decide() -> None:
        pending_pod = waiting.pop()
        verdict = evaluator.evaluate(plan, pending_pod, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected is not None, (
            f"{pending_pod.full_name} found no node: {verdict.reason_counts()}"
        )
        needs = evaluator.prebind_requirements(
            plan, pending_pod, verdict.selected, now_ns=NOW_NS, facts=FACTS, samples={}
        )
        assert needs is not None, f"{pending_pod.full_name} needs nothing on {verdict.selected}"
        cache.assume(pending_pod, verdict.selected)
        cache.devices.reserve(pending_pod.uid, needs.devices, 1)

    decide()
    decide()
    return median_s(decide, _ASKED)


def world_with_devices() -> ClusterCache:
    """Every node has eight devices, half of them big."""
    cache = cluster(pods=_BOUND)
    cache.put_device_object(devices.decode_device_class(class_manifest("gpu", extendedResourceName=_CARD)))
    for index in range(NODES):
        gpus = [
            gpu(f"g{place}", capacity={"memory": "80Gi" if place % 2 else "40Gi"}) for place in range(_A_NODE)
        ]
        cache.put_device_object(devices.decode_resource_slice(slice_manifest(f"node-{index}", *gpus)))
    return cache
