"""A short soak run: memory is flat, and a small leak is reported."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.cluster.cache import ClusterCache
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from tests.soak.flatness import flatness
from tests.soak.held_memory import held_bytes
from tests.soak.world import Soak, judge

SPAN_S = 1_200.0
"""By then the caches are full, and a leak of all deleted pods is well beyond the noise."""


def run_soak(span_s: float, planted: AbstractContextManager[Any] | None = None) -> Soak:
    soak = Soak(span_s)
    if planted is None:
        soak.run()
    else:
        with planted:
            soak.run()
    return soak


def deleted_pods_are_kept() -> AbstractContextManager[Any]:
    drop_pod = ClusterCache.drop_pod

    def drop_and_keep(self: ClusterCache, uid: PodUid) -> Any:
        gone_pods: list[ObservedPod | None] = self.__dict__.setdefault("gone_pods", [])
        gone_pods.append(self.pods.get(uid))
        return drop_pod(self, uid)

    return patch.object(ClusterCache, "drop_pod", drop_and_keep)


def test_memory_is_flat_after_some_minutes_of_changes() -> None:
    clean = run_soak(SPAN_S)

    assert clean.readings[-1].bound > 50
    assert judge(clean.readings).flat, (judge(clean.readings), clean.grown)


def test_a_leak_is_reported_with_its_path() -> None:
    leaking = run_soak(SPAN_S, deleted_pods_are_kept())

    assert not judge(leaking.readings).flat
    assert any("gone_pods" in path for path in leaking.grown), leaking.grown


def test_a_level_line_with_a_few_outliers_is_flat_and_a_rising_one_is_not() -> None:
    noise = [(at * 37) % 11 * 1_000 + (200_000 if at % 9 == 4 else 0) for at in range(30)]

    level = flatness([(at * 120.0, 1_000_000 + extra) for at, extra in enumerate(noise)])
    rising = flatness([(at * 120.0, 1_000_000 + extra + 12_000 * at) for at, extra in enumerate(noise)])

    assert level.flat
    assert not rising.flat and rising.growth_bytes > 0.8 * 22 * 12_000


def test_an_object_counts_once_under_its_shortest_path_through_closures_and_methods() -> None:
    class Holder:
        def __init__(self, things: list[bytes]) -> None:
            self.things = things
            self.callback = lambda: things

    things = [b"x" * 1_000, b"y" * 2_000]
    holder = Holder(things)
    Holder.__module__ = "policysched.somewhere"  # objects of tests are skipped

    sizes = held_bytes({"app": holder, "twice": things})

    assert sizes["app.things[]"] + sizes["twice[]"] == sum(obj.__sizeof__() for obj in things)
