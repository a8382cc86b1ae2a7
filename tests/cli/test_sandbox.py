"""`policysched sandbox` where it cannot run: one line, and what is to blame."""

import socket
from pathlib import Path

from tests.cli.builders import run, write


def test_a_kubeconfig_that_cannot_be_written_is_named() -> None:
    done = run("sandbox", "--nodes", "1", "--kubeconfig", "/dev/full")

    assert (done.code, done.err) == (2, "policysched: /dev/full: No space left on device\n")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        done = run("sandbox", "--nodes", "1", "--port", port, "--kubeconfig", str(tmp_path / "k"))

    assert done.code == 2
    assert done.err.startswith(f"policysched: 127.0.0.1:{port}: ")


def test_a_node_entry_that_is_not_an_object_is_reported(tmp_path: Path) -> None:
    (path,) = write(tmp_path, nodes_yaml="kind: List\nitems: [null]\n")

    done = run("sandbox", "--nodes", path, "--kubeconfig", str(tmp_path / "k"))

    assert done.code == 2
    assert "items[0]: is null, expected a map" in done.err
