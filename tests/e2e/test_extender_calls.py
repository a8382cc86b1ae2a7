"""`policysched run` calls extenders: policysched's own extender, and one in the style of 2019."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import Deployed
from tests.e2e.extender_deployment import Extending

ASKING = "policy test version 1\ninclude kube_default\nextender peer weight 100 missing worst\n"
RACKS = """\
# policysched: ignore[PS406, PS407] the rules of the other side
policy racks version 1
input disk: string = node.labels["disk"] default "none"
filter rack reject node.name == "a" says "rack of a is being repaired"
score disk weight 1 prefer disk == "ssd"
"""

Answering = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(control_plane, tmp_path)


@contextmanager
def old_extender(answer: Answering) -> Iterator[str]:
    """A minimal HTTP server. `answer` gets the verb and the arguments; an exception closes the
    connection, as a panic in Go does.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answered = json.dumps(answer(self.path.rpartition("/")[2], body)).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answered)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/scheduler"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asking(url: str, **more: Any) -> Mapping[str, Any]:
    peer = {"url": url, "filter": "filter", "prioritize": "prioritize", "timeout_s": 60, **more}
    return {"extenders": {"peer": peer}}


def add_nodes(control_plane: ControlPlane, *names: str, ssd: str = "") -> None:
    for name in names:
        control_plane.add_node(ready_node(name, labels={"disk": "ssd" if name == ssd else "tape"}))


@pytest.mark.parametrize("send_node_objects", [False, True])
def test_policysched_calls_policysched_extender_and_follows_its_policy(
    deployed: Deployed, control_plane: ControlPlane, tmp_path: Path, *, send_node_objects: bool
) -> None:
    add_nodes(control_plane, "a", "b", "c", "d", ssd="c")
    peer = Extending(control_plane, tmp_path)
    peer.put_policies(main=RACKS)
    deployed.put_policies(main=ASKING)
    url = f"http://127.0.0.1:{peer.port}/racks"
    with (
        peer.running(ready="racks"),
        deployed.running(settings=asking(url, send_node_objects=send_node_objects)),
    ):
        for number in range(3):
            deployed.create(f"web-{number}")
        assert {deployed.bound(f"web-{number}") for number in range(3)} == {"c"}

        deployed.create("stuck", nodeSelector={"kubernetes.io/hostname": "a"})

        assert deployed.condition("stuck")["message"].startswith(
            "0/4 nodes are available: 1 rack of a is being repaired, 3 node(s) didn't match Pod's node affinity/selector."
        )


def test_an_extender_of_2019_is_supported(deployed: Deployed, control_plane: ControlPlane) -> None:
    add_nodes(control_plane, "a", "b", "c")

    def answer(verb: str, body: dict[str, Any]) -> Any:
        if verb == "filter":  # whole nodes, lower-case keys, and `a` is rejected without a reason
            kept = [item for item in body["Nodes"]["items"] if item["metadata"]["name"] != "a"]
            return {"nodes": {"items": kept}, "failedNodes": {}, "error": ""}
        return [
            {"host": item["metadata"]["name"], "score": 10 if item["metadata"]["name"] == "b" else 0}
            for item in body["Nodes"]["items"]
        ]

    deployed.put_policies(main=ASKING)
    with old_extender(answer) as url, deployed.running(settings=asking(url, send_node_objects=True)):
        deployed.create("web")
        assert deployed.bound("web") == "b"

        deployed.create("stuck", nodeSelector={"kubernetes.io/hostname": "a"})

        assert (
            "1 node(s) rejected by extender peer without a reason" in deployed.condition("stuck")["message"]
        )


def test_other_pods_are_scheduled_while_an_extender_is_slow_crashes_or_is_malformed(
    deployed: Deployed, control_plane: ControlPlane
) -> None:
    add_nodes(control_plane, "a")
    wanted = {"mood": "slow"}

    def answer(verb: str, body: dict[str, Any]) -> Any:
        match wanted["mood"]:
            case "slow":
                time.sleep(3)
            case "panics":
                raise RuntimeError("nodes is nil")
            case "nonsense":
                return {"hello": "world"}
        names = body["NodeNames"]
        return {"NodeNames": names} if verb == "filter" else [{"Host": name, "Score": 1} for name in names]

    deployed.put_policies(main=ASKING, plain="policy plain version 1\ninclude kube_default\n")
    with old_extender(answer) as url, deployed.running(settings=asking(url, timeout_s=1)):
        deployed.create("web")
        deployed.create("other", scheduler="plain")
        assert deployed.bound("other") == "a"
        condition = deployed.condition("web")
        assert (condition["reason"], condition["message"]) == (
            "SchedulerError",
            "extender peer: filter timed out after 1 s",
        )

        for mood, words in (
            ("panics", "extender peer: filter: "),
            ("nonsense", "neither passed nor failed"),
        ):
            wanted["mood"] = mood
            wait_for(
                lambda words=words: words in deployed.condition("web")["message"],
                f"words of {mood}",
            )  # type: ignore[misc]
        wanted["mood"] = "well"

        assert deployed.bound("web") == "a"


def test_an_ignorable_extender_is_ignored_when_it_fails(
    deployed: Deployed, control_plane: ControlPlane
) -> None:
    add_nodes(control_plane, "a")
    deployed.put_policies(main=ASKING)
    with deployed.running(settings=asking("http://127.0.0.1:1", ignorable=True)) as scheduler:
        deployed.create("web")

        assert deployed.bound("web") == "a"
        assert scheduler.logged("skipped an ignorable extender that failed")


def test_a_policy_that_calls_an_unknown_extender_is_not_activated(
    deployed: Deployed, control_plane: ControlPlane
) -> None:
    add_nodes(control_plane, "a")
    deployed.put_policies(main="policy test version 1\ninclude kube_default\n")
    with deployed.running() as scheduler:
        scheduler.wait_for_state("test", "active")

        deployed.put_policies(main=ASKING)

        note = deployed.event("policies", "PolicyRejected")["note"]
        assert "extender `peer` is not configured in the settings (configured: none)" in note
        deployed.create("web")
        assert deployed.bound("web") == "a"
