"""`python -m tests.soak.hostile`: exit code 1 if the hostile tenant slows the friendly one, 2 if too little was measured."""

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.bench.beside.world import World, world
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import find_programs
from tests.devices import gpu, slice_manifest
from tests.e2e.deployed import Deployed
from tests.e2e.preloaded import no_change
from tests.e2e.program import Running
from tests.soak.hostile import attacks, friendly
from tests.soak.hostile.attacks import ATTACKS, Target
from tests.soak.hostile.friendly import FriendlyTenant
from tests.soak.hostile.latencies import AUDIT_RULE, Latencies, percentile_s, scheduler_parts_s
from tests.soak.hostile.long_pieces import record_in
from tests.soak.hostile.report import WINDOWS, print_report

SETTLE_S = 3.0
"""After the attacks: a quiet window begins when what they left is deleted."""
SHARED, OWN = "shared", "hostile-own"
REFERENCE = "default-scheduler"
"""kube-scheduler."""
BASE = "library base version 1\ninclude kube_default\n"
POLICY = f"""policy {SHARED} version 1
include kube_default
input gang_name: string = pod.labels["{attacks.GANG}"] optional
input gang_members: int = pod.labels["{attacks.MEMBERS}"] default 1 invalid default
gang by gang_name {{
  min = max(1, gang_members)
  timeout = 1h
}}
"""
SETTINGS = {
    "policy_permissions": {
        "policies_allowed": [{"name": SHARED}, {"name": f"{OWN}", "owner": attacks.NAMESPACE}]
    },
    "team_policies": {"required_base": "base.policy"},
}


@dataclass(frozen=True)
class Processors:
    """Of this machine: the API server, etcd and the hostile tenant have others than the schedulers, unless hostile_world is only one.
    In a cluster they are on other machines, or share one of many more."""

    control_plane: frozenset[int]
    schedulers: frozenset[int]

    @classmethod
    def divided(cls) -> "Processors":
        every = sorted(os.sched_getaffinity(0))
        half = len(every) // 2
        return cls(frozenset(every[:half] or every), frozenset(every[half:]))

    @classmethod
    def shared(cls) -> "Processors":
        every = frozenset(os.sched_getaffinity(0))
        return cls(every, every)


@contextmanager
def on(processors: frozenset[int]) -> Iterator[None]:
    """For the processes that are started in the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--window-s", default=30.0, show_default=True, help="Of each quiet and each hostile window.")
@click.option("--nodes", default=100, show_default=True)
@click.option(
    "--interval-s",
    default=0.25,
    show_default=True,
    help="Between two pods of the friendly tenant for a scheduler.",
)
@click.option(
    "--attack", "chosen", multiple=True, type=click.Choice(list(ATTACKS)), help="All at once unless said."
)
@click.option(
    "--shared-processors",
    is_flag=True,
    help="The schedulers share their processors with the API server and the hostile tenant.",
)
@click.option(
    "--pieces",
    type=click.Path(path_type=Path),
    help="Write the long pieces of the main loop's work to this file.",
)
def main(
    minutes: float,
    window_s: float,
    nodes: int,
    interval_s: float,
    chosen: tuple[str, ...],
    shared_processors: bool,
    pieces: Path | None,
) -> None:
    """A hostile tenant beside a friendly one: quiet and hostile windows in turns, on one control plane."""
    soak = Soak(
        span_s=minutes * 60,
        window_s=window_s,
        nodes=nodes,
        interval_s=interval_s,
        attacks=chosen or tuple(ATTACKS),
        processors=Processors.shared() if shared_processors else Processors.divided(),
        pieces=pieces,
    )
    raise SystemExit(asyncio.run(soak.run()))


class Soak:
    def __init__(
        self,
        *,
        span_s: float,
        window_s: float,
        nodes: int,
        interval_s: float,
        attacks: Sequence[str],
        processors: Processors,
        pieces: Path | None,
    ) -> None:
        self._span_s = span_s
        self._window_s = window_s
        self._node_count = nodes
        self._interval_s = interval_s
        self._attacks = attacks
        self._processors = processors
        self._pieces = pieces
        self._console = Console()
        self._measured = {name: {SHARED: Latencies(), REFERENCE: Latencies()} for name in WINDOWS}
        self._hits: list[dict[str, int]] = []

    async def run(self) -> int:
        """The exit code."""
        rule = {**AUDIT_RULE, "namespaces": [friendly.NAMESPACE]}
        with tempfile.TemporaryDirectory() as folder:
            with on(self._processors.control_plane):
                control_plane = ControlPlane(find_programs(), audit_rules=[rule])
            with control_plane:
                deployed = Deployed(control_plane, Path(folder))
                deployed.kubectl("apply", "-k", str(Path(__file__).parents[3] / "deploy/team-policies"))
                deployed.put_policies(main=POLICY, base=BASE)
                for namespace in (friendly.NAMESPACE, attacks.NAMESPACE):
                    control_plane.create_namespace(namespace)
                _add_devices(deployed)
                async with world(control_plane) as hostile_world:
                    await hostile_world.add_nodes(self._node_count)
                    await self._run_beside(hostile_world, deployed)
                parts_s = scheduler_parts_s(control_plane.audit_records())
        for by_scheduler in self._measured.values():
            for latencies in by_scheduler.values():
                latencies.add_scheduler_parts(parts_s)
        return print_report(self._console, self._measured, self._hits, SHARED, REFERENCE)

    async def _run_beside(self, hostile_world: World, deployed: Deployed) -> None:
        plant = no_change if self._pieces is None else partial(record_in, self._pieces.absolute())
        with on(self._processors.schedulers):
            deployed.control_plane.start_scheduler()
            running = deployed.start(settings=SETTINGS, elect=True, plant=plant)
        try:
            await asyncio.to_thread(running.wait_until_ready)
            await self._run_windows(hostile_world, deployed.control_plane, running)
            assert running.terminate() == 0, running.log()
        finally:
            running.kill()

    async def _run_windows(self, hostile_world: World, control_plane: ControlPlane, running: Running) -> None:
        tenant = FriendlyTenant(hostile_world, (SHARED, REFERENCE), self._interval_s / 2)
        target = Target(
            control_plane.url,
            control_plane.authority_path,
            control_plane.admin,
            running.port,
            self._node_count,
            SHARED,
            OWN,
        )
        await tenant.latencies_s(self._window_s / 4)  # what all use is built
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task("quiet", total=self._span_s)

            async def measure(window: str) -> None:
                progress.update(bar, description=window, completed=loop.time() - began_s)
                await self._measure(window, tenant, running, progress.console)

            await measure("quiet")
            while not self._hits or loop.time() - began_s < self._span_s:
                with self._attacking(target):
                    await measure("hostile")
                await attacks.clean_up(hostile_world)
                await asyncio.sleep(SETTLE_S)
                await measure("after")

    async def _measure(self, window: str, tenant: FriendlyTenant, running: Running, console: Console) -> None:
        before_s = _cpu_s(running)
        latencies_s = await tenant.latencies_s(self._window_s)
        assert running.process.poll() is None, "the scheduler ended"
        for name, by_pod in latencies_s.items():
            self._measured[window][name].by_pod.update(by_pod)
        console.print(
            f"{window}: {_line(latencies_s[SHARED])}; {REFERENCE}: {_line(latencies_s[REFERENCE])}; "
            f"{_cpu_s(running) - before_s:.1f} s of CPU, {_resident_mib(running)} MiB, "
            f"log {len(running.log()) >> 10} KiB",
            highlight=False,
            soft_wrap=True,
        )

    @contextmanager
    def _attacking(self, target: Target) -> Iterator[None]:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(
            target=attacks.attack, args=(target, self._attacks, sending)
        )
        with on(self._processors.control_plane):
            process.start()
        try:
            yield
            assert process.is_alive(), f"the hostile tenant ended with {process.exitcode}"
            process.terminate()
            assert receiving.poll(60), "the hostile tenant does not say what hit"
            self._hits.append(receiving.recv())
        finally:
            process.kill()
            process.join()


def _resident_mib(running: Running) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


def _cpu_s(running: Running) -> float:
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _add_devices(deployed: Deployed) -> None:
    group = "/apis/resource.k8s.io/v1"
    deployed.api.post(f"{group}/deviceclasses", {"metadata": {"name": "hostile"}, "spec": {}})
    for node in range(10):
        made = slice_manifest(f"node-{node:05}", *(gpu(f"g{place}") for place in range(8)))
        made["metadata"] = {"name": made["metadata"]["name"]}
        deployed.api.post(f"{group}/resourceslices", made)


def _line(by_pod: dict[str, float]) -> str:
    latencies_s = list(by_pod.values())
    p50, p99 = (percentile_s(latencies_s, percent) * 1000 for percent in (50, 99))
    return f"{len(latencies_s)} pods, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(latencies_s) * 1000:.0f} ms"


if __name__ == "__main__":
    main()
