"""`python -m tests.soak.hostile`: exit code 1 if the hostile tenant slows the friendly one, 2 if too little was measured."""

import asyncio
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from tests.soak.hostile.attacks import ATTACKS, RIGHTS, Target
from tests.soak.hostile.bounds import Rates, allow_in_namespace, limit_requests_of
from tests.soak.hostile.cpu_requests import (
    APISERVER_MILLICPU,
    ATTACKER_MILLICPU,
    ETCD_MILLICPU,
    CpuRequests,
    deployed_millicpu,
)
from tests.soak.hostile.friendly import FriendlyTenant
from tests.soak.hostile.latencies import (
    AUDIT_RULE,
    Latencies,
    Latency,
    percentile_s,
    scheduler_parts_s,
)
from tests.soak.hostile.long_pieces import record_in
from tests.soak.hostile.measured_scheduler import MeasuredScheduler
from tests.soak.hostile.planted import PLANTS
from tests.soak.hostile.report import WINDOWS, print_report

ATTACKS_BEGIN_WITHIN_S = 60.0
BURST_WINDOW_S = 40.0
"""Before each hostile window, for the bursts of the attacks (`bounds`)."""
SETTLE_S = 3.0
"""After the attacks: a quiet window begins when what they left is deleted."""
QUIET_WINDOWS = 2
"""As long as so many others: the limit is made of one window."""
SHARED, OWN = "shared", "hostile-own"
REFERENCE = "default-scheduler"
"""kube-scheduler, if it runs beside."""
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
        "policies_allowed": [
            {"name": SHARED},
            {"name": OWN, "owner": attacks.NAMESPACE},
            {"name": f"{OWN}-edited", "owner": attacks.NAMESPACE},
        ]
    },
    "team_policies": {"required_base": "base.policy"},
}


@dataclass(frozen=True)
class Processors:
    """Of this machine: the schedulers have one half, the hostile tenant the other, the API server and etcd both. In a cluster
    they are on other machines, or share one of many more."""

    tenant: frozenset[int]
    control_plane: frozenset[int]
    schedulers: frozenset[int]

    @classmethod
    def divided(cls) -> "Processors":
        every = sorted(os.sched_getaffinity(0))
        half = len(every) // 2
        return cls(frozenset(every[:half] or every), frozenset(every), frozenset(every[half:]))

    @classmethod
    def shared(cls) -> "Processors":
        every = frozenset(os.sched_getaffinity(0))
        return cls(every, every, every)


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
@click.option("--window-s", default=60.0, show_default=True, help="Of each quiet and each hostile window.")
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
@click.option("--requests-per-s", default=Rates.requests_per_s, show_default=True, help="Of each attack.")
@click.option("--kib-per-s", default=Rates.bytes_per_s / 1024, show_default=True, help="Of each attack.")
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
@click.option(
    "--beside-kube-scheduler",
    "is_beside",
    is_flag=True,
    help="Every other pod is for a kube-scheduler on the same processor, and p99 must not exceed its p99.",
)
@click.option("--plant", type=click.Choice(list(PLANTS)), help="Run a scheduler with this fault.")
def main(
    minutes: float,
    window_s: float,
    nodes: int,
    interval_s: float,
    chosen: tuple[str, ...],
    requests_per_s: float,
    kib_per_s: float,
    shared_processors: bool,
    pieces: Path | None,
    is_beside: bool,
    plant: str | None,
) -> None:
    """A hostile tenant beside a friendly one: quiet and hostile windows in turns, on one control plane."""
    change = no_change if plant is None else PLANTS[plant]
    if pieces is not None:
        change = partial(record_in, pieces.absolute())
    soak = Soak(
        span_s=minutes * 60,
        window_s=window_s,
        nodes=nodes,
        interval_s=interval_s,
        attacks=chosen or tuple(ATTACKS),
        rates=Rates(requests_per_s, kib_per_s * 1024),
        processors=Processors.shared() if shared_processors else Processors.divided(),
        is_beside=is_beside,
        change=MeasuredScheduler(change),
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
        rates: Rates,
        processors: Processors,
        is_beside: bool,
        change: Callable[[], None],
    ) -> None:
        self._span_s = span_s
        self._window_s = window_s
        self._node_count = nodes
        self._interval_s = interval_s
        self._attacks = attacks
        self._rates = rates
        self._processors = processors
        self._change = change
        self._console = Console()
        self._schedulers = (SHARED, REFERENCE) if is_beside else (SHARED,)
        self._measured = {window: {name: Latencies() for name in self._schedulers} for window in WINDOWS}
        self._hits: list[dict[str, int]] = []

    async def run(self) -> int:
        """The exit code."""
        rule = {**AUDIT_RULE, "namespaces": [friendly.NAMESPACE]}
        with CpuRequests.made() as requests, tempfile.TemporaryDirectory() as folder:
            if not requests:
                self._console.print(
                    "no cgroups: threads share the processors equally, not as their pods request"
                )
            with on(self._processors.control_plane):
                control_plane = ControlPlane(find_programs(), audit_rules=[rule])
            with control_plane:
                apiserver, etcd = control_plane.serving_pids
                requests.place("kube-apiserver", apiserver, APISERVER_MILLICPU)
                requests.place("etcd", etcd, ETCD_MILLICPU)
                deployed = Deployed(control_plane, Path(folder))
                deployed.kubectl("apply", "-k", str(Path(__file__).parents[3] / "deploy/team-policies"))
                deployed.put_policies(main=POLICY, base=BASE)
                for namespace in (friendly.NAMESPACE, attacks.NAMESPACE):
                    control_plane.create_namespace(namespace)
                allow_in_namespace(control_plane.api, friendly.NAMESPACE, friendly.NAMESPACE, {"": ["pods"]})
                allow_in_namespace(control_plane.api, attacks.NAMESPACE, attacks.NAMESPACE, RIGHTS)
                limit_requests_of(control_plane.api, attacks.NAMESPACE)
                _add_devices(deployed)
                async with world(control_plane) as hostile_world:
                    await hostile_world.add_nodes(self._node_count)
                    await self._run_beside(hostile_world, deployed, requests)
                parts_s = scheduler_parts_s(control_plane.audit_records())
        for by_scheduler in self._measured.values():
            for latencies in by_scheduler.values():
                latencies.add_scheduler_parts(parts_s)
        return print_report(self._console, self._measured, self._hits, *self._schedulers)

    async def _run_beside(self, hostile_world: World, deployed: Deployed, requests: CpuRequests) -> None:
        with on(self._processors.schedulers):
            if REFERENCE in self._schedulers:
                reference = deployed.control_plane.start_scheduler()
                requests.place(REFERENCE, reference.pid, deployed_millicpu())
            running = deployed.start(settings=SETTINGS, elect=True, plant=self._change)
            requests.place("policysched", running.process.pid, deployed_millicpu())
        try:
            await asyncio.to_thread(running.wait_until_ready)
            await self._run_windows(hostile_world, deployed.control_plane, running, requests)
            assert running.terminate() == 0, running.log()
        finally:
            running.kill()

    async def _run_windows(
        self, hostile_world: World, control_plane: ControlPlane, running: Running, requests: CpuRequests
    ) -> None:
        target = Target(
            control_plane.url,
            control_plane.authority_path,
            control_plane.admin,
            control_plane.client(attacks.NAMESPACE),
            running.port,
            self._node_count,
            SHARED,
            OWN,
            self._rates,
        )
        friend = control_plane.client(friendly.NAMESPACE)
        async with world(replace(target, admin=friend)) as friendly_world:
            tenant = FriendlyTenant(
                friendly_world, self._schedulers, self._interval_s / len(self._schedulers)
            )
            await tenant.latencies_s(self._window_s / 4)  # what all use is built
            await self._take_turns(
                tenant, target, hostile_world, running, control_plane.serving_pids, requests
            )

    async def _take_turns(
        self,
        tenant: FriendlyTenant,
        target: Target,
        hostile_world: World,
        running: Running,
        serving_pids: tuple[int, ...],
        requests: CpuRequests,
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task("quiet", total=self._span_s)

            async def measure(window: str, span_s: float = self._window_s) -> None:
                progress.update(bar, description=window, completed=loop.time() - began_s)
                await self._measure(window, span_s, tenant, running, serving_pids, progress.console)

            await measure("quiet", QUIET_WINDOWS * self._window_s)
            while not self._hits or loop.time() - began_s < self._span_s:
                with self._attacking(target, requests) as attackers:
                    await measure("burst", BURST_WINDOW_S)
                    os.kill(attackers, signal.SIGUSR1)
                    await measure("hostile")
                await attacks.clean_up(hostile_world)
                await asyncio.sleep(SETTLE_S)
                await measure("after")

    async def _measure(
        self,
        window: str,
        span_s: float,
        tenant: FriendlyTenant,
        running: Running,
        serving_pids: tuple[int, ...],
        console: Console,
    ) -> None:
        pids = running.process.pid, *serving_pids
        before_s = [_cpu_s(pid) for pid in pids]
        latencies_s = await tenant.latencies_s(span_s)
        assert running.process.poll() is None, running.log()[-20_000:]
        for name, by_pod in latencies_s.items():
            self._measured[window][name].by_pod.update(by_pod)
        scheduler_s, *serving_s = (_cpu_s(pid) - cpu_s for pid, cpu_s in zip(pids, before_s, strict=True))
        lines = "; ".join(f"{name}: {_line(by_pod)}" for name, by_pod in latencies_s.items())
        console.print(
            f"{window}: {lines}; "
            f"{scheduler_s:.1f} s of CPU, {_resident_mib(running)} MiB, log {len(running.log()) >> 10} KiB; "
            f"API server {sum(serving_s):.1f} s of CPU",
            highlight=False,
            soft_wrap=True,
        )

    @contextmanager
    def _attacking(self, target: Target, requests: CpuRequests) -> Iterator[int]:
        """The attacking process."""
        receiving, sending = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(
            target=attacks.attack, args=(target, self._attacks, sending)
        )
        with on(self._processors.tenant):
            process.start()
        assert process.pid is not None
        requests.place("attacker", process.pid, ATTACKER_MILLICPU)
        try:
            assert receiving.poll(ATTACKS_BEGIN_WITHIN_S), "the hostile tenant does not begin"
            receiving.recv()
            yield process.pid
            assert process.is_alive(), f"the hostile tenant ended with {process.exitcode}"
            process.terminate()
            assert receiving.poll(ATTACKS_BEGIN_WITHIN_S), "the hostile tenant does not say what hit"
            self._hits.append(receiving.recv())
        finally:
            process.kill()
            process.join()


def _resident_mib(running: Running) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _add_devices(deployed: Deployed) -> None:
    group = "/apis/resource.k8s.io/v1"
    deployed.api.post(f"{group}/deviceclasses", {"metadata": {"name": "hostile"}, "spec": {}})
    for node in range(10):
        made = slice_manifest(f"node-{node:05}", *(gpu(f"g{place}") for place in range(8)))
        made["metadata"] = {"name": made["metadata"]["name"]}
        deployed.api.post(f"{group}/resourceslices", made)


def _line(by_pod: dict[str, Latency]) -> str:
    latencies_s = [latency.bound_s for latency in by_pod.values()]
    p50, p99 = (percentile_s(latencies_s, percent) * 1000 for percent in (50, 99))
    return f"{len(latencies_s)} pods, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(latencies_s) * 1000:.0f} ms"


if __name__ == "__main__":
    main()
