"""`python -m tests.bench.beside`: see the package."""

import asyncio
import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path

import click
from rich.console import Console

from tests.bench.beside.report import page, plot, ratios, rows, table
from tests.bench.beside.rounds import SCHEDULERS, Turn, take_turn
from tests.bench.beside.workloads import GANG_SIZES, PLACED_BEFORE, WORKLOADS
from tests.bench.beside.world import POD_GROUPS_VERSION, world
from tests.controlplane.cluster import NO_FEATURES, ControlPlane, Features
from tests.controlplane.programs import Programs, find_programs
from tests.e2e.deployed import PLAIN, Deployed


@click.command()
@click.option("--nodes", multiple=True, type=int, default=(1000,), show_default=True, help="May be repeated.")
@click.option("--pods", type=int, default=2000, show_default=True, help="How many wait at each turn.")
@click.option(
    "--workload",
    multiple=True,
    type=click.Choice(list(WORKLOADS)),
    default=tuple(name for name in WORKLOADS if name not in PLACED_BEFORE and name not in GANG_SIZES),
    help="All of them unless said, but those beside hostile pods and those of PodGroups, which need a feature gate.",
)
@click.option("--turns", type=int, default=3, show_default=True, help="Of each scheduler.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(SCHEDULERS)),
    default=("policysched", "kube-scheduler"),
    show_default=True,
    help="Just these; `recorded` is policysched with a recording.",
)
@click.option("--profile", type=click.Path(path_type=Path), help="Write a cProfile of policysched there.")
@click.option(
    "--raw", type=click.Path(path_type=Path), help="Keep every turn there as JSON; those in it count too."
)
@click.option(
    "--docs", type=click.Path(path_type=Path), help="Write benchmarks.md and benchmarks.svg into this folder."
)
@click.option("--note", default="", help="A sentence about this run, for the page.")
def main(
    nodes: tuple[int, ...],
    pods: int,
    workload: tuple[str, ...],
    turns: int,
    only: tuple[str, ...],
    profile: Path | None,
    raw: Path | None,
    docs: Path | None,
    note: str,
) -> None:
    """Compare the throughput of policysched and kube-scheduler on one control plane, in alternating
    turns.
    """
    console, programs = Console(), find_programs()
    taken = [Turn(**load) for load in json.loads(raw.read_text())] if raw is not None and raw.exists() else []
    for count in nodes:
        taken += asyncio.run(_measure(console, programs, count, pods, workload, turns, only, profile))
        if raw is not None:
            raw.write_text(json.dumps([asdict(turn) for turn in taken]))
    table_rows = rows(taken)
    console.print(table(table_rows))
    for sentence in ratios(table_rows):
        console.print(sentence, soft_wrap=True)
    if docs is not None:
        version = programs["kube-apiserver"].kubernetes_version
        (docs / "benchmarks.md").write_text(
            page(table_rows, kubernetes=version, plot="benchmarks.svg", note=note)
        )
        (docs / "benchmarks.svg").write_text(plot(taken))


def _has_gangs(workloads: Iterable[str]) -> bool:
    return any(workload in GANG_SIZES for workload in workloads)


def _features(workloads: Iterable[str]) -> Features:
    """PodGroups are off by default."""
    return (
        Features({"GenericWorkload": True}, (POD_GROUPS_VERSION,)) if _has_gangs(workloads) else NO_FEATURES
    )


async def _measure(
    console: Console,
    programs: Programs,
    nodes: int,
    pods: int,
    workloads: tuple[str, ...],
    turns: int,
    only: tuple[str, ...],
    profile: Path | None,
) -> list[Turn]:
    taken = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(programs, features=_features(workloads)) as control_plane,
    ):
        deployed = Deployed(control_plane, Path(folder))
        deployed.put_policies(main=PLAIN + ("include pod_groups\n" if _has_gangs(workloads) else ""))
        async with world(control_plane) as measured:
            await measured.add_nodes(nodes)
            for workload, number, name in product(workloads, range(turns), only):
                turn = await take_turn(
                    name, deployed, measured, workload=workload, nodes=nodes, pods=pods, profile=profile
                )
                console.print(
                    f"{nodes} nodes, {workload}, turn {number + 1}: {name} {turn.pods_per_s:.0f} pods/s, "
                    f"last event after {turn.last_event_s:.1f} s ({turn.events}), CPU {turn.cpu_s:.1f} s, "
                    f"{turn.peak_mib:.0f} MiB",
                    soft_wrap=True,
                )
                taken.append(turn)
    return taken


main()
