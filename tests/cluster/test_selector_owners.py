"""Default selectors from Services and controllers."""

from collections.abc import Callable

import pytest

from policysched.cluster import selector_owners
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
def test_a_service_indexed_by_the_wrong_label_is_detected(
    check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_owners, "_index_key", lambda _: ("default", "app", "db"))

    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("count", [selector_owners.REQUIREMENTS_MAX, selector_owners.REQUIREMENTS_MAX + 1])
def test_a_selector_with_very_many_requirements_spreads_no_pods(count: int) -> None:
    absent = [{"key": f"key-{number}", "operator": "DoesNotExist"} for number in range(count - 1)]
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": absent}
    owners = known(selector_owner("ReplicaSet", "web", selector))

    found = owners.default_selector(pod(labels={"app": "web"}, owner=("apps/v1", "ReplicaSet", "web")))

    assert (found is not None) == (count <= selector_owners.REQUIREMENTS_MAX)


def test_a_pod_is_compared_with_few_services() -> None:
    """Each change of a Service in any namespace makes the next decision about the pod compare it again."""
    pairs = {f"key-{number}": "a" for number in range(100)}
    few, many = (known(*[service(f"s{at}", **pairs) for at in range(count)]) for count in (100, 101))

    assert few.default_selector(pod(labels=pairs)) is not None
    assert many.default_selector(pod(labels=pairs)) is None
