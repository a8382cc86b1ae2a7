"""A short soak: memory is flat, and a small leak is not."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.cluster.cache import ClusterCache
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from tests.soak.flatness import flatness
from tests.soak.holdings import holdings
from tests.soak.world import Soak, judged

SHORT_S = 840.0


def soaked(planted: AbstractContextManager[Any] | None = None) -> Soak:
    found = Soak(SHORT_S)
    if planted is None:
        found.run()
    else:
        with planted:
            found.run()
    return found


def pods_are_kept() -> AbstractContextManager[Any]:
    drop_pod = ClusterCache.drop_pod

    def hoarding(self: ClusterCache, uid: PodUid) -> Any:
        there: list[ObservedPod | None] = self.__dict__.setdefault("gone_pods", [])
        there.append(self.pods.get(uid))
        return drop_pod(self, uid)

    return patch.object(ClusterCache, "drop_pod", hoarding)


def test_some_minutes_of_churn_leave_nothing_behind() -> None:
    clean = soaked()

    assert clean.readings[-1].bound > 50
    assert judged(clean.readings).flat, (judged(clean.readings), clean.grown)


def test_a_leak_is_noticed_and_named() -> None:
    leaking = soaked(pods_are_kept())

    assert not judged(leaking.readings).flat
    assert any("gone_pods" in road for road in leaking.grown), leaking.grown


def test_a_level_line_with_a_few_outliers_is_flat_and_a_rising_one_is_not() -> None:
    noise = [(at * 37) % 11 * 1_000 + (200_000 if at % 9 == 4 else 0) for at in range(30)]

    level = flatness([(at * 120.0, 1_000_000 + extra) for at, extra in enumerate(noise)])
    rising = flatness([(at * 120.0, 1_000_000 + extra + 5_000 * at) for at, extra in enumerate(noise)])

    assert level.flat
    assert not rising.flat and rising.growth_bytes > 0.8 * 22 * 5_000


def test_what_is_held_counts_once_by_the_shortest_road_through_closures_and_methods() -> None:
    class Holder:
        def __init__(self, things: list[bytes]) -> None:
            self.things = things
            self.told = lambda: things

    things = [b"x" * 1_000, b"y" * 2_000]
    holder = Holder(things)
    Holder.__module__ = "policysched.somewhere"  # what tests hold is passed over

    found = holdings({"app": holder, "twice": things})

    assert found["app.things[]"] + found["twice[]"] == sum(one.__sizeof__() for one in things)
