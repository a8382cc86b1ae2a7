"""The ports of `run` and `extender` under attack on a real control plane, beside pods that must be bound."""

import json
from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, PODS, Deployed
from tests.e2e.extender_deployment import Extending
from tests.e2e.hostile_clients import HostileClients, peak_mib
from tests.e2e.program import Running

MEMORY_MIB_MAX = 100
LOG_BYTES_MAX = 100_000
REVIEWS_PER_S_MAX = 120
"""Of one kind. 50 requests a second are allowed in total, and twice as many at once."""
EXTENDED = 'policy keep version 1\nfilter f reject node.name == "nowhere" says "it is not there"\n'


def reviews(control_plane: ControlPlane) -> float:
    """TokenReviews that the API server has answered."""
    lines = control_plane.api.get("/metrics")["text"].splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("apiserver_request_total{") and 'resource="tokenreviews"' in line
    )


def test_hostile_clients_of_the_scheduler_delay_no_bind_and_fill_nothing(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    control_plane.add_node(ready_node("a"))
    token = control_plane.service_account_token("default", "default")
    with deployed.running(secure=True) as scheduler:
        scheduler.wait_for_state("test", "active")
        deployed.create("before")
        deployed.bound("before")
        before_mib, before_bytes, reviewed = (
            peak_mib(scheduler.process.pid),
            len(scheduler.log()),
            reviews(control_plane),
        )

        clients = HostileClients(scheduler.port, token, "/page/try")
        with clients.attacking():
            for number in range(4):
                deployed.create(f"beside-{number}")
                deployed.bound(f"beside-{number}")
                assert scheduler.status_with_token("/livez", None) == 200
                assert scheduler.status_with_token("/readyz", None) == 200
            wait_for(lambda: clients.each_has_hit, "each to hit")

        assert peak_mib(scheduler.process.pid) - before_mib < MEMORY_MIB_MAX
        assert len(scheduler.log()) - before_bytes < LOG_BYTES_MAX
        assert scheduler.status_with_token("/decisions", token) == 403
        assert reviews(control_plane) - reviewed < REVIEWS_PER_S_MAX * clients.lasted_s
        wait_for(lambda: '"test"' in scheduler.get("/policy"), "an administrator to be answered")


def test_hostile_clients_of_the_extender_delay_no_request_and_fill_nothing(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    extending = Extending(control_plane, tmp_path)
    extending.put_policies(main=EXTENDED)
    control_plane.add_node(ready_node("a"))
    token = control_plane.service_account_token("default", "default")
    with extending.running(ready="keep", secure=True) as extender:
        assert filtered(extender) == ["a"]
        before_mib, before_bytes = peak_mib(extender.process.pid), len(extender.log())

        clients = HostileClients(extender.port, token, "/keep/filter")
        with clients.attacking():
            for _ in range(4):
                wait_for(lambda: filtered(extender) == ["a"], "the extender to answer")
                assert extender.status_with_token("/livez", None) == 200
            wait_for(lambda: clients.each_has_hit, "each to hit")

        assert peak_mib(extender.process.pid) - before_mib < MEMORY_MIB_MAX
        assert len(extender.log()) - before_bytes < LOG_BYTES_MAX


def filtered(extender: Running) -> list[str]:
    """The nodes that pass, for a client with the certificate of an administrator."""
    args = {"Pod": pod("web"), "NodeNames": ["a"]}
    answer = json.loads(extender.get("/keep/filter", json.dumps(args).encode()))
    names: list[str] = answer["NodeNames"]
    return names


def test_a_permitted_client_binds_no_pod_of_another_scheduler(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    extending = Extending(control_plane, tmp_path, binds=True)
    extending.put_policies(main=EXTENDED)
    control_plane.add_node(ready_node("a"))
    extending.create("foreign", schedulerName="nobody")
    uid = control_plane.api.get(f"{PODS}/foreign")["metadata"]["uid"]
    with extending.running(ready="keep", secure=True) as extender:
        args = {"PodName": "foreign", "PodNamespace": "default", "PodUID": uid, "Node": "a"}

        def refusal() -> str:
            error: str = json.loads(extender.get("/keep/bind", json.dumps(args).encode()))["Error"]
            return error

        wait_for(lambda: "schedulerName is `nobody`" in refusal(), "the pod to be known and refused")
        assert not extending.node_of("foreign")
