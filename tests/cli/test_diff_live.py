"""`diff` on the cluster of a kubeconfig: read once, not changed; without rights it names what it lacks."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from policysched.cli import main
from tests.builders import node_manifest, pod_manifest
from tests.comparison.clusters import EDITS, POLICY, edited

NODES = [node_manifest(f"node-{pool}", labels={"pool": pool}) for pool in "ab"]
PODS = [pod_manifest(f"web-{number}", cpu="500m", scheduler="test") for number in range(4)]
SERVED = {"/api/v1/nodes": NODES, "/api/v1/pods": PODS, "/api/v1/namespaces": []}


@contextmanager
def cluster(forbidden: frozenset[str], asked: list[str]) -> Iterator[str]:
    """The URL of an API server with a few kinds, and 403 for others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # other methods get 501
            path = self.path.partition("?")[0]
            asked.append(path)
            status, body = self._list(path)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _list(self, path: str) -> tuple[int, dict[str, Any]]:
            kind = path.rpartition("/")[2]
            if kind in forbidden:
                message = (
                    f'{kind} is forbidden: User "ada" cannot list resource "{kind}" at the cluster scope'
                )
                return 403, {"kind": "Status", "message": message, "reason": "Forbidden", "code": 403}
            if path not in SERVED:
                return 404, {"kind": "Status", "message": "not found", "reason": "NotFound", "code": 404}
            return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": SERVED[path]}

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
            """No log."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def write_kubeconfig(path: Path, url: str) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(content))


@pytest.fixture
def diff(tmp_path: Path) -> Callable[..., Result]:
    (tmp_path / "old.policy").write_text(POLICY)
    (tmp_path / "new.policy").write_text(edited(EDITS[:3]))

    def run(forbidden: set[str], asked: list[str] | None = None, url: str | None = None) -> Result:
        with cluster(frozenset(forbidden), [] if asked is None else asked) as served:
            write_kubeconfig(tmp_path / "kubeconfig", url or served)
            names = [str(tmp_path / name) for name in ("old.policy", "new.policy")]
            return CliRunner().invoke(
                main,
                ["diff", *names, "--kubeconfig", str(tmp_path / "kubeconfig"), "--output-format", "json"],
            )

    return run


def test_the_cluster_of_a_kubeconfig_is_read_and_not_changed(diff: Callable[..., Result]) -> None:
    asked: list[str] = []

    done = diff(set(), asked)

    assert done.exit_code == 2, done.stderr
    assert json.loads(done.stdout)["pods"] == 4
    assert {"/api/v1/nodes", "/api/v1/pods"} <= set(asked)
    assert not any("secrets" in path for path in asked)


def test_kinds_that_may_not_be_listed_are_named_and_left_out(diff: Callable[..., Result]) -> None:
    done = diff({"poddisruptionbudgets", "storageclasses"})

    assert done.exit_code == 2, done.stderr
    record = json.loads(done.stdout)
    assert record["pods"] == 4
    for kind in ("PodDisruptionBudget", "StorageClass"):
        assert any(
            note.startswith(f"{kind} objects are left out: ") and 'User "ada" cannot list' in note
            for note in record["notes"]
        )


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_without_nodes_or_pods_it_ends_with_one_line(diff: Callable[..., Result], kind: str) -> None:
    done = diff({kind})

    assert done.exit_code == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f'User "ada" cannot list resource "{kind}"' in done.stderr


def test_a_cluster_that_does_not_answer_is_one_line(diff: Callable[..., Result]) -> None:
    done = diff(set(), url="http://127.0.0.1:1")

    assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1
    assert "the cluster cannot be read" in done.stderr
