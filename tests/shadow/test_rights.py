"""A shadow whose kubeconfig may not list a kind that decisions need ends with a line that names it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from policysched.data_files import data_file
from tests.cli.test_diff_live import cluster, write_kubeconfig


@pytest.mark.parametrize(
    ("kind", "named"), [("nodes", "Node"), ("poddisruptionbudgets", "PodDisruptionBudget")]
)
def test_a_kind_that_may_not_be_watched_is_named(kind: str, named: str, tmp_path: Path) -> None:
    with cluster(frozenset({kind}), []) as url:
        write_kubeconfig(tmp_path / "kubeconfig", url)
        command = [sys.executable, "-m", "policysched", "shadow"]
        command += ["--policy", str(data_file("policies", "kube-default.policy"))]
        command += ["--kubeconfig", str(tmp_path / "kubeconfig")]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if "denies a required permission" in line)
            process.send_signal(signal.SIGINT)
            lines = process.stderr.read().splitlines()

    assert process.returncode == 2
    assert lines[-1] == f"policysched: the API server forbids watching {named} objects"
