"""policysched with its shipped permissions while the API server restarts or hangs, and while the
leader is killed.
"""

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.controlplane.api import ApiError, Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubeconfig import write_kubeconfig
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.chaos.fault_profile import Fault
from tests.e2e.deployed import NAMESPACE, PLAIN, PODS, Deployed
from tests.e2e.program import Running
from tests.e2e.proxied import proxied

BURST = 240
CPU_MILLI = 65
"""CPU of each pod: together they fill most of the three nodes."""
LEASE_TIMES = {"lease_duration_s": 10, "renew_deadline_s": 8, "retry_period_s": 0.5}
"""Long enough for a leader on a busy machine."""
SETTLE_S = 7.0
"""How long a new leader waits for binds that the former one may have in flight
(kube.leader_election).
"""


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    made = Deployed(control_plane, tmp_path)
    for name in ("a", "b", "c"):
        control_plane.add_node(ready_node(name, cpu="6", pods="200"))
    made.put_policies(main=PLAIN)
    return made


def test_no_pod_is_lost_when_the_api_server_is_killed_and_restarted_in_a_burst(deployed: Deployed) -> None:
    with deployed.running() as scheduler, history(deployed) as bindings, burst(deployed) as created:
        in_the_middle(deployed, created)

        deployed.control_plane.restart_apiserver()

        deployed.all_bound(BURST)
        assert scheduler.process.poll() is None
    bindings.check(deployed)


def test_no_pod_is_lost_when_the_api_server_hangs_in_a_burst(deployed: Deployed) -> None:
    with deployed.running() as scheduler, history(deployed) as bindings, burst(deployed) as created:
        in_the_middle(deployed, created)

        deployed.control_plane.pause_apiserver()
        scheduler.wait_for_log("is unreachable")
        deployed.control_plane.resume_apiserver()

        deployed.all_bound(BURST)
        scheduler.wait_for_log("answers again")
        assert scheduler.process.poll() is None
    bindings.check(deployed)


def test_pods_are_bound_after_a_server_that_put_everything_off_for_an_hour(
    deployed: Deployed, tmp_path: Path
) -> None:
    """503 with `Retry-After: 3600` for a while, in which 50 binds are on their way."""
    kubeconfig = tmp_path / "proxied.kubeconfig"
    with (
        proxied(deployed.control_plane, kubeconfig) as transport,
        deployed.running(kubeconfig=kubeconfig) as scheduler,
    ):
        deployed.create("first", cpu=f"{CPU_MILLI}m")
        deployed.bound("first")

        transport.put_off(PATIENCE_S)
        for number in range(50):
            deployed.create(f"web-{number}", cpu=f"{CPU_MILLI}m")

        wait_for(lambda: transport.injected[Fault.PUT_OFF] >= 10, "requests to be put off")
        transport.put_off(0.0)

        deployed.all_bound(51)
        assert scheduler.process.poll() is None


def test_a_compacted_history_is_listed_again(deployed: Deployed) -> None:
    with deployed.running() as scheduler:
        deployed.create("before")
        deployed.bound("before")

        deployed.control_plane.forget_history()

        deployed.create("after")
        assert deployed.bound("after")
        assert scheduler.process.poll() is None


def test_no_pod_is_lost_when_the_leader_is_killed_in_a_burst(
    deployed: Deployed,
) -> None:
    lease = lease_that_is_told_of()
    with deployed.running(elect=True, settings=lease) as leader, history(deployed) as bindings:
        leader.wait_for_log("acquired the lease; leading")
        with deployed.running(elect=True, settings=lease) as two:
            two.wait_until_ready()
            with burst(deployed) as created:
                in_the_middle(deployed, created)

                leader.kill()

                two.wait_for_log("acquired the lease; leading")
                deployed.all_bound(BURST)
            assert 0 < looks_at_the_dead(two) <= LOOKS_MOST
            assert two.logged("acquired the lease; leading")[0]["first_decision_in_s"] == SETTLE_S
            assert two.metric("policysched_leader") == 1
    bindings.check(deployed)


def test_a_rotated_token_is_used(deployed: Deployed, tmp_path: Path) -> None:
    """The first token becomes invalid with the Secret that it is bound to; by then the file has
    another one.
    """
    first, token_file = bound_token(deployed, "first"), tmp_path / "token"
    token_file.write_text(first)
    kubeconfig = write_kubeconfig(
        tmp_path / "rotating.kubeconfig",
        url=deployed.control_plane.url,
        authority=deployed.control_plane.authority_path,
        user={"tokenFile": str(token_file)},
    )
    with deployed.running(kubeconfig=kubeconfig) as scheduler:
        deployed.create("before")
        deployed.bound("before")

        token_file.write_text(bound_token(deployed, "second"))
        deployed.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/first")
        wait_for(lambda: status_for(deployed, first) == 401, "the first token to be refused")

        deployed.create("after")
        assert deployed.bound("after")
        assert scheduler.process.poll() is None


# ── helpers ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class History:
    """The nodes of every pod over time, as an admin sees them."""

    def __init__(self) -> None:
        self.nodes: dict[str, list[str]] = {}

    def take(self, name: str, node: str) -> None:
        known = self.nodes.setdefault(name, [])
        if node and known[-1:] != [node]:
            known.append(node)

    def check(self, deployed: Deployed) -> None:
        """Every pod was on exactly one node, and no node is over its capacity."""
        for bound in deployed.pods():
            self.take(bound["metadata"]["name"], bound["spec"].get("nodeName", ""))
        assert {name: nodes for name, nodes in self.nodes.items() if len(nodes) != 1} == {}
        for node in ("a", "b", "c"):
            requested_milli = sum(CPU_MILLI for nodes in self.nodes.values() if nodes == [node])
            assert requested_milli <= 6_000


@contextmanager
def history(deployed: Deployed) -> Iterator[History]:
    """Poll the pods twice a second in a thread, also while the server restarts."""
    bindings, ended = History(), threading.Event()
    api = deployed.control_plane.api_as(deployed.control_plane.admin)

    def look() -> None:
        while not ended.wait(0.5):
            try:
                for pod in api.items(PODS):
                    bindings.take(pod["metadata"]["name"], pod["spec"].get("nodeName", ""))
            except (OSError, HTTPException, ApiError):  # expected while the server is down
                continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield bindings
    finally:
        ended.set()
        thread.join()


class Burst:
    """Create pods one after the other, whatever the server does. `go_on`: starts the second half."""

    def __init__(self, deployed: Deployed) -> None:
        self._api = deployed.control_plane.api_as(deployed.control_plane.admin)
        self.go_on = threading.Event()
        self.ended = threading.Event()

    def create(self) -> None:
        created = 1
        while created < BURST and not self.ended.is_set():
            if created == BURST // 2 and not self.go_on.wait(0.05):
                continue
            created += self._one(f"web-{created:03}")

    def _one(self, name: str) -> bool:
        """Whether the pod exists now."""
        try:
            self._api.post(PODS, pod(name, cpu=f"{CPU_MILLI}m", memory="16Mi", schedulerName="test"))
        except ApiError as error:
            return error.status == 409  # the response to an earlier attempt was lost
        except (OSError, HTTPException):  # repeat
            self.ended.wait(0.05)
            return False
        return True


@contextmanager
def burst(deployed: Deployed) -> Iterator[Burst]:
    """The first half is created from now on."""
    deployed.create("first", cpu=f"{CPU_MILLI}m", memory="16Mi")
    deployed.bound("first")  # the scheduler is ready
    made = Burst(deployed)
    thread = threading.Thread(target=made.create)
    thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        thread.join()


def in_the_middle(deployed: Deployed, created: Burst) -> None:
    """The scheduler is binding, and the second half is created from now on."""
    wait_for(
        lambda: sum("nodeName" in pod["spec"] for pod in deployed.pods()) >= 50, "the first pods to be bound"
    )
    created.go_on.set()


LOOKS_MOST = LEASE_TIMES["lease_duration_s"] / LEASE_TIMES["retry_period_s"] + 1
"""As many attempts as fit into the Lease's duration, and one after it; fewer on a busy machine,
where attempts take longer.
"""


def looks_at_the_dead(follower: Running) -> int:
    """How often the current leader read the former leader's last renewal and found the Lease held."""
    renewals = [line["renewed"] for line in follower.logged("the lease is held") if "renewed" in line]
    return renewals.count(renewals[-1])


def lease_that_is_told_of() -> Json:
    election = {"enabled": True, "lease": f"{NAMESPACE}/policysched", **LEASE_TIMES}
    return {"leader_election": election, "log": {"format": "json", "level": "debug"}}


def bound_token(deployed: Deployed, secret: str) -> str:
    """A token of the shipped ServiceAccount that is valid as long as this Secret exists."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    made = deployed.api.post(path, {"metadata": {"name": secret}})
    bound_to = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"]["uid"]}
    answer = deployed.api.post(
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/policysched/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": bound_to},
        },
    )
    token: str = answer["status"]["token"]
    return token


def status_for(deployed: Deployed, token: str) -> int:
    """The API server's status for requests with this token."""
    request = urllib.request.Request(
        f"{deployed.control_plane.url}/version", headers={"Authorization": f"Bearer {token}"}
    )
    context = ssl.create_default_context(cafile=str(deployed.control_plane.authority_path))
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
