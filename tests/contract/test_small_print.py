"""What a kube-apiserver does that nobody would guess, and that a client can stumble over."""

from tests.contract.manifests import pod
from tests.contract.transports import STRATEGIC, Api


def test_a_pod_that_goes_at_once_is_seen_marked_for_deletion_first(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web")).ok()
    version = api.get(pods).ok().version

    answer = api.delete(f"{pods}/web", {"gracePeriodSeconds": 0}).ok()

    with api.watch(pods, resourceVersion=version) as watch:
        marked, gone = watch.next(), watch.next()
    assert (marked["type"], gone["type"]) == ("MODIFIED", "DELETED")
    for seen in (answer.json, marked["object"], gone["object"]):
        assert "deletionTimestamp" in seen["metadata"]
        assert seen["metadata"]["deletionGracePeriodSeconds"] == 0


def test_a_terminating_pod_that_is_made_to_go_is_seen_with_its_new_grace_period_first(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web", nodeName="a")).ok()
    version = api.delete(f"{pods}/web").ok().version

    api.delete(f"{pods}/web", {"gracePeriodSeconds": 0}).ok()

    with api.watch(pods, resourceVersion=version) as watch:
        events = [watch.next(), watch.next()]
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
    assert [event["object"]["metadata"]["deletionGracePeriodSeconds"] for event in events] == [0, 0]


def test_a_watch_from_nowhere_that_takes_bookmarks_is_told_where_the_first_state_ends(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    at_least = api.post(pods, pod("web")).ok().version
    api.get(f"{pods}/web", resourceVersion=at_least).ok()  # the first state is that of the watch cache

    with api.watch(pods, allowWatchBookmarks="true") as watch:
        first, second = watch.next(), watch.next()

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "web")
    assert second["type"] == "BOOKMARK"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_patch_cannot_be_made_to_depend_on_the_uid(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web")).ok()
    patch = {"metadata": {"uid": "another"}, "status": {"nominatedNodeName": "a"}}

    answer = api.patch(f"{pods}/web/status", patch, STRATEGIC)

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert answer.json["message"] == (
        'Pod "web" is invalid: metadata.uid: Invalid value: "another": field is immutable'
    )
    assert "nominatedNodeName" not in api.get(f"{pods}/web").ok().json["status"]


def test_a_deletion_that_names_another_uid_says_which_two_do_not_match(api: Api) -> None:
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
