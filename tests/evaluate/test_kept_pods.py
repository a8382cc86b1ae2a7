"""Large pods that evaluations keep count by their size: a tenant's pods that are gone do not fill the memory."""

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from policysched.evaluate import evaluation_cache
from policysched.evaluate.evaluation_cache import EvaluationCache
from policysched.model.pods import QueuedPodInfo
from tests.builders import node, pod, world
from tests.evaluate.test_pod_affinity import Harness
from tests.hostile import REQUIRED

CACHE_BYTES, PODS, CHARACTERS = 2**20, 40, 100_000


def many_values(number: int) -> Mapping[str, Any]:
    values = [f"value-{number}-{index}" for index in range(3_000)]
    requirement = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: terms}}}}


SHAPES: Mapping[str, Callable[[int], tuple[Mapping[str, Any], ...]]] = {
    "an annotation": lambda number: (
        {"cpu": f"{number}m", "annotations": {"large": f"{number}" + "x" * CHARACTERS}},
    ),
    "labels": lambda number: ({"cpu": f"{number}m", "labels": {f"l{number}-{i}": "" for i in range(1_500)}},),
    "values of a selector": lambda number: (many_values(number),),
    "an annotation, before a small pod of the same evaluation": lambda number: (
        {"cpu": f"{number}m", "annotations": {"large": f"{number}" + "x" * CHARACTERS}},
        {"cpu": f"{number}m"},
    ),
    "an annotation, after a small pod of the same evaluation": lambda number: (
        {"cpu": f"{number}m"},
        {"cpu": f"{number}m", "annotations": {"large": f"{number}" + "x" * CHARACTERS}},
    ),
}


def kept_bytes(shape: str) -> int:
    """What stays allocated after decisions about pods that are gone."""
    harness = Harness(world([node(f"n{index}", cpu="64") for index in range(4)]))
    harness.evaluator.build_columns(harness.plan)
    harness.selected("warm")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, PODS + 1):
            for index, manifest in enumerate(SHAPES[shape](number)):
                made = pod(f"p{number}-{index}", **manifest)
                facts = QueuedPodInfo(0, 0)
                harness.evaluator.evaluate(harness.plan, made, now_ns=0, facts=facts, samples={})
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluations_count_the_pods_that_they_keep(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_cache, "_CACHE_BYTES_MAX", CACHE_BYTES)

    assert kept_bytes(shape) < 2 * CACHE_BYTES


def test_evaluations_whose_last_pod_is_not_weighed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_cache, "_CACHE_BYTES_MAX", CACHE_BYTES)
    monkeypatch.setattr(EvaluationCache, "_read", lambda *_: None)

    assert kept_bytes("an annotation, after a small pod of the same evaluation") > 2 * CACHE_BYTES
