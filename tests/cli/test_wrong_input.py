"""Whatever file a command is given, it says in a line what is wrong with which, and ends with 2."""

from pathlib import Path

import pytest

from tests.cli.words import GOOD, run

COMMANDS: dict[str, list[str]] = {
    "lint": ["lint", "FILE"],
    "lint --config": ["lint", "good.policy", "--config", "FILE"],
    "fmt": ["fmt", "--check", "FILE"],
    "show": ["show", "FILE"],
    "simulate --policy": ["simulate", "--policy", "FILE", "--cluster", "cluster.yaml"],
    "simulate --cluster": ["simulate", "--policy", "good.policy", "--cluster", "FILE"],
    "simulate --metrics": [
        "simulate",
        "--policy",
        "good.policy",
        "--cluster",
        "cluster.yaml",
        "--metrics",
        "FILE",
    ],
    "simulate --state": [
        "simulate",
        "--policy",
        "good.policy",
        "--cluster",
        "cluster.yaml",
        "--state",
        "FILE",
    ],
    "explain": ["explain", "web", "--policy", "good.policy", "--cluster", "FILE"],
    "import-config": ["import-config", "FILE"],
    "run --config": ["run", "--config", "FILE"],
    "run --kubeconfig": ["run", "--policies", "a/b", "--kubeconfig", "FILE"],
    "extender --kubeconfig": [
        "extender",
        "--policies",
        "a/b",
        "--http",
        "127.0.0.1:0",
        "--kubeconfig",
        "FILE",
    ],
    "sandbox --nodes": ["sandbox", "--nodes", "FILE"],
}
"""How each command is told a file."""

TOO_LONG = "n" * 300
FILES = {
    "nowhere.yaml": "no such",
    "folder": "",  # said by each in its way: some take folders, and this one is empty
    "binary.yaml": "",  # `not UTF-8 text`, or `no YAML`
    "broken.yaml": "YAML",
    "deployment.yaml": "",
    TOO_LONG: "",
}
TAKEN = {
    (one, "deployment.yaml")
    for one in ("sandbox --nodes", "simulate --cluster", "simulate --state", "explain")
}
"""Clusters take any object of Kubernetes, and states of other names are but a note."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "good.policy").write_text(GOOD)
    (tmp_path / "cluster.yaml").write_text("kind: List\nitems: []\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "broken.yaml").write_text("a: 1\nb: [\n")
    (tmp_path / "deployment.yaml").write_text("kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "file"),
    [(command, file) for command in COMMANDS for file in FILES if (command, file) not in TAKEN],
    ids=lambda word: word[:20],
)
def test_a_file_that_is_of_no_use_is_told_in_a_line(command: str, file: str) -> None:
    done = run(*[file if word == "FILE" else word for word in COMMANDS[command]], env={"KUBECONFIG": None})

    assert (done.code, done.out) == (2, "")
    said = done.err.splitlines()
    assert said and all(line.startswith("policysched") for line in said), done.err
    assert file[:12] in done.err and FILES[file] in done.err
