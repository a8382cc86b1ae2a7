"""`policysched demo`: a policy edited live on a simulated cluster, in ten seconds."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from policysched.cli import CommandError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from policysched.sandbox.demo import Demo

Answer = TypeVar("Answer")

BUSY_LINK_BITS_S = 500e6
_APPS = ("shipper", "web", "trainer", "trainer-xl")


@click.command()
@click.option("--keep", is_flag=True, help="Keep the cluster and the scheduler running until Ctrl-C.")
def demo(keep: bool) -> None:
    """Start a simulated cluster and a scheduler, run a workload, and edit a policy live.

    Everything runs on this machine; nothing is installed. With --keep the cluster stays up, and the
    demo prints how to reach it with kubectl and a browser.

    Examples:

    \b
      policysched demo
      policysched demo --keep

    Exit codes: 0 success; 2 the demo failed.
    """
    from policysched.sandbox.demo import DemoFailed

    try:
        asyncio.run(_demo(keep))
    except DemoFailed as error:
        raise CommandError(f"the demo failed: {error}") from error
    except KeyboardInterrupt:
        return


async def _demo(keep: bool) -> None:
    from rich.console import Console

    from policysched.sandbox.demo import Demo

    console = Console(highlight=False)
    try:
        folder = tempfile.TemporaryDirectory(prefix="policysched-demo-")
    except OSError as error:
        raise CommandError(f"the demo needs a folder for temporary files: {error.strerror}") from error
    with folder as directory:
        async with Demo(directory=Path(directory)) as demo:
            await _run_steps(console, demo)
            if keep:
                _print_next_steps(console, demo)
                await asyncio.Event().wait()


async def _run_steps(console: "Console", demo: "Demo") -> None:
    _heading(console, "A cluster of 6 nodes and two policies in a ConfigMap")
    demo.apply_policies()
    await demo.start_scheduler()
    console.print(
        "ConfigMap policysched/policies has network-aware.policy, whose `score bandwidth` is commented out, and "
        "gang-batch.policy. Pods choose one by schedulerName.\n"
    )
    with _live_table(console, demo) as live:
        await demo.apply_workload("shipper")
        await _await_with_table(demo.wait_for_pods("shipper", running=2), live, demo)
        await demo.apply_workload("web")
        await _await_with_table(demo.wait_for_pods("web", running=6), live, demo)
        await demo.apply_workload("trainer", "trainer-xl")
        await _await_with_table(demo.wait_for_pods("trainer", running=4), live, demo)
        message = await _await_with_table(demo.wait_for_message("trainer-xl"), live, demo)
    before = _count_by_traffic(demo)
    console.print(
        "\n\nThe log shippers fill the links of two nodes. The web pods were spread by their requests alone: "
        f"[bold]{before[0]} of {sum(before)}[/] share a busy link. The gang of 4 trainers started as a whole. "
        "The gang of 8 does not fit: it waits as a whole, holds no resources, and its pods report why:"
    )
    console.print(f"  [yellow]{message}[/]\n")

    _heading(console, "Edit the ConfigMap: score nodes by bandwidth")
    for line in await demo.edit_policy():
        style = "green" if line.startswith("+") else "red"
        console.print(line, style=style, markup=False, soft_wrap=True)
    await demo.wait_for_policy("network-aware.policy")
    await demo.wait_for_samples()
    console.print(
        "\nThe edit is checked, compiled and active without a restart. Scale web from 6 to 12 pods:\n"
    )
    with _live_table(console, demo) as live:
        await demo.scale("web", 12)
        await _await_with_table(demo.wait_for_pods("web", running=12), live, demo)
    after = _count_by_traffic(demo)
    busy, quiet = after[0] - before[0], after[1] - before[1]
    console.print(
        f"\n\nOf the six new web pods [bold]{busy}[/] share a busy link, [bold]{quiet}[/] do not.\n"
    )

    _heading(console, "Why was the newest web pod placed there?")
    await asyncio.to_thread(_explain_newest, console, demo)


def _heading(console: "Console", text: str) -> None:
    console.print(f"[bold cyan]── {text} ──[/]")


def _live_table(console: "Console", demo: "Demo") -> "Live":
    from rich.live import Live

    return Live(_table(demo), console=console, refresh_per_second=8)


async def _await_with_table(work: Coroutine[None, None, Answer], live: "Live", demo: "Demo") -> Answer:
    """Await a step and update the table meanwhile."""
    task = asyncio.create_task(work)
    while not task.done():
        live.update(_table(demo))
        await asyncio.wait([task], timeout=0.1)
    live.update(_table(demo))
    return task.result()


def _table(demo: "Demo") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node")
    table.add_column("receiving", justify="right")
    for app in _APPS:
        table.add_column(app, justify="right")
    for node in demo.node_rows():
        busy = node.receive_bits_s >= BUSY_LINK_BITS_S
        traffic = f"{node.receive_bits_s / 1e6:.0f} Mbit/s" if node.receive_bits_s else "-"
        counts = (str(node.pods.get(app, "")) for app in _APPS)
        table.add_row(node.name, traffic, *counts, style="yellow" if busy else "")
    waiting = (sum(not pod["spec"].get("nodeName") for pod in demo.pods_of(app)) for app in _APPS)
    table.add_row("pending", "", *(str(count or "") for count in waiting), style="dim")
    return table


def _count_by_traffic(demo: "Demo") -> tuple[int, int]:
    """Count the web pods on nodes with a busy link, and on other nodes."""
    counts = [0, 0]
    for node in demo.node_rows():
        counts[node.receive_bits_s < BUSY_LINK_BITS_S] += node.pods.get("web", 0)
    return counts[0], counts[1]


def _explain_newest(console: "Console", demo: "Demo") -> None:
    """Explain the newest web pod with the code of `policysched explain`."""
    import time

    from policysched.cli.explain_view import print_explanation
    from policysched.data_files import data_file
    from policysched.from_files.cluster_files import ClusterFiles
    from policysched.from_files.inputs import choose_policy, load_samples
    from policysched.offline.pod_explanation import explain_pod

    newest = max(demo.pods_of("web"), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
    files = ClusterFiles()
    for obj in demo.objects():
        files.add(obj)
    program = choose_policy(str(data_file("policies", "network-aware.policy")), None)
    at_ns = time.time_ns()
    samples, _ = load_samples(demo.samples_path, program, files.node_names(), now_ns=at_ns)
    name = f"{newest['metadata']['namespace']}/{newest['metadata']['name']}"
    result = explain_pod(program, files, name, samples=samples, now_ns=at_ns)
    print_explanation(console, result.record())


def _print_next_steps(console: "Console", demo: "Demo") -> None:
    console.print("\nThe cluster stays up until Ctrl-C. In another terminal:\n")
    console.print(f"  export KUBECONFIG={demo.sandbox.kubeconfig_path}", markup=False)
    console.print("  kubectl get pods -A -o wide")
    console.print("  kubectl -n policysched edit configmap policies")
    url = demo.page_url()
    waiting = [
        pod["metadata"] for app in _APPS for pod in demo.pods_of(app) if not pod["spec"].get("nodeName")
    ]
    if url:
        console.print(f"  policysched pending --url {url}", markup=False, soft_wrap=True)
    if url and waiting:
        pod = f"{waiting[0]['namespace']}/{waiting[0]['name']}"
        console.print(f"  policysched explain {pod} --url {url}", markup=False, soft_wrap=True)
    console.print(f"\nThe scheduler's page: {url}", markup=False)
    console.print(f"The scheduler's log: {demo.log_path}")
