"""`policysched sandbox`: a simulated cluster on this machine, for kubectl and `policysched run`."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from policysched.cli import CommandError
from policysched.data_files import expand_home

if TYPE_CHECKING:
    from policysched.sandbox.real.sandbox import RealSandbox
    from policysched.sandbox.sandbox import Sandbox

NODES_MAX = 20_000


@click.command()
@click.option(
    "--nodes",
    default="5",
    metavar="N|FILE",
    help="The number of nodes, or a file with manifests (default: 5).",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The port on 127.0.0.1 (default: a free port).",
)
@click.option(
    "--kubeconfig",
    default="sandbox.kubeconfig",
    type=click.Path(dir_okay=False),
    help="The file to write the kubeconfig to (default: sandbox.kubeconfig).",
)
@click.option(
    "--real",
    is_flag=True,
    help="Run etcd and kube-apiserver, from KUBEBUILDER_ASSETS or PATH, instead of the simulated server.",
)
def sandbox(nodes: str, port: int, kubeconfig: str, real: bool) -> None:
    """Run a simulated cluster: an API server, nodes, a kubelet and workload controllers.

    It has no scheduler: start `policysched run` next to it. Ctrl-C stops it; nothing is saved.

    The simulated server keeps roles, quotas and limit ranges without enforcing them, and does not evaluate rules in
    CEL. With --real the API server does, except for quotas, which need a controller that the sandbox lacks.

    Examples:

    \b
      policysched sandbox --nodes 10 --kubeconfig /tmp/sandbox
      kubectl --kubeconfig /tmp/sandbox get nodes
      KUBEBUILDER_ASSETS=$(setup-envtest use -p path) policysched sandbox --real

    Exit codes: 0 stopped by Ctrl-C or SIGTERM; 2 could not run.
    """
    from policysched.sandbox.initial_objects import ManifestRefused
    from policysched.sandbox.real.programs import ProgramFailed, find_programs
    from policysched.sandbox.real.sandbox import RealSandbox
    from policysched.sandbox.sandbox import Sandbox

    count, manifests = _nodes(nodes)
    path = expand_home(kubeconfig).resolve()
    wanted: Any = count if count is not None else [obj for obj in manifests if obj.get("kind") == "Node"]
    objects = [obj for obj in manifests if obj.get("kind") != "Node"]
    try:
        cluster: Sandbox | RealSandbox
        if real:
            cluster = RealSandbox(
                find_programs(), nodes=wanted, objects=objects, port=port, kubeconfig_path=path
            )
        else:
            cluster = Sandbox(nodes=wanted, objects=objects, port=port, kubeconfig_path=path)
        asyncio.run(_serve(cluster, path))
    except ManifestRefused as error:
        raise CommandError(f"{nodes}: {error}") from error
    except ProgramFailed as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        # An error without a file name is about the address.
        location = f"127.0.0.1:{port}" if error.filename is None else path
        raise CommandError(f"{location}: {error.strerror or error}") from error


async def _serve(sandbox: "Sandbox | RealSandbox", path: Path) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with sandbox:
        click.echo(f"The sandbox listens on {sandbox.url}. Stop it with Ctrl-C.")
        click.echo(f"export KUBECONFIG={path}")
        waiting = [asyncio.ensure_future(wait) for wait in (stopped.wait(), sandbox.wait_until_broken())]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for wait in waiting:
            wait.cancel()
        for wait in done:
            await wait


def _nodes(text: str) -> tuple[int | None, list[dict[str, Any]]]:
    """A count, or the manifests of a file."""
    if text.isdecimal():
        if int(text) > NODES_MAX:
            raise CommandError(f"--nodes {text}: the limit is {NODES_MAX} nodes")
        return int(text), []
    from policysched.from_files.cluster_files import read_objects
    from policysched.kube.decode.errors import MalformedObject
    from policysched.policy_files.source_set import UnusableFile

    try:
        objects = list(read_objects(text))
    except UnusableFile as error:
        raise CommandError(str(error)) from error
    if malformed := [obj for obj in objects if isinstance(obj, MalformedObject)]:
        raise CommandError(str(malformed[0]))
    return None, [obj for obj in objects if isinstance(obj, dict)]
