"""A real kube-scheduler calls policysched as its extender, and follows its policies."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.certificates import Authority
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.extender_deployment import NAMESPACE, Extending
from tests.e2e.permissions import asked, granted
from tests.e2e.program import Running

IGNORED = "# policysched: ignore[PS406, PS407] kube-scheduler's own\n"
FAST_FIRST = (
    IGNORED
    + 'policy fast version 1\ninput disk: string = node.labels["disk"] default "none"\n'
    + 'score disk weight 1 prefer disk == "ssd"\n'
)
NOT_R17 = (
    IGNORED
    + 'policy racks version 1\nfilter rack reject node.labels["rack"] == "r17" says "rack r17 is being repaired"\n'
)


@pytest.fixture
def extending(whole_control_plane: ControlPlane, tmp_path: Path) -> Extending:
    return Extending(whole_control_plane, tmp_path)


@pytest.mark.parametrize("names_alone", [True, False])
def test_pods_are_placed_by_the_scores_of_the_policy(extending: Extending, *, names_alone: bool) -> None:
    for name in ("a", "b", "c", "d"):
        extending.control_plane.add_node(ready_node(name, labels={"disk": "ssd" if name == "c" else "tape"}))
    extending.put_policies(main=FAST_FIRST)
    with extending.running(ready="fast") as extender:
        extending.start_kube_scheduler("fast", weight=100, nodeCacheCapable=names_alone)

        for number in range(5):
            extending.create(f"web-{number}")

        assert {extending.bound(f"web-{number}") for number in range(5)} == {"c"}
        assert (
            extender.metric(
                'policysched_extender_requests_total{policy="fast",verb="prioritize",outcome="answered"}'
            )
            >= 5
        )


@pytest.mark.parametrize("names_alone", [True, False])
def test_the_reason_of_a_rejection_is_in_the_pods_event(extending: Extending, *, names_alone: bool) -> None:
    for name in ("a", "b"):
        extending.control_plane.add_node(ready_node(name, labels={"rack": "r17"}))
    extending.control_plane.add_node(ready_node("c", cpu="1"))
    extending.put_policies(main=NOT_R17)
    with extending.running(ready="racks"):
        extending.start_kube_scheduler("racks", nodeCacheCapable=names_alone)

        extending.create("small")
        extending.create("large", cpu="2")

        assert extending.bound("small") == "c"
        assert extending.note("large", "FailedScheduling", containing="r17").startswith(
            "0/3 nodes are available: 1 Insufficient cpu, 2 rack r17 is being repaired."
        )


def test_an_edit_of_the_policy_changes_the_next_answer(extending: Extending) -> None:
    for name in ("a", "b"):
        extending.control_plane.add_node(ready_node(name, labels={"rack": f"r17{name}"}))
    extending.put_policies(main=NOT_R17.replace('"r17"', '"r17a"'))
    with extending.running(ready="racks") as extender:
        extending.start_kube_scheduler("racks")
        extending.create("first")
        assert extending.bound("first") == "b"
        before = extender.json("/policy")["policies"][0]["sha256"]

        extending.put_policies(main=NOT_R17.replace('"r17"', '"r17b"'))

        wait_for(lambda: extender.json("/policy")["policies"][0]["sha256"] != before, "the edit to be active")
        extending.create("second")
        assert extending.bound("second") == "a"


def test_without_a_response_the_kube_scheduler_configuration_decides(extending: Extending) -> None:
    extending.control_plane.add_node(ready_node("a"))
    dead = extending.start_kube_scheduler("racks", ignorable=False)
    extending.create("needed")
    extending.note("needed", "FailedScheduling", containing="connection refused")
    dead.kill()

    extending.start_kube_scheduler("racks", ignorable=True)

    assert extending.bound("needed") == "a"


def test_an_unknown_policy_is_named_in_the_pods_event(extending: Extending) -> None:
    extending.control_plane.add_node(ready_node("a"))
    extending.put_policies(main=NOT_R17)
    with extending.running(ready="racks"):
        extending.start_kube_scheduler("shelves", ignorable=False)

        extending.create("web")

        extending.note("web", "FailedScheduling", containing="unknown policy `shelves` (active: racks)")


def test_a_pod_that_the_policy_protects_is_not_evicted(extending: Extending) -> None:
    extending.control_plane.add_node(ready_node("a", cpu="2"))
    extending.control_plane.add_node(ready_node("b", cpu="2"))
    clause = 'preemption { victims = not has victim.labels["keep"] }\n'
    extending.put_policies(main=IGNORED + "policy polite version 1\n" + clause)
    extending.api.post(
        "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000}
    )
    with extending.running(ready="polite"):
        extending.start_kube_scheduler("polite")
        extending.create("kept", cpu="1500m", labels={"keep": "true"})
        extending.create("other", cpu="1500m")
        homes = {name: extending.bound(name) for name in ("kept", "other")}

        extending.create("urgent", cpu="1500m", priorityClassName="urgent")

        assert extending.bound("urgent") == homes["other"]
        assert extending.node_of("kept") == homes["kept"]


def test_client_and_server_authenticate_by_certificates(extending: Extending, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    serving, client = authority.serving(), authority.client("kube-scheduler")
    for name in ("a", "b"):
        extending.control_plane.add_node(ready_node(name, labels={"rack": "r17" if name == "a" else "r18"}))
    extending.put_policies(main=NOT_R17)
    server = {"certificate": serving.certificate, "key": serving.key, "client_ca": authority.certificate}
    client_files = {"caFile": authority.certificate, "certFile": client.certificate, "keyFile": client.key}
    flags = [f"--tls-{name.replace('_', '-')}={file}" for name, file in server.items()]
    with extending.running(*flags, secure=True):
        extending.start_kube_scheduler(
            "racks",
            url=f"https://127.0.0.1:{extending.port}",
            enableHTTPS=True,
            tlsConfig={name: str(file) for name, file in client_files.items()},
            ignorable=False,
        )

        extending.create("web")

        assert extending.bound("web") == "b"


@pytest.fixture
def audited(control_plane_programs: Programs, whole_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A separate control plane that records the requests of the extender's ServiceAccount."""
    del whole_control_plane  # requested only because it skips the test if there is none
    user = f"system:serviceaccount:{NAMESPACE}:policysched-extender"
    with ControlPlane(control_plane_programs, audited=user) as running:
        yield running


def test_the_extender_binds_and_needs_exactly_the_shipped_permissions(
    audited: ControlPlane, tmp_path: Path
) -> None:
    extending = Extending(audited, tmp_path, binds=True)
    audited.add_node(ready_node("a"))
    extending.put_policies(main=FAST_FIRST)
    often = {"reporting": {"series_update_interval_s": 0.5}}
    with extending.running(ready="fast", settings=often, secure=True) as extender:
        token = audited.service_account_token(NAMESPACE, "policysched-extender")
        assert extender.status_with_token("/fast/filter", token) == 403  # a token is reviewed
        extending.start_secure_kube_scheduler("fast", bindVerb="bind")

        extending.create("web")

        assert extending.bound("web") == "a"
        assert extending.note("web", "Scheduled") == "Successfully assigned default/web to a"
        assert (
            extender.metric(
                'policysched_extender_requests_total{policy="fast",verb="bind",outcome="answered"}'
            )
            == 1
        )
        for _ in range(2):  # creates an event, and counts it again
            extending.put_policies(main="policy fast version 1\nnonsense\n")
            extender.wait_for_state("fast", "last_known_good")
            extending.put_policies(main=FAST_FIRST)
            extender.wait_for_state("fast", "active")
        bind_a_pod_that_is_bound(extending, extender)  # reads a pod
        wait_for(lambda: counted_up(extending), "an event that is counted up")
    used, rules = asked(audited.audit_records()), granted(extending.applied)
    assert {str(permission): codes for permission, codes in used.items() if 403 in codes} == {}
    assert [str(rule) for rule in sorted(rules) if not any(map(rule.allows, used))] == []
    assert [
        str(permission) for permission in sorted(used) if not any(rule.allows(permission) for rule in rules)
    ] == []


def bind_a_pod_that_is_bound(extending: Extending, extender: Running) -> None:
    uid = extending.api.get("/api/v1/namespaces/default/pods/web")["metadata"]["uid"]
    args = {"PodName": "web", "PodNamespace": "default", "PodUID": uid, "Node": "elsewhere"}
    answer = json.loads(extender.get("/fast/bind", json.dumps(args).encode()))
    assert "another client bound it to a" in answer["Error"]


def counted_up(extending: Extending) -> bool:
    events = extending.api.items("/apis/events.k8s.io/v1/events")
    return any(
        event.get("series", {}).get("count", 1) > 1
        for event in events
        if event["reason"] == "PolicyRecovered"
    )
