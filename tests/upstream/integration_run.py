"""Run upstream's integration tests beside kube-scheduler, which they start themselves, or beside policysched.

Each test is run in a process of its own, with an etcd of its own: one that ends its process ends no other test.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from tempfile import TemporaryDirectory
from threading import Thread

import yaml

from tests.controlplane.process import ENVIRONMENT, free_ports
from tests.controlplane.programs import Programs
from tests.e2e.program import Running
from tests.upstream.cluster import policy_text
from tests.upstream.e2e import Outcome
from tests.upstream.integration import PLUGINS_OF, POLICYSCHED, PROFILES_OF, IntegrationTest, cases_in
from tests.upstream.integration_build import PACKAGES

TIMEOUT = "30m"
ANY_NAME = {"policy_permissions": {"policies_allowed": [{"name": "*"}, {"name": "default-scheduler"}]}}


def all_tests(binary: Path, programs: Programs, folder: Path) -> list[IntegrationTest]:
    listed = subprocess.run(
        [binary, "-test.list=."],
        env=_environment(programs, folder),  # it starts etcd also for a list
        check=True,
        capture_output=True,
        text=True,
    )
    tests = [IntegrationTest(PACKAGES[int(name[4], 16)], f"Test{name[5:]}") for name in listed.stdout.split()]
    return [replace(test, cases=cases) for test in tests for cases in PROFILES_OF.get(test.name, ("",))]


def run_tests(
    binary: Path,
    tests: Iterable[IntegrationTest],
    scheduler: str,
    programs: Programs,
    folder: Path,
    added_to_policy: str = "",
) -> dict[IntegrationTest, dict[str, Outcome]]:
    """The outcomes by the names of their cases. What the folder has the log of is not run again."""
    tools = folder / "tools"
    environment = _environment(programs, tools)
    outcomes = {}
    for test in tests:
        log = folder / f"{test.full_name.replace('/', '-')}{test.cases and '.' + test.cases}.log"
        if not log.exists():
            flags = [
                *("-test.v", f"-test.timeout={TIMEOUT}"),
                *(f"-test.run={test.run}", f"-test.skip={test.skip}"),
            ]
            policy = tools / "main.policy"
            policy.write_text(_policy(test, tools) + added_to_policy)
            unfinished = log.with_suffix(".unfinished")
            with (
                unfinished.open("w") as written,
                _policysched(log.with_suffix(".policysched.log"), tools) as socket,
            ):
                if scheduler == POLICYSCHED:
                    environment |= {"EXTERNAL_SCHEDULER": socket, "EXTERNAL_POLICY": str(policy)}
                subprocess.run(
                    [binary, *flags], cwd=folder, env=environment, stdout=written, stderr=written, check=False
                )
            unfinished.rename(log)
        outcomes[test] = cases_in(log.read_text(errors="replace"), test)
    return outcomes


def _environment(programs: Programs, folder: Path) -> dict[str, str]:
    """With etcd on the PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "etcd"
    path.write_text(f'#!/bin/sh\nexec {" ".join(programs["etcd"].argv)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {**ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}"}


@contextmanager
def _policysched(log: Path, folder: Path) -> Iterator[str]:
    """The path of a socket. policysched runs with the kubeconfig that is the line of a connection, while it is open; a byte
    says that it decides."""
    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump(ANY_NAME))

    class Connection(StreamRequestHandler):
        def handle(self) -> None:
            kubeconfig = self.rfile.readline().decode().strip()
            (port,) = free_ports(1)
            arguments = [
                *("run", "--config", str(settings), "--kubeconfig", kubeconfig, "--no-leader-elect"),
                *("--policies", "policysched/policies", "--insecure-http", "--http", f"127.0.0.1:{port}"),
            ]
            running = Running(arguments, log, port)
            try:
                running.wait_for_state("default-scheduler", "active")
                self.wfile.write(b"1")
                self.rfile.read()
            finally:
                running.process.kill()
                running.process.wait()

    # the path of a socket must be short
    with TemporaryDirectory(prefix="policysched-upstream-") as temporary:
        socket = f"{temporary}/socket"
        with ThreadingUnixStreamServer(socket, Connection) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield socket
            finally:
                server.shutdown()


def _policy(test: IntegrationTest, folder: Path) -> str:
    profile: dict[str, object] = {"schedulerName": "default-scheduler"}
    if test.name in PLUGINS_OF:
        profile["plugins"] = PLUGINS_OF[test.name]
    elif test.cases in PROFILES_OF.get(test.name, {}):
        profile |= PROFILES_OF[test.name][test.cases]
    else:
        return policy_text()
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    configuration = folder / "configuration.yaml"
    configuration.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "policysched", "import-config", configuration]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
