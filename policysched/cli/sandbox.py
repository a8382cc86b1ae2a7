"""`policysched sandbox`: a pretend cluster on this machine, for stock kubectl and for `policysched run`."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from policysched.cli import CommandError
from policysched.data_files import expand_home

NODES_MAX = 20_000


@click.command()
@click.option(
    "--nodes", default="5", metavar="N|FILE", help="How many nodes, or a file of manifests (default: 5)."
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="On 127.0.0.1 (default: a free one).")
@click.option(
    "--kubeconfig",
    default="sandbox.kubeconfig",
    type=click.Path(dir_okay=False),
    help="Where to write the kubeconfig (default: sandbox.kubeconfig).",
)
def sandbox(nodes: str, port: int, kubeconfig: str) -> None:
    """An API server in this process with nodes, a pretend kubelet, and Deployments and Jobs that become pods.

    There is no scheduler in it: start `policysched run` beside it. It keeps nothing and ends with Ctrl-C.

    \b
    policysched sandbox --nodes 10 --kubeconfig /tmp/sandbox
    kubectl --kubeconfig /tmp/sandbox get nodes
    """
    from policysched.sandbox.sandbox import ManifestRefused, Sandbox

    count, manifests = _nodes(nodes)
    path = expand_home(kubeconfig).resolve()
    made = Sandbox(
        nodes=count if count is not None else [one for one in manifests if one.get("kind") == "Node"],
        objects=[one for one in manifests if one.get("kind") != "Node"],
        port=port,
        kubeconfig_path=path,
    )
    try:
        asyncio.run(_serve(made, path))
    except ManifestRefused as error:
        raise CommandError(f"{nodes}: {error}") from error
    except OSError as error:
        # Without a file's name it was the address.
        place = f"127.0.0.1:{port}" if error.filename is None else path
        raise CommandError(f"{place}: {error.strerror or error}") from error


async def _serve(sandbox: Any, path: Path) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with sandbox:
        click.echo(f"The sandbox answers at {sandbox.url}; stop it with Ctrl-C.")
        click.echo(f"export KUBECONFIG={path}")
        await stopped.wait()


def _nodes(text: str) -> tuple[int | None, list[dict[str, Any]]]:
    """A count, or the manifests of a file."""
    if text.isdecimal():
        if int(text) > NODES_MAX:
            raise CommandError(f"--nodes {text}: at most {NODES_MAX}")
        return int(text), []
    from policysched.harness.cluster_files import read_objects
    from policysched.kube.decode.errors import Malformed
    from policysched.policy_files.source_set import UnusableFile

    try:
        objects = list(read_objects(text))
    except UnusableFile as error:
        raise CommandError(str(error)) from error
    if wrong := [one for one in objects if isinstance(one, Malformed)]:
        raise CommandError(str(wrong[0]))
    return None, [one for one in objects if isinstance(one, dict)]
