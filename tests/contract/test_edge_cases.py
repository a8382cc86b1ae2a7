"""Behaviour of kube-apiserver that clients do not expect."""

from tests.contract.manifests import pod
from tests.contract.transports import STRATEGIC, Api


def test_a_watch_shows_an_immediate_deletion_as_modified_first(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web")).ok()
    version = api.get(pods).ok().version

    answer = api.delete(f"{pods}/web", {"gracePeriodSeconds": 0}).ok()

    with api.watch(pods, resourceVersion=version) as watch:
        marked, deleted = watch.next(), watch.next()
    assert (marked["type"], deleted["type"]) == ("MODIFIED", "DELETED")
    for obj in (answer.json, marked["object"], deleted["object"]):
        assert "deletionTimestamp" in obj["metadata"]
        assert obj["metadata"]["deletionGracePeriodSeconds"] == 0


def test_a_watch_shows_the_new_grace_period_of_a_forced_deletion_first(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web", nodeName="a")).ok()
    version = api.delete(f"{pods}/web").ok().version

    api.delete(f"{pods}/web", {"gracePeriodSeconds": 0}).ok()

    with api.watch(pods, resourceVersion=version) as watch:
        events = [watch.next(), watch.next()]
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
    assert [event["object"]["metadata"]["deletionGracePeriodSeconds"] for event in events] == [0, 0]


def test_a_watch_without_a_version_gets_a_bookmark_after_the_initial_state(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    at_least = api.post(pods, pod("web")).ok().version
    api.get(f"{pods}/web", resourceVersion=at_least).ok()  # the initial state comes from the watch cache

    with api.watch(pods, allowWatchBookmarks="true") as watch:
        first, second = watch.next(), watch.next()

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "web")
    assert second["type"] == "BOOKMARK"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_patch_ignores_a_uid_precondition(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web")).ok()
    patch = {"metadata": {"uid": "another"}, "status": {"nominatedNodeName": "a"}}

    answer = api.patch(f"{pods}/web/status", patch, STRATEGIC)

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert answer.json["message"] == (
        'Pod "web" is invalid: metadata.uid: Invalid value: "another": field is immutable'
    )
    assert "nominatedNodeName" not in api.get(f"{pods}/web").ok().json["status"]


def test_a_deletion_with_another_uid_names_both_uids(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    uid = api.post(pods, pod("web")).ok().json["metadata"]["uid"]

    answer = api.delete(f"{pods}/web", {"preconditions": {"uid": "another"}})

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert answer.json["message"] == (
        'Operation cannot be fulfilled on Pod "web": the UID in the precondition (another) does not match '
        f"the UID in record ({uid}). The object might have been deleted and then recreated"
    )


def test_an_exact_list_needs_a_version_and_not_zero(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"

    without = api.get(pods, resourceVersionMatch="Exact")
    with_zero = api.get(pods, resourceVersionMatch="Exact", resourceVersion="0")

    assert [answer.status for answer in (without, with_zero)] == [422, 422]
    assert without.json["details"]["causes"][0]["message"] == (
        "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    )
    assert with_zero.json["details"]["causes"][0]["message"] == (
        'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    )
