"""Default selectors from Services and controllers."""

from collections.abc import Callable
from random import Random

import pytest

from policysched.cluster import selector_index, selector_owners
from policysched.cluster.selector_index import SelectorIndex
from policysched.cluster.selector_owners import DefaultSelector, SelectorOwners
from policysched.model.cluster_events import ClusterEvent
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import pod, selector_owner, service, world

WEB = {"app": "web", "tier": "front"}


def labels(**pairs: str) -> tuple[SelectorRequirement, ...]:
    return tuple(SelectorRequirement(key, "In", (value,)) for key, value in pairs.items())


def known(*sets: object) -> SelectorOwners:
    selector_owners = SelectorOwners()
    for item in sets:
        selector_owners.put(item)
    return selector_owners


def test_the_default_selector_combines_all_services_of_the_pod() -> None:
    sets = known(
        service("by-app", app="web"),
        service("by-tier", tier="front"),
        service("of-others", app="db"),
        service("elsewhere", namespace="other", app="web", zone="z1"),
        service("for-nobody"),
    )

    selector = sets.default_selector(pod(labels={**WEB, "index": "7"}))

    assert selector == DefaultSelector(LabelSelector(labels(app="web", tier="front")), selects_itself=True)


@pytest.mark.parametrize("api", ["apps/v1", "apps.kruise.io/v1beta1"])
def test_a_native_controller_adds_its_selector(api: str) -> None:
    sets = known(
        service("web", app="web"), selector_owner("StatefulSet", "db", {"matchLabels": {"tier": "front"}})
    )

    selector = sets.default_selector(pod(labels=WEB, owner=(api, "StatefulSet", "db")))

    more = labels(tier="front") if api == "apps/v1" else ()
    assert selector == DefaultSelector(LabelSelector((*labels(app="web"), *more)), selects_itself=True)


def test_a_replication_controllers_labels_replace_those_of_services() -> None:
    sets = known(service("web", app="web"), selector_owner("ReplicationController", "rc", {"app": "batch"}))

    selector = sets.default_selector(pod(labels=WEB, owner=("v1", "ReplicationController", "rc")))

    assert selector == DefaultSelector(LabelSelector(labels(app="batch")), selects_itself=False)


def test_a_pod_without_services_and_controller_has_no_default_selector() -> None:
    lonely = pod(labels=WEB, owner=("apps/v1", "ReplicaSet", "gone"))

    assert SelectorOwners().default_selector(lonely) is None
    assert known(service("web", app="other")).default_selector(lonely) is None
    assert known(selector_owner("ReplicaSet", "gone", None)).default_selector(lonely) is None
    assert known(selector_owner("ReplicaSet", "gone", {})).default_selector(lonely) is None


def test_changing_or_deleting_a_service_changes_the_default_selector() -> None:
    sets, web = known(service("web", app="web")), pod(labels=WEB)
    before = sets.default_selector(web)

    sets.put(service("web", tier="front"))
    changed = sets.default_selector(web)
    sets.drop("Service", "default", "web")
    gone = sets.default_selector(web)

    assert [
        None if each is None else each.label_selector.requirements for each in (before, changed, gone)
    ] == [
        labels(app="web"),
        labels(tier="front"),
        None,
    ]
    assert not sets._services, "nothing is filed away of what is gone"


def test_only_changes_of_selectors_cause_an_event() -> None:
    cache = world(selector_owners=[service("web", app="web")])

    assert cache.put_selector_owner(service("web", app="web")) == frozenset()
    assert cache.put_selector_owner(service("web", app="db")) == {ClusterEvent.SELECTOR_OWNER_UPDATE}
    assert cache.drop_selector_owner("Service", "default", "web") == {ClusterEvent.SELECTOR_OWNER_UPDATE}
    assert cache.drop_selector_owner("Service", "default", "web") == frozenset()


@pytest.mark.parametrize(
    "check",
    [
        test_the_default_selector_combines_all_services_of_the_pod,
        test_changing_or_deleting_a_service_changes_the_default_selector,
    ],
)
def test_a_service_that_is_not_found_is_detected(
    check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SelectorIndex, "put", lambda *_: None)

    with pytest.raises(AssertionError):
        check()


def test_of_random_services_those_are_found_that_select_the_pod() -> None:
    for number in range(200):
        random = Random(number)
        pairs = [{key: random.choice("xy") for key in random.sample("abcd", 2)} for _ in range(6)]
        web = pod(labels={key: random.choice("xy") for key in random.sample("abcde", random.randint(0, 4))})

        found = known(*[service(f"s{at}", **each) for at, each in enumerate(pairs)]).default_selector(web)

        selecting = [each.items() for each in pairs if each.items() <= web.labels.items()]
        expected = labels(**dict(sorted({pair for each in selecting for pair in each})))
        assert (() if found is None else found.label_selector.requirements) == expected


@pytest.mark.parametrize("count", [selector_owners.REQUIREMENTS_MAX, selector_owners.REQUIREMENTS_MAX + 1])
def test_a_selector_with_very_many_requirements_spreads_no_pods(count: int) -> None:
    absent = [{"key": f"key-{number}", "operator": "DoesNotExist"} for number in range(count - 1)]
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": absent}
    owners = known(selector_owner("ReplicaSet", "web", selector))

    found = owners.default_selector(pod(labels={"app": "web"}, owner=("apps/v1", "ReplicaSet", "web")))

    assert (found is not None) == (count <= selector_owners.REQUIREMENTS_MAX)


def test_thousands_of_services_are_compared_with_a_pod_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a Service in any namespace makes the next decision about the pod compare it again."""
    compared: list[LabelSelector] = []
    selects = LabelSelector.selects
    owners = known(*[service(f"s{number}", app="web") for number in range(1_000)])
    monkeypatch.setattr(
        LabelSelector, "selects", lambda self, labels: compared.append(self) or selects(self, labels)
    )

    assert owners.default_selector(pod(labels=WEB)) == DefaultSelector(LabelSelector(labels(app="web")), True)
    assert len(compared) == 1, "with its own default selector"


@pytest.mark.parametrize("count", [selector_owners.REQUIREMENTS_MAX, selector_owners.REQUIREMENTS_MAX + 1])
@pytest.mark.parametrize("together", [True, False])
def test_a_pod_with_very_many_labels_that_services_select_is_not_spread(
    count: int, *, together: bool
) -> None:
    pairs = {f"key-{number}": "a" for number in range(count)}
    one, one_each = service("all", **pairs), [service(f"s-{key}", **{key: "a"}) for key in pairs]

    found = known(*[one] if together else one_each).default_selector(pod(labels=pairs))

    assert (found is not None) == (count <= selector_owners.REQUIREMENTS_MAX)


def test_no_pod_of_a_namespace_with_more_services_than_are_indexed_is_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selector_index, "SELECTORS_MAX", 2)
    owners = known(
        service("web", app="web"), service("other", app="other"), service("elsewhere", namespace="x")
    )
    few = owners.default_selector(pod(labels=WEB))
    owners.put(service("third", app="third"))
    many = owners.default_selector(pod(labels=WEB))
    owners.drop("Service", "default", "other")

    assert few is not None and many is None
    assert owners.default_selector(pod(labels=WEB)) == few
