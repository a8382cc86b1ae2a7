"""Observation of a scheduler from outside: the time of each bind and event, CPU and memory."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.beside.world import PODS, World

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_EVERY_S = 0.05
SCHEDULED = "/apis/events.k8s.io/v1/namespaces/default/events"


@dataclass
class Seen:
    """Monotonic seconds of each bind, and of each event Scheduled."""

    bound_s: list[float] = field(default_factory=list)
    told_s: list[float] = field(default_factory=list)


@dataclass
class Effort:
    """Samples of the CPU seconds of a process and its children, and their highest memory: what is resident, files that
    children map as well (Python, NumPy) once."""

    samples: list[tuple[float, float]] = field(default_factory=list)
    peak_bytes: int = 0

    def cpu_s(self, begin_s: float, end_s: float) -> float:
        """The CPU seconds between two times, as precise as the samples."""
        before = max((cpu for at, cpu in self.samples if at <= begin_s), default=0.0)
        return max(cpu for at, cpu in self.samples if at <= end_s + SAMPLE_EVERY_S) - before


async def watch(world: World, path: str, selector: str, version: str, times_s: list[float]) -> None:
    """Record when each new object that the selector matches appears. Lines are counted, not parsed,
    to take little CPU from the scheduler.
    """
    query = f"watch=1&fieldSelector={selector}&resourceVersion={version}&timeoutSeconds=3600"
    async with world.session.get(f"{world.url}{path}?{query}") as answer:
        answer.raise_for_status()
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            added = sum(line.startswith(b'{"type":"ADDED"') for line in lines)
            times_s.extend([time.monotonic()] * added)
    raise AssertionError(f"the API server ended the watch of {path}, as it does if this process is too slow")


async def watch_all(world: World, version: str, observed: Seen) -> None:
    """Runs until cancelled. A pod appears in a watch of bound pods when it is bound."""
    await asyncio.gather(
        watch(world, PODS, "spec.nodeName%21%3D", version, observed.bound_s),
        watch(world, SCHEDULED, "reason%3DScheduled", version, observed.told_s),
    )


async def sample(pid: int, effort: Effort) -> None:
    """Runs until cancelled."""
    while True:
        used_s, held_bytes = 0.0, 0
        for process in _family(pid):
            try:
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                _, resident, of_files, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            used_s += (int(stat[11]) + int(stat[12])) / TICKS_PER_S
            held_bytes += (resident - (of_files if process != pid else 0)) * os.sysconf("SC_PAGE_SIZE")
        effort.samples.append((time.monotonic(), used_s))
        effort.peak_bytes = max(effort.peak_bytes, held_bytes)
        await asyncio.sleep(SAMPLE_EVERY_S)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return
    for child in children:
        yield from _family(child)
