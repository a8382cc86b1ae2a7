"""`python -m tests.soak.hostile`: exit code 1 if the hostile tenant slows the friendly one."""

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tests.bench.beside.world import world
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import find_programs
from tests.devices import gpu, slice_manifest
from tests.e2e.deployed import Deployed
from tests.e2e.program import Running
from tests.soak.hostile import attacks, friendly
from tests.soak.hostile.attacks import ATTACKS, Target
from tests.soak.hostile.friendly import FriendlyTenant

SETTLE_S = 3.0
"""After the attacks: a quiet window begins when what they left is deleted."""
SHARED, OWN = "shared", "hostile-own"
REFERENCE = "default-scheduler"
"""kube-scheduler."""
RATIO_MAX = 2.0
NOISE_S = 0.05
"""Added to the quiet figure: a pause of the machine, which a window of seconds may have by chance."""
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
    "authority": {"policies_allowed": [{"name": SHARED}, {"name": f"{OWN}", "owner": attacks.NAMESPACE}]},
    "team_policies": {"required_base": "base.policy"},
}


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--window-s", default=30.0, show_default=True, help="Of each quiet and each hostile window.")
@click.option("--nodes", default=100, show_default=True)
@click.option(
    "--interval-s", default=0.25, show_default=True, help="Between two pods of the friendly tenant."
)
@click.option(
    "--attack", "chosen", multiple=True, type=click.Choice(list(ATTACKS)), help="All at once unless said."
)
def main(minutes: float, window_s: float, nodes: int, interval_s: float, chosen: tuple[str, ...]) -> None:
    """A hostile tenant beside a friendly one: quiet and hostile windows in turns, on one control plane."""
    raise SystemExit(asyncio.run(_soak(minutes * 60, window_s, nodes, interval_s, chosen or tuple(ATTACKS))))


async def _soak(
    span_s: float, window_s: float, nodes: int, interval_s: float, chosen: tuple[str, ...]
) -> int:
    quiet: dict[str, list[float]] = {SHARED: [], REFERENCE: []}
    beside: dict[str, list[float]] = {SHARED: [], REFERENCE: []}
    with tempfile.TemporaryDirectory() as folder, ControlPlane(find_programs()) as control_plane:
        deployed = Deployed(control_plane, Path(folder))
        deployed.kubectl("apply", "-k", str(Path(__file__).parents[3] / "deploy/team-policies"))
        deployed.put_policies(main=POLICY, base=BASE)
        for namespace in (friendly.NAMESPACE, attacks.NAMESPACE):
            control_plane.create_namespace(namespace)
        _add_devices(deployed)
        async with world(control_plane) as there:
            await there.add_nodes(nodes)
            control_plane.start_scheduler()
            with deployed.running(settings=SETTINGS, elect=True) as running:
                await asyncio.to_thread(running.wait_until_ready)
                tenant = FriendlyTenant(there, (SHARED, REFERENCE), interval_s / 2)
                target = Target(
                    control_plane.url,
                    control_plane.authority_path,
                    control_plane.admin,
                    running.port,
                    nodes,
                    SHARED,
                    OWN,
                )
                await tenant.latencies_s(window_s / 4)  # what all use is built
                loop = asyncio.get_running_loop()
                ends_s = loop.time() + span_s
                while loop.time() < ends_s:
                    for name, latencies_s in (await _window("quiet", tenant, window_s, running)).items():
                        quiet[name] += latencies_s
                    with _attacking(target, chosen):
                        for name, latencies_s in (
                            await _window("hostile", tenant, window_s, running)
                        ).items():
                            beside[name] += latencies_s
                    await attacks.clean_up(there)
                    await asyncio.sleep(SETTLE_S)
    return _verdict(quiet, beside)


def _verdict(quiet: dict[str, list[float]], beside: dict[str, list[float]]) -> int:
    """0: the p99 beside the hostile tenant is within the limit."""
    for name in quiet:
        click.echo(f"{name}, quiet: {_line(quiet[name])}")
        click.echo(f"{name}, beside the hostile tenant: {_line(beside[name])}")
    load_s = max(0.0, percentile_s(beside[REFERENCE], 99) - percentile_s(quiet[REFERENCE], 99))
    p99_s, limit_s = (
        percentile_s(beside[SHARED], 99),
        RATIO_MAX * percentile_s(quiet[SHARED], 99) + NOISE_S + load_s,
    )
    click.echo(
        f"p99 beside the hostile tenant: {p99_s * 1000:.0f} ms, {p99_s / percentile_s(quiet[SHARED], 99):.1f} times the quiet one. "
        f"The limit is {RATIO_MAX:g} times the quiet one, {NOISE_S * 1000:.0f} ms of noise, and the {load_s * 1000:.0f} ms that "
        f"{REFERENCE} lost without any of the hostile pods: {limit_s * 1000:.0f} ms, {'held' if p99_s <= limit_s else 'EXCEEDED'}"
    )
    return 0 if p99_s <= limit_s else 1


@contextmanager
def _attacking(target: Target, chosen: tuple[str, ...]) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=attacks.attack, args=(target, chosen))
    process.start()
    try:
        yield
        assert process.is_alive(), f"the hostile tenant ended with {process.exitcode}"
    finally:
        process.terminate()
        process.join()


async def _window(
    name: str, tenant: FriendlyTenant, window_s: float, running: Running
) -> dict[str, list[float]]:
    before_s = _cpu_s(running)
    latencies_s = await tenant.latencies_s(window_s)
    assert running.process.poll() is None, "the scheduler ended"
    rss = next(
        int(line.split()[1]) >> 10
        for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    click.echo(
        f"{name}: {_line(latencies_s[SHARED])}; {REFERENCE}: {_line(latencies_s[REFERENCE])}; "
        f"{_cpu_s(running) - before_s:.1f} s of CPU, {rss} MiB, log {len(running.log()) >> 10} KiB"
    )
    return latencies_s


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


def percentile_s(latencies_s: list[float], percent: int) -> float:
    return sorted(latencies_s)[len(latencies_s) * percent // 100]


def _line(latencies_s: list[float]) -> str:
    p50, p99 = (percentile_s(latencies_s, percent) * 1000 for percent in (50, 99))
    return f"{len(latencies_s)} pods, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(latencies_s) * 1000:.0f} ms"


if __name__ == "__main__":
    main()
