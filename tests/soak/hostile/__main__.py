"""`python -m tests.soak.hostile`: exit code 1 if the hostile tenant slows the friendly one."""

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from tests.bench.beside.world import world
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import find_programs
from tests.devices import gpu, slice_manifest
from tests.e2e.deployed import Deployed
from tests.e2e.preloaded import no_change
from tests.e2e.program import Running
from tests.soak.hostile import attacks, friendly
from tests.soak.hostile.attacks import ATTACKS, Target
from tests.soak.hostile.friendly import FriendlyTenant
from tests.soak.hostile.long_pieces import record_in

SETTLE_S = 3.0
"""After the attacks: a quiet window begins when what they left is deleted."""
SHARED, OWN = "shared", "hostile-own"
Latencies = dict[str, list[float]]
"""By scheduler, in seconds."""
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
    "policy_permissions": {
        "policies_allowed": [{"name": SHARED}, {"name": f"{OWN}", "owner": attacks.NAMESPACE}]
    },
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
    pieces: Path | None,
) -> None:
    """A hostile tenant beside a friendly one: quiet and hostile windows in turns, on one control plane."""
    attacks_made = chosen or tuple(ATTACKS)
    raise SystemExit(asyncio.run(_soak(minutes * 60, window_s, nodes, interval_s, attacks_made, pieces)))


async def _soak(
    span_s: float,
    window_s: float,
    nodes: int,
    interval_s: float,
    chosen: tuple[str, ...],
    pieces: Path | None,
) -> int:
    quiet: Latencies = {SHARED: [], REFERENCE: []}
    beside: Latencies = {SHARED: [], REFERENCE: []}
    after: Latencies = {SHARED: [], REFERENCE: []}
    with tempfile.TemporaryDirectory() as folder, ControlPlane(find_programs()) as control_plane:
        deployed = Deployed(control_plane, Path(folder))
        deployed.kubectl("apply", "-k", str(Path(__file__).parents[3] / "deploy/team-policies"))
        deployed.put_policies(main=POLICY, base=BASE)
        for namespace in (friendly.NAMESPACE, attacks.NAMESPACE):
            control_plane.create_namespace(namespace)
        _add_devices(deployed)
        async with world(control_plane) as hostile_world:
            await hostile_world.add_nodes(nodes)
            control_plane.start_scheduler()
            plant = no_change if pieces is None else partial(record_in, pieces.absolute())
            with deployed.running(settings=SETTINGS, elect=True, plant=plant) as running:
                await asyncio.to_thread(running.wait_until_ready)
                tenant = FriendlyTenant(hostile_world, (SHARED, REFERENCE), interval_s / 2)
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
                _extend(quiet, await _window("quiet", tenant, window_s, running))
                while not beside[SHARED] or loop.time() < ends_s:
                    with _attacking(target, chosen):
                        _extend(beside, await _window("hostile", tenant, window_s, running))
                    await attacks.clean_up(hostile_world)
                    await asyncio.sleep(SETTLE_S)
                    _extend(after, await _window("after", tenant, window_s, running))
    return _verdict(quiet, {"beside the hostile tenant": beside, "after it": after})


def _extend(latencies: Latencies, more: Latencies) -> None:
    for name, latencies_s in more.items():
        latencies[name] += latencies_s


def _verdict(quiet: Latencies, compared: Mapping[str, Latencies]) -> int:
    """0: the p99 is within the limit beside the hostile tenant, and again after it.

    Quiet is the window before the first attack alone: what an attack leaves behind must not raise the limit.
    """
    held = True
    for when, latencies in {"before": quiet, **compared}.items():
        for name, latencies_s in latencies.items():
            click.echo(f"{name}, {when}: {_line(latencies_s)}")
    for when, latencies in compared.items():
        load_s = max(0.0, percentile_s(latencies[REFERENCE], 99) - percentile_s(quiet[REFERENCE], 99))
        quiet_s, p99_s = percentile_s(quiet[SHARED], 99), percentile_s(latencies[SHARED], 99)
        limit_s = RATIO_MAX * quiet_s + NOISE_S + load_s
        click.echo(
            f"p99 {when}: {p99_s * 1000:.0f} ms, {p99_s / quiet_s:.1f} times the quiet one. The limit is {RATIO_MAX:g} times "
            f"the quiet one, {NOISE_S * 1000:.0f} ms of noise, and the {load_s * 1000:.0f} ms that {REFERENCE} lost without any "
            f"of the hostile pods: {limit_s * 1000:.0f} ms, {'held' if p99_s <= limit_s else 'EXCEEDED'}"
        )
        held = held and p99_s <= limit_s
    return 0 if held else 1


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
