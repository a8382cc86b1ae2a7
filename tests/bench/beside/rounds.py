"""One scheduler's turn: pods are pending, the scheduler starts, binds all of them and records
events, the pods are deleted.

The time is from the first bind to the last. The start (imports, the first lists) is left out for
both.
"""

import asyncio
import cProfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.beside.watching import Effort, Seen, sample, watch_all
from tests.bench.beside.world import World
from tests.e2e.deployed import Deployed
from tests.e2e.preloaded import no_change

ALL_WITHIN_S = 300.0
LAST_EVENT_WITHIN_S = 20.0
"""If no event arrives for this long, no more are expected: kube-scheduler may drop some."""

KUBE_SCHEDULER = """
clientConnection: {qps: 5000, burst: 5000}
profiles: [{schedulerName: test}]
"""


@dataclass(frozen=True)
class Turn:
    """Seconds since the first bind; `bound_s` has an entry for each pod."""

    scheduler: str
    workload: str
    nodes: int
    pods: int
    bound_s: list[float]
    last_event_s: float
    events: int
    cpu_s: float
    peak_mib: float

    @property
    def pods_per_s(self) -> float:
        return (self.pods - 1) / self.bound_s[-1]


@contextmanager
def policysched(deployed: Deployed, profile: Path | None) -> Iterator[int]:
    """Start policysched as `deploy/` does, or under a profiler, and return its process ID."""
    plant = no_change if profile is None else partial(profile_into, str(profile))
    with deployed.running(plant=plant, own_interpreter=profile is None) as running:
        yield running.process.pid


@contextmanager
def recorded(deployed: Deployed, profile: Path | None) -> Iterator[int]:
    """policysched with a recording."""
    plant = no_change if profile is None else partial(profile_into, str(profile))
    with (
        TemporaryDirectory() as folder,
        deployed.running("--record", folder, plant=plant) as running,
    ):
        yield running.process.pid
        assert running.metric("policysched_recording_dropped_total") == 0


def profile_into(path: str) -> None:
    """Profile the processor time of the main thread from here to its end, as others may use the machine. The process is one of
    `multiprocessing`, which has its own exit handlers."""
    profiler = cProfile.Profile(time.thread_time)
    Finalize(None, profiler.dump_stats, (path,), exitpriority=0)
    profiler.enable()


@contextmanager
def kube_scheduler(deployed: Deployed, profile: Path | None) -> Iterator[int]:
    del profile
    process = deployed.control_plane.start_scheduler(KUBE_SCHEDULER)
    try:
        yield process.pid
    finally:
        process.kill()


SCHEDULERS = {"policysched": policysched, "kube-scheduler": kube_scheduler, "recorded": recorded}


async def take_turn(
    name: str,
    deployed: Deployed,
    world: World,
    *,
    workload: str,
    nodes: int,
    pods: int,
    profile: Path | None = None,
) -> Turn:
    await world.add_pods(pods, scheduler="test", workload=workload)
    observed, effort = Seen(), Effort()
    watching = asyncio.create_task(watch_all(world, await world.version(), observed))
    with SCHEDULERS[name](deployed, profile) as pid:
        sampling = asyncio.create_task(sample(pid, effort))
        await _until_done(observed, pods, watching)
        begin_s, end_s = observed.bound_s[0], max(observed.bound_s[-1], observed.told_s[-1])
        await asyncio.sleep(0.2)  # one more sample after the end
        sampling.cancel()
    watching.cancel()
    await asyncio.gather(watching, sampling, return_exceptions=True)
    await world.delete_pods()
    return Turn(
        scheduler=name,
        workload=workload,
        nodes=nodes,
        pods=pods,
        bound_s=[at - begin_s for at in observed.bound_s],
        last_event_s=observed.told_s[-1] - begin_s,
        events=len(observed.told_s),
        cpu_s=effort.cpu_s(begin_s, end_s),
        peak_mib=effort.peak_bytes / 2**20,
    )


async def _until_done(observed: Seen, pods: int, watching: "asyncio.Task[None]") -> None:
    began_s = time.monotonic()
    while len(observed.bound_s) < pods or len(observed.told_s) < pods:
        await asyncio.sleep(0.05)
        now_s = time.monotonic()
        assert not watching.done(), f"the watch ended: {watching}"
        assert now_s - began_s < ALL_WITHIN_S, (
            f"{len(observed.bound_s)} of {pods} bound in {ALL_WITHIN_S:g} s"
        )
        last_s = max(observed.bound_s[-1:] + observed.told_s[-1:], default=now_s)
        if len(observed.bound_s) == pods and now_s - last_s > LAST_EVENT_WITHIN_S:
            return
