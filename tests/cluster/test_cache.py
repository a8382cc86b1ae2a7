"""Events and changed nodes of each change of the cluster cache."""

from dataclasses import replace

from policysched.cluster.cache import ClusterCache
from policysched.cluster.cache_differences import find_cache_differences
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from tests.builders import finished, node, pending, placed, pod, world


def test_a_new_pending_pod_causes_one_event_and_changes_no_node() -> None:
    cache = world([node("a")])
    cache.changed_nodes()

    events = cache.put_pod(pending(pod("web")))

    assert events == {ClusterEvent.UNSCHEDULED_POD_ADD}
    assert cache.changed_nodes() == set()


def test_an_unchanged_object_causes_no_event() -> None:
    web = placed(pod("web", cpu="1"), "a")
    cache = world([node("a")], [web])
    cache.changed_nodes()

    assert cache.put_pod(web) == set()
    assert cache.put_node(node("a")) == set()
    assert cache.changed_nodes() == set()


def test_a_stale_event_of_an_unbound_pod_does_not_undo_its_binding() -> None:
    web = pod("web", cpu="1")
    cache = world([node("a")], [placed(web, "a")])

    cache.put_pod(pending(web))

    assert cache.ledger.usage(NodeName("a")).requested == {"cpu": 1000}
    assert cache.pods[web.uid].node == "a"


def test_a_finished_pod_frees_its_requests() -> None:
    web = pod("web", cpu="1")
    cache = world([node("a")], [placed(web, "a")])
    cache.changed_nodes()

    events = cache.put_pod(finished(web, "a"))

    assert events == {ClusterEvent.ASSIGNED_POD_DELETE}
    assert not cache.ledger.usage(NodeName("a")).pods
    assert cache.changed_nodes() == {"a"}


def test_a_terminating_pod_keeps_its_requests_until_it_is_deleted() -> None:
    web = pod("web", cpu="1")
    cache = world([node("a")], [placed(web, "a")])

    cache.put_pod(replace(placed(web, "a"), deleting=True))

    assert cache.ledger.usage(NodeName("a")).requested == {"cpu": 1000}


def test_confirming_an_assumed_pod_causes_no_event() -> None:
    web = pod("web", cpu="1")
    cache = world([node("a")], [pending(web)])
    cache.assume(web, NodeName("a"))
    cache.changed_nodes()

    assert cache.put_pod(placed(web, "a")) == set()
    assert cache.changed_nodes() == set()


def test_withdrawing_an_assumed_pod_frees_its_requests() -> None:
    web = pod("web", cpu="1")
    cache = world([node("a")], [pending(web)])
    cache.assume(web, NodeName("a"))

    assert cache.withdraw(web.uid) == {ClusterEvent.ASSIGNED_POD_DELETE}


def test_each_kind_of_node_change_has_its_own_event() -> None:
    cache = world([node("a")])
    heartbeat_only = replace(node("a"), conditions={"Ready": "True", "MemoryPressure": "False"})

    assert cache.put_node(node("b")) == {ClusterEvent.NODE_ADD}
    assert cache.put_node(heartbeat_only) == {ClusterEvent.NODE_CONDITION}
    assert cache.put_node(replace(heartbeat_only, labels={"x": "y"})) == {ClusterEvent.NODE_LABEL}
    assert cache.put_node(replace(heartbeat_only, labels={"x": "y"}, unschedulable=True)) == {
        ClusterEvent.NODE_TAINT
    }


def test_a_pod_on_an_unknown_node_counts_when_the_node_is_observed() -> None:
    cache = world([], [placed(pod("web", cpu="1"), "late")])

    cache.put_node(node("late"))

    assert cache.ledger.usage(NodeName("late")).requested == {"cpu": 1000}
    assert "late" in cache.changed_nodes()


def test_a_pod_resized_to_smaller_requests_frees_the_difference() -> None:
    cache = world([node("a")], [placed(pod("web", cpu="2"), "a")])

    events = cache.put_pod(placed(pod("web", cpu="1"), "a"))

    assert ClusterEvent.ASSIGNED_POD_DELETE in events


def test_the_audit_reports_lost_changes() -> None:
    web, db = placed(pod("web", cpu="1"), "a"), placed(pod("db"), "a")
    cache = world([node("a")], [web])

    assert find_cache_differences(cache, pods=[web], nodes=[node("a")]) == []
    assert any(
        "uid-default-db" in difference
        for difference in find_cache_differences(cache, pods=[web, db], nodes=[node("a")])
    )
    assert any(
        "is deleted" in difference for difference in find_cache_differences(cache, pods=[], nodes=[node("a")])
    )
    assert any(
        "cpu" in difference
        for difference in find_cache_differences(cache, pods=[web], nodes=[node("a", cpu="64")])
    )


def test_a_custom_resource_with_the_name_of_a_node_is_part_of_the_node_in_either_order() -> None:
    cache = ClusterCache()
    assert cache.put_node_object("scv", NodeName("a"), "1") == frozenset(), "there is no such node yet"
    cache.put_node(node("a"))
    assert cache.nodes[NodeName("a")].objects == {"scv": "1"}
    cache.changed_nodes()

    assert cache.put_node_object("scv", NodeName("a"), "1") == frozenset()
    assert cache.changed_nodes() == set(), "the same again"
    assert cache.put_node_object("scv", NodeName("a"), "2") == {ClusterEvent.NODE_OBJECT}
    assert cache.changed_nodes() == {"a"}
    assert cache.put_node(node("a", labels={"x": "y"})) == {ClusterEvent.NODE_LABEL}
    assert cache.nodes[NodeName("a")].objects == {"scv": "2"}, "the node itself does not say it"
    assert cache.drop_node_object("scv", NodeName("a")) == {ClusterEvent.NODE_OBJECT}
    assert cache.nodes[NodeName("a")].objects == {}


def test_the_audit_ignores_custom_resources_of_nodes() -> None:
    cache = ClusterCache()
    cache.put_node(node("a"))
    cache.put_node_object("scv", NodeName("a"), "1")

    assert find_cache_differences(cache, pods=[], nodes=[node("a")]) == []
