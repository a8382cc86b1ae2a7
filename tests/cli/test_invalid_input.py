"""Whatever file a command is given, it says in a line what is wrong with which, and ends with 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from policysched import files, yaml_values
from policysched.metric_sources.file import read_samples_file
from tests.builders import node_manifest, pod_manifest
from tests.cli.builders import GOOD, run

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
    (command, "deployment.yaml")
    for command in ("sandbox --nodes", "simulate --cluster", "simulate --state", "explain")
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
def test_an_unusable_file_is_reported_in_one_line(command: str, file: str) -> None:
    done = run(*[file if word == "FILE" else word for word in COMMANDS[command]], env={"KUBECONFIG": None})

    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines and all(line.startswith("policysched") for line in lines), done.err
    assert file[:12] in done.err and FILES[file] in done.err


@pytest.mark.parametrize("document", ["a: &a [*a]\n", None], ids=["itself", "within each other"])
def test_yaml_aliases_that_expand_without_limit_are_reported_in_one_line(
    folder: Path, document: str | None
) -> None:
    nines = [f"m{n}: &m{n} [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 10)]
    (folder / "bomb.yaml").write_text(document or "".join(["m0: &m0 [1, 2, 3]\n", *nines]))

    done = run("simulate", "--policy", "good.policy", "--cluster", "cluster.yaml", "--metrics", "bomb.yaml")

    assert done.code == 2
    assert done.err == (
        "policysched: bomb.yaml: its aliases expand to more than 100,000 values or are recursive\n"
    )


def test_a_cluster_file_of_200_mb_is_read(folder: Path) -> None:
    with (folder / "large.json").open("w") as file:
        for number in range(2000):
            pod = pod_manifest(f"p{number}", scheduler="example", annotations={"note": "n" * 100_000})
            file.write(f"{json.dumps(pod)}\n")
        file.write(json.dumps(node_manifest("a", cpu="64", pods="1000")))
    assert (folder / "large.json").stat().st_size > 200e6

    done = run("simulate", "--policy", "good.policy", "--cluster", "large.json")

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "1000 placed, 1000 pending"


def test_a_pipe_without_end_is_reported_in_one_line() -> None:
    command = [sys.executable, "-m", "policysched", "lint", "-"]
    with subprocess.Popen(["yes", "policy a version 1"], stdout=subprocess.PIPE) as endless:
        try:
            done = subprocess.run(command, stdin=endless.stdout, capture_output=True, text=True, timeout=120)
        finally:
            endless.kill()

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "policysched: -: larger than 64 MiB\n"


def test_yaml_aliases_are_resolved(folder: Path) -> None:
    (folder / "samples.yaml").write_text("load: &load {a: 0.5}\nheat: *load\n")

    assert read_samples_file(folder / "samples.yaml") == {"load": {"a": 0.5}, "heat": {"a": 0.5}}


def test_a_long_document_may_have_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_values, "_ALIASED_VALUES_MAX", 5)
    numbers = ", ".join(["1"] * 20)

    assert yaml_values.parse_yaml(f"long: [{numbers}]\nshort: &s [1, 2]\nagain: *s\n")["again"] == [1, 2]
    with pytest.raises(files.UnreadableFile):
        yaml_values.parse_yaml("short: &s [1, 2]\nagain: [*s, *s]\n")


def test_a_policy_can_be_read_from_standard_input(folder: Path) -> None:
    (folder / "cluster.yaml").write_text(json.dumps(node_manifest("a")))

    shown = run("show", "-", stdin=GOOD)
    simulated = run("simulate", "--policy", "-", "--cluster", "cluster.yaml", stdin=GOOD)

    assert (shown.code, shown.out.splitlines()[0].split("  ")[0]) == (0, "policy example")
    assert (simulated.code, simulated.out) == (0, "\n0 placed, 0 pending\n")


@pytest.mark.usefixtures("folder")
def test_standard_input_is_not_both_the_policy_and_the_cluster() -> None:
    done = run("simulate", "--policy", "-", "--cluster", "-", stdin=GOOD)

    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == "policysched: -: standard input can be read only once: for the policy or for the cluster\n"
    )


@pytest.mark.parametrize("command", ["lint", "fmt", "show", "import-config"])
def test_an_unreadable_standard_input_is_reported_in_one_line(command: str, folder: Path) -> None:
    with (folder / "written.txt").open("w") as write_only:
        done = subprocess.run(
            [sys.executable, "-m", "policysched", command, "-"],
            stdin=write_only,
            capture_output=True,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "policysched: -: standard input cannot be read: Bad file descriptor\n"


def test_a_folder_that_cannot_be_recorded_to_is_said_before_the_cluster_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.policy").write_text(GOOD)
    (tmp_path / "file").write_text("")

    done = run("shadow", "--policy", str(tmp_path / "good.policy"), "--record", str(tmp_path / "file/seen"))

    assert (done.code, done.out) == (2, "")
    assert done.err == f"policysched: cannot record to {tmp_path / 'file/seen'}: Not a directory\n"


@pytest.mark.parametrize("command", ["simulate", "diff"])
def test_a_value_of_a_skipped_object_cannot_write_to_the_terminal(tmp_path: Path, command: str) -> None:
    (tmp_path / "good.policy").write_text(GOOD)
    hostile = pod_manifest("hostile", cpu="\x1b[2J")
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [hostile]}))
    policy = str(tmp_path / "good.policy")
    policies = ["--policy", policy] if command == "simulate" else [policy, policy]

    result = run(command, *policies, "--cluster", str(tmp_path / "cluster.json"))

    assert "`\\x1b[2J` is not a quantity" in result.err
    assert "\x1b" not in result.err
