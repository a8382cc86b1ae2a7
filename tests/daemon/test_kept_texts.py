"""What tenants and sources of metrics write is not kept for long: large texts, each different, do not fill the memory."""

import tracemalloc
from collections.abc import Callable

import pytest

from policysched.cluster import selector_owners
from policysched.cluster.disruption_budgets import DisruptionBudgets
from policysched.cluster.pod_index import compact_ended_pod
from policysched.cluster.selector_owners import SelectorOwners
from policysched.kube.decode.pod_resources import decode_pod_resources
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.records import parse_typed_value
from policysched.lang.types.units import parse_value
from policysched.metric_sources.series_join import instance_host
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.preemption.eviction_breaker import EvictionBreaker
from policysched.text import short_text_cache
from tests.builders import pod, service

CHARACTERS, COUNT = 100_000, 200
"""20 MB in all."""


def number(text: str) -> object:
    return parse_value(text, Type(TypeKind.BYTES), None)


def field_of_json(text: str) -> object:
    return parse_typed_value(f'{{"a": "{text}"}}', Type(TypeKind.STRING), None, "a")


def image_of_an_ended_pod(text: str) -> object:
    compact_ended_pod(pod("ended", spec={"containers": [{"name": "c", "image": text}]}))
    return None


def resources_of_a_pod(text: str) -> object:
    return decode_pod_resources(
        {"containers": [{"name": "c", "resources": {"requests": {f"example.com/{text}": "1"}}}]}, {}
    ).requests


def labels_of_a_pod_with_a_default_selector() -> Callable[[str], object]:
    owners = SelectorOwners()
    owners.put(service("web", app="web"))
    return lambda text: owners.default_selector(pod("gone", labels={"long": text}))


def labels_of_a_pod_that_could_be_a_victim() -> Callable[[str], object]:
    budgets = DisruptionBudgets()
    budgets.put(DisruptionBudget("default", "web", None, 1, frozenset()))
    return lambda text: budgets.selecting(pod("gone", labels={"long": text}))


def owner_of_a_pod_with_a_default_selector() -> Callable[[str], object]:
    owners = SelectorOwners()
    owners.put(service("web", app="web"))
    return lambda text: owners.default_selector(pod("gone", owner=("v1", "Thing", text)))


def owner_of_a_victim() -> Callable[[str], object]:
    breaker = EvictionBreaker(SchedulerLimits())
    return lambda text: breaker.record(pod("gone", owner=("v1", "Thing", text)), pod("high"), 1)


@pytest.mark.parametrize("reader", [owner_of_a_pod_with_a_default_selector, owner_of_a_victim])
def test_the_names_of_owners_of_pods_that_are_gone_are_not_kept(
    reader: Callable[[], Callable[[str], object]],
) -> None:
    """The API server limits neither the name nor the kind of an owner, which need not exist."""
    test_long_texts_are_not_kept(reader())


@pytest.mark.parametrize(
    "reader", [labels_of_a_pod_with_a_default_selector, labels_of_a_pod_that_could_be_a_victim]
)
def test_labels_of_pods_that_are_gone_are_kept_by_their_length(
    reader: Callable[[], Callable[[str], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_owners, "_CHARACTERS_CACHED_MAX", CHARACTERS)
    test_long_texts_are_not_kept(reader())


@pytest.mark.parametrize(
    "read", [number, field_of_json, instance_host, image_of_an_ended_pod, resources_of_a_pod]
)
def test_long_texts_are_not_kept(read: Callable[[str], object]) -> None:
    read("warm")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    for index in range(COUNT):
        read(f"{index}" + "x" * CHARACTERS)

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < COUNT * CHARACTERS / 10


def test_short_texts_are_read_once() -> None:
    calls: list[str] = []

    @short_text_cache.cache_short_texts(maxsize=10)
    def read(text: str) -> int:
        calls.append(text)
        return len(text)

    long = "x" * 1_000

    assert [read("a"), read("a"), read(long), read(long)] == [1, 1, 1_000, 1_000]
    assert calls == ["a", long, long]
