"""Watches: where they start, which changes they show, bookmarks, and how they end."""

from tests.contract.manifests import binding, config_map, pod
from tests.contract.transports import Api, Json


def test_a_watch_from_the_version_of_a_list_shows_later_changes_only(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    api.post(maps, config_map("before")).ok()
    version = api.get(maps).version

    with api.watch(maps, resourceVersion=version) as watch:
        api.post(maps, config_map("after")).ok()
        event = watch.next()

    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "after")
    assert event["object"]["kind"] == "ConfigMap"


def test_a_watch_from_a_version_shows_the_changes_since_then(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    version = api.get(maps).version
    api.post(maps, config_map("a", key="1")).ok()
    api.patch(f"{maps}/a", {"data": {"key": "2"}}).ok()
    api.delete(f"{maps}/a").ok()

    with api.watch(maps, resourceVersion=version) as watch:
        events = [watch.next() for _ in range(3)]

    assert [(event["type"], event["object"]["data"]["key"]) for event in events] == [
        ("ADDED", "1"),
        ("MODIFIED", "2"),
        ("DELETED", "2"),
    ]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


def test_a_watch_from_a_version_that_is_too_old_ends_with_410(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    for at in range(3):
        api.post(maps, config_map(f"map-{at}")).ok()
    api.make_history_old()

    with api.watch(maps, resourceVersion="1") as watch:
        event = watch.next()
        ended = watch.ends()

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert ended


def test_a_watch_continues_from_the_version_of_a_bookmark(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    version = api.get(maps).version

    bookmark = bookmark_past_what_it_does_not_show(api, maps, version)
    reached = bookmark["object"]["metadata"]["resourceVersion"]
    with api.watch(maps, resourceVersion=reached) as watch:
        api.post(maps, config_map("next")).ok()
        event = watch.next()

    assert (bookmark["type"], bookmark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
    assert event["object"]["metadata"]["name"] == "next"


def bookmark_past_what_it_does_not_show(api: Api, maps: str, version: str) -> Json:
    """kube-apiserver sends a bookmark two seconds before it ends a watch if something has changed
    meanwhile, and none if it is too busy then, so the watch is repeated.
    """
    watched = {"labelSelector": "seen", "allowWatchBookmarks": "true", "timeoutSeconds": "4"}
    for attempt in range(10):
        with api.watch(maps, resourceVersion=version, **watched) as watch:
            passed = int(api.post(maps, config_map(f"unseen-{attempt}")).ok().version)
            while (event := watch.next_or_end()) is not None:
                if int(event["object"]["metadata"]["resourceVersion"]) >= passed:
                    return event
    raise AssertionError("none came")


def test_a_watch_without_allow_watch_bookmarks_gets_none(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    version = api.post(maps, config_map("a")).ok().version

    with api.watch(maps, resourceVersion=version, timeoutSeconds="2") as watch:
        ended = watch.ends()

    assert ended


def test_a_watch_without_a_version_begins_with_the_existing_objects(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    api.post(maps, config_map("a")).ok()
    api.post(maps, config_map("b")).ok()

    with api.watch(maps, fieldSelector="metadata.name!=kube-root-ca.crt") as watch:
        events = [watch.next(), watch.next()]

    assert {(event["type"], event["object"]["metadata"]["name"]) for event in events} == {
        ("ADDED", "a"),
        ("ADDED", "b"),
    }


def test_initial_events_end_with_an_annotated_bookmark(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    api.post(maps, config_map("a")).ok()

    with api.watch(
        maps,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        labelSelector="!none",
        fieldSelector="metadata.name=a",
    ) as watch:
        first, second = watch.next(), watch.next()

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert second["type"] == "BOOKMARK"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_initial_events_without_a_version_match_are_refused(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"

    answer = api.get(maps, watch="true", sendInitialEvents="true")

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")


def test_a_watch_with_a_selector_shows_objects_that_start_and_stop_matching(api: Api) -> None:
    namespace = api.namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    version = api.get(pods).version

    with api.watch(pods, resourceVersion=version, fieldSelector="spec.nodeName=") as watch:
        api.post(pods, pod("web")).ok()
        event = watch.next()
        api.post(f"{pods}/web/binding", binding("web", "anywhere")).ok()
        went = watch.next()

    assert (event["type"], went["type"]) == ("ADDED", "DELETED")
    assert "nodeName" not in went["object"]["spec"]
    assert int(went["object"]["metadata"]["resourceVersion"]) > int(
        event["object"]["metadata"]["resourceVersion"]
    )


def test_a_watch_with_a_label_selector_shows_an_object_that_starts_to_match_as_added(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    version = api.post(maps, config_map("a")).ok().version

    with api.watch(maps, resourceVersion=version, labelSelector="team in (red, blue)") as watch:
        api.patch(f"{maps}/a", {"metadata": {"labels": {"team": "red"}}}).ok()
        began = watch.next()
        api.patch(f"{maps}/a", {"metadata": {"labels": {"team": "green"}}}).ok()
        ceased = watch.next()

    assert (began["type"], ceased["type"]) == ("ADDED", "DELETED")


def test_a_write_without_changes_creates_no_event_and_no_version(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    version = api.post(maps, config_map("a", key="1")).ok().version

    with api.watch(maps, resourceVersion=version) as watch:
        same = api.patch(f"{maps}/a", {"data": {"key": "1"}}).ok()
        api.patch(f"{maps}/a", {"data": {"key": "2"}}).ok()
        event = watch.next()

    assert same.version == version
    assert event["object"]["data"] == {"key": "2"}


def test_a_watch_of_a_namespace_shows_only_objects_of_that_namespace(api: Api) -> None:
    watched, other = api.namespace(), api.namespace()
    version = api.get(f"/api/v1/namespaces/{watched}/configmaps").version

    with api.watch(f"/api/v1/namespaces/{watched}/configmaps", resourceVersion=version) as watch:
        api.post(f"/api/v1/namespaces/{other}/configmaps", config_map("elsewhere")).ok()
        api.post(f"/api/v1/namespaces/{watched}/configmaps", config_map("here")).ok()
        event = watch.next()

    assert event["object"]["metadata"]["name"] == "here"
