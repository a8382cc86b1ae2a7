"""A namespace whose binds fail at a real admission webhook, beside a healthy one.

The same pods are given to kube-scheduler, which binds each pod in a goroutine of its own.
"""

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.controlplane.api import ApiError, Json
from tests.controlplane.cluster import HOST, ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.process import free_ports
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import LEASE, PLAIN, Deployed, pending
from tests.e2e.program import Running

FAILING_PODS = 60
HEALTHY_PODS = 9
RATIO_MAX, NOISE_S = 1.5, 0.25
"""No slower than kube-scheduler, by medians of pods in turns. The noise is that of a machine with other work."""
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WEBHOOK_TIMEOUT_S = 1
"""The least that the API allows; without an answer each bind takes so long."""
KUBE_SCHEDULER = "default-scheduler"


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """A port on which nothing listens."""
    yield free_ports(1)[0]


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port on which the kernel accepts connections and nothing is ever read."""
    with socket.create_server((HOST, 0), backlog=1024) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("webhook", [refusing, silent])
def test_a_failing_webhook_of_one_namespace_delays_no_other_namespace(
    whole_control_plane: ControlPlane,
    tmp_path: Path,
    webhook: Callable[[], contextlib.AbstractContextManager[int]],
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    for number in range(2):
        whole_control_plane.add_node(ready_node(f"node-{number}", cpu="64", pods="500"))
    deployed.put_policies(main=PLAIN)
    whole_control_plane.create_namespace("failing")
    whole_control_plane.start_scheduler()
    with webhook() as port, deployed.running(elect=True) as scheduler:
        scheduler.wait_until_ready()
        fail_binds_in(deployed, "failing", port)
        for number in range(FAILING_PODS):
            for name in ("test", KUBE_SCHEDULER):
                create(deployed, "failing", f"{name}-{number}", name)
        wait_for(
            lambda: scheduler.metric("policysched_bind_failing_namespaces") == 1, "the namespace to fail"
        )

        waits_s: dict[str, list[float]] = {"test": [], KUBE_SCHEDULER: []}
        for number in range(HEALTHY_PODS):
            for name, waited_s in waits_s.items():
                waited_s.append(bound_after_s(deployed, f"{name}-{number}", name))
            check_ready(scheduler)

        print(f"create-to-bound in ms beside {webhook.__name__}: {in_ms(waits_s)}")
        assert median(waits_s["test"]) <= RATIO_MAX * median(waits_s[KUBE_SCHEDULER]) + NOISE_S, waits_s
        assert len(pending(deployed.pods("failing"))) == 2 * FAILING_PODS
        wait_for(lambda: len(told(deployed)) == FAILING_PODS, "the pods to be told")
        check_ready(scheduler)

        deployed.api.delete(f"{WEBHOOKS}/guard")
        wait_for(lambda: not ours(pending(deployed.pods("failing"))), "the pods to be bound")
        assert not scheduler.logged("unreachable")


@pytest.mark.parametrize("webhook", [refusing, silent])
def test_a_leader_that_stops_beside_a_failing_webhook_releases_the_lease(
    whole_control_plane: ControlPlane,
    tmp_path: Path,
    webhook: Callable[[], contextlib.AbstractContextManager[int]],
) -> None:
    """In less time than a bind without an outcome may still be carried out: what the API server answers is one."""
    deployed = Deployed(whole_control_plane, tmp_path)
    whole_control_plane.add_node(ready_node("node-0", cpu="64", pods="500"))
    deployed.put_policies(main=PLAIN)
    whole_control_plane.create_namespace("failing")
    settings = {"shutdown_timeout_s": WEBHOOK_TIMEOUT_S + 2}
    with webhook() as port, deployed.running(elect=True, settings=settings) as scheduler:
        scheduler.wait_until_ready()
        fail_binds_in(deployed, "failing", port)
        for number in range(FAILING_PODS):
            create(deployed, "failing", f"test-{number}", "test")
        wait_for(
            lambda: scheduler.metric("policysched_bind_failing_namespaces") == 1, "the namespace to fail"
        )

        assert scheduler.terminate() == 0, scheduler.log()

        assert not deployed.api.get(LEASE)["spec"].get("holderIdentity"), scheduler.log()


class _Closing(BaseHTTPRequestHandler):
    """Denies with a code that is no status, at which the API server closes the connection of whoever asked it."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        denial = {"uid": review["request"]["uid"], "allowed": False, "status": {"code": 5000}}
        answer = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": denial})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def closing(control_plane: ControlPlane) -> Iterator[int]:
    """The port of a webhook of this kind."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(control_plane.serving.certificate, control_plane.serving.key)
    with ThreadingHTTPServer((HOST, 0), _Closing) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


def test_a_namespace_whose_binds_have_no_answer_does_not_fail_readiness_while_nobody_else_writes(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    whole_control_plane.add_node(ready_node("node-0", cpu="64", pods="500"))
    deployed.put_policies(main=PLAIN)
    whole_control_plane.create_namespace("failing")
    with closing(whole_control_plane) as port, deployed.running() as scheduler:
        scheduler.wait_until_ready()
        guard = webhook_of("failing", port)
        guard["clientConfig"]["caBundle"] = base64.b64encode(
            whole_control_plane.authority_path.read_bytes()
        ).decode()
        deployed.api.post(WEBHOOKS, {"metadata": {"name": "guard"}, "webhooks": [guard]})
        failures = "policysched_api_failures_total"
        before = scheduler.metric(failures)
        number = 0

        def fail() -> bool:
            nonlocal number
            create(deployed, "failing", f"test-{number}", "test")
            number += 1
            return scheduler.metric(failures) - before >= 10

        wait_for(fail, "binds without an answer")
        for _ in range(20):
            check_ready(scheduler)
            time.sleep(0.1)


# ── helpers ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def webhook_of(namespace: str, port: int) -> dict[str, Any]:
    """For binds."""
    return {
        "name": "guard.example.com",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": WEBHOOK_TIMEOUT_S,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "clientConfig": {"url": f"https://{HOST}:{port}/"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods/binding"],
            }
        ],
    }


def fail_binds_in(deployed: Deployed, namespace: str, port: int) -> None:
    """Register a webhook that does not answer, and wait until the server calls it."""
    guard = webhook_of(namespace, port)
    deployed.api.post(WEBHOOKS, {"metadata": {"name": "guard"}, "webhooks": [guard]})
    create(deployed, namespace, "probe", "nobody")
    path = f"/api/v1/namespaces/{namespace}/pods/probe/binding"

    def is_called() -> bool:
        binding = {"metadata": {"name": "probe"}, "target": {"kind": "Node", "name": "node-0"}}
        try:
            deployed.api.post(path, binding, dryRun="All")
        except ApiError as error:
            return "guard.example.com" in str(error)
        return False

    wait_for(is_called, "the webhook to be called")
    deployed.api.delete(path.removesuffix("/binding"))


def create(deployed: Deployed, namespace: str, name: str, scheduler: str) -> None:
    manifest = pod(name, cpu="50m", memory="8Mi", schedulerName=scheduler)
    deployed.api.post(f"/api/v1/namespaces/{namespace}/pods", manifest)


def bound_after_s(deployed: Deployed, name: str, scheduler: str) -> float:
    created_s = time.perf_counter()
    create(deployed, "default", name, scheduler)
    deployed.bound(name)
    return time.perf_counter() - created_s


def check_ready(scheduler: Running) -> None:
    """One namespace is not taken for the server."""
    assert scheduler.get("/readyz") == "ok"
    assert not scheduler.logged("unreachable")


def ours(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("test-")]


def told(deployed: Deployed) -> set[str]:
    """Our pods whose condition and event name the webhook."""
    conditions = {
        pod["metadata"]["name"]
        for pod in deployed.pods("failing")
        for condition in pod.get("status", {}).get("conditions", [])
        if condition["type"] == "PodScheduled"
        and condition["reason"] == "SchedulerError"
        and "guard.example.com" in condition["message"]
    }
    events: list[Json] = deployed.api.items("/apis/events.k8s.io/v1/namespaces/failing/events")
    recorded = {
        event["regarding"]["name"]
        for event in events
        if event["reason"] == "FailedScheduling" and "guard.example.com" in event["note"]
    }
    return set(ours(sorted(conditions & recorded)))


def in_ms(waits_s: dict[str, list[float]]) -> dict[str, int]:
    return {name: round(1000 * median(waited_s)) for name, waited_s in waits_s.items()}
