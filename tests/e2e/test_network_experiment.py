"""The experiment of the articles, end to end: of two nodes one has real traffic, and a Deployment
goes to the quiet one.

With a real control plane, a real Prometheus and real node exporters; the program has the shipped
permissions. Then Prometheus hangs, and later a server with malformed responses takes its place:
decisions follow the clauses of the policy.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import deployment, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import Deployed
from tests.e2e.program import Running
from tests.prometheus.monitoring import RATE, Monitoring

BUSY_BYTES_PER_S = 4_000_000
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"

POLICY = f"""\
policy test version 1
metric net_rx: bandwidth {{
  query = "{RATE}"
  unit = "B/s"
  join = instance
  every = 1s
  stale = 5s
}}
include kube_default
filter link_cool require net_rx < 8Mbps missing MISSING scaleup no says "receiving {{net_rx}}"
score quiet weight 20 lower net_rx normalize range(0Mbps, 100Mbps) missing neutral
"""
PATIENT = POLICY.replace("MISSING", "reject")
EASY = POLICY.replace("MISSING", "pass")


def host(monitoring: Monitoring, name: str) -> Any:
    node = ready_node(name, cpu="64", memory="64Gi")
    node["status"]["addresses"] = [{"type": "InternalIP", "address": monitoring.address(name)}]
    return node


def deploy(deployed: Deployed, name: str, *, replicas: int) -> None:
    made = deployment(name, replicas=replicas, cpu="10m")
    made["spec"]["template"]["spec"]["schedulerName"] = "test"
    deployed.api.post(DEPLOYMENTS, made)


def nodes_of(deployed: Deployed, name: str) -> list[str]:
    replicas = [pod for pod in deployed.pods() if pod["metadata"]["name"].startswith(f"{name}-")]
    return [pod["spec"].get("nodeName", "") for pod in replicas]


def placed(deployed: Deployed, name: str, replicas: int) -> set[str]:
    def look() -> list[str]:
        nodes = nodes_of(deployed, name)
        return nodes if len(nodes) == replicas and all(nodes) else []

    return set(wait_for(look, f"{replicas} pods of {name} to be bound"))


def metric_of(scheduler: Running) -> Any:
    (policy,) = [policy for policy in scheduler.json("/policy")["policies"] if policy["name"] == "test"]
    return policy["metrics"]["net_rx"]


def wait_for_trouble(scheduler: Running, kind: str) -> None:
    def look() -> bool:
        failure = metric_of(scheduler)["failure"]
        return failure is not None and failure["kind"] == kind

    wait_for(look, f"failure of the kind {kind}")


def wait_for_a_poll(scheduler: Running) -> None:
    """Wait until samples of a query from now on are in use: the current poll may be older."""
    polled = scheduler.metric("policysched_sample_polls_total")
    wait_for(lambda: scheduler.metric("policysched_sample_polls_total") > polled + 1, "a poll after that")


def sources(url: str, **more: Any) -> dict[str, Any]:
    return {"sources": {"prometheus": {"kind": "prometheus", "url": url, "timeout_s": 1, **more}}}


@pytest.fixture
def experiment(whole_control_plane: ControlPlane, monitoring: Monitoring, tmp_path: Path) -> Deployed:
    """Two nodes, each a host with an exporter, and the Deployment controller."""
    deployed = Deployed(whole_control_plane, tmp_path)
    for name in ("a", "b"):
        whole_control_plane.add_node(host(monitoring, name))
    whole_control_plane.create_default_service_account("default")
    whole_control_plane.start_controller_manager()
    return deployed


def test_a_deployment_is_placed_on_the_quiet_node_and_follows_the_traffic(
    experiment: Deployed, monitoring: Monitoring
) -> None:
    experiment.put_policies(main=PATIENT)
    monitoring.send("a", bytes_per_s=BUSY_BYTES_PER_S)
    monitoring.wait_for_rates("a")
    with experiment.running(settings=sources(monitoring.url)) as scheduler:
        scheduler.wait_for_state("test", "active")

        deploy(experiment, "first", replicas=6)
        assert placed(experiment, "first", 6) == {"b"}

        monitoring.send("a", bytes_per_s=0)
        monitoring.send("b", bytes_per_s=BUSY_BYTES_PER_S)
        monitoring.wait_for_rates("b")
        wait_for_a_poll(scheduler)
        deploy(experiment, "second", replicas=6)
        assert placed(experiment, "second", 6) == {"a"}

        bound = [
            decision
            for decision in scheduler.json("/decisions?limit=100")["decisions"]
            if decision["result"]["node"]
        ]
        assert len(bound) == 12
        for decision in bound:
            assert decision["samples"]["net_rx"]["value"] < 8e6
            assert 0 <= decision["samples"]["net_rx"]["age_s"] <= 5
        wait_for(lambda: metric_of(scheduler)["last_good"]["nodes"] == 2, "a poll that knows both")


def test_while_prometheus_hangs_the_policy_decides_whether_pods_wait(
    experiment: Deployed, monitoring: Monitoring
) -> None:
    experiment.put_policies(main=PATIENT)
    monitoring.send("a", bytes_per_s=BUSY_BYTES_PER_S)
    monitoring.wait_for_rates("a")
    with experiment.running(settings=sources(monitoring.url)) as scheduler:
        scheduler.wait_for_state("test", "active")
        wait_for(lambda: metric_of(scheduler)["last_good"], "samples")

        monitoring.pause()
        wait_for_trouble(scheduler, "timeout")
        wait_for(lambda: metric_of(scheduler)["last_good"]["age_s"] > 6, "the samples to be stale")
        experiment.create("patient")
        condition = experiment.condition("patient")
        assert condition["reason"] == "PolicyPending"
        assert "2 node(s) had no sample of net_rx" in condition["message"]

        experiment.put_policies(main=EASY)
        experiment.bound("patient")

        experiment.put_policies(main=PATIENT)
        monitoring.resume()
        wait_for(lambda: metric_of(scheduler)["failure"] is None, "good polls again")
        # The first two scrapes after a pause can be so close together that a rate of 0 is correct.
        monitoring.wait_for_rates("a")
        wait_for_a_poll(scheduler)
        experiment.create("again")
        assert experiment.bound("again") == "b"


def test_malformed_responses_do_not_stop_the_scheduler(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    whole_control_plane.add_node(ready_node("a", cpu="64"))
    deployed.put_policies(main=EASY)
    with nonsense() as (url, say), deployed.running(settings=sources(url)) as scheduler:
        scheduler.wait_for_state("test", "active")
        for number, (kind, status, body) in enumerate(
            [
                ("malformed", 200, b"<html>welcome</html>"),
                ("malformed", 200, b'{"status":"success","data":{"resultType":"vector","result":7}}'),
                ("wrong_type", 200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}'),
                ("status", 500, b""),
                ("redirect", 302, b""),
            ]
        ):
            say(status, body)
            wait_for_trouble(scheduler, kind)
            deployed.create(f"web-{number}")
            assert deployed.bound(f"web-{number}") == "a"
            say(200, b'{"status":"success","data":{"resultType":"vector","result":[{"value":[0,"1"]},null]}}')
            wait_for(lambda: metric_of(scheduler)["failure"] is None, "an answer that is one")
            assert metric_of(scheduler)["last_good"]["invalid"] == 2


@contextmanager
def nonsense() -> Iterator[tuple[str, Callable[[int, bytes], None]]]:
    """A server's URL, and a function that sets its response."""
    answer: list[tuple[int, bytes]] = [(503, b"")]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answer[0]
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """No log lines."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def say(status: int, body: bytes) -> None:
        answer[0] = status, body

    try:
        yield f"http://127.0.0.1:{server.server_port}", say
    finally:
        server.shutdown()
        server.server_close()
