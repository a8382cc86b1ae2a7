"""One seed: set up a cluster, run the scheduler and a workload under faults, stop the faults, check."""

import asyncio
import os
import resource
import signal
import ssl
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

import aiohttp

from tests.controlplane.cluster import ControlPlane
from tests.e2e.chaos.admission_webhook import AdmissionWebhook
from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.fair_clock import FairClock
from tests.e2e.chaos.fault_profile import WEBHOOK_FAULTS, Fault, FaultProfile, profile_of
from tests.e2e.chaos.faulty_transport import FaultyTransport
from tests.e2e.chaos.restarted_program import RestartedProgram
from tests.e2e.chaos.safety_checker import Broken, SafetyChecker
from tests.e2e.chaos.workload import Admin, Plan, plan

PATIENCE_S = 60.0
"""Until the first pod is bound, and from the last fault until all is settled: longer than every backoff
of policysched (at most 15 s) and two late answers (7 s each). Measured by `FairClock`."""


PLANTED_WAIT_S = 20
"""How long the faults of a seed last at most beyond its time, if a planted one has not occurred."""


@dataclass(frozen=True)
class Result:
    """`broken` is empty if every check passed. `log`: of policysched."""

    seed: int
    broken: str
    injected: Counter[Fault]
    log: str


async def run_seed(
    control_plane: ControlPlane, seed: int, *, bug: str = "", patience_s: float = PATIENCE_S
) -> Result:
    """`bug`: a key of `BUGS` to plant, or empty."""
    planned, broken = plan(seed), ""
    with tempfile.TemporaryDirectory() as folder:
        async with admin_session(control_plane) as session:
            admin = Admin(session, control_plane.url, seed)
            await admin.set_up(planned)
            profile = (BUGS[bug].profile if bug else None) or profile_of(seed)
            checker = SafetyChecker(admin, planned, binds_may_be_refused=profile.binds_may_be_refused)
            async with FaultyTransport(session, control_plane.url, profile, seed) as transport:
                following = asyncio.create_task(checker.follow())
                program = RestartedProgram(Path(folder), transport, admin.name, bug)
                try:
                    async with (
                        AdmissionWebhook(
                            admin, control_plane, transport.injected, profile.moments
                        ) as webhook,
                        program,
                    ):
                        momentary = partial(_momentary_faults, program, transport, webhook, profile, seed)
                        clock = FairClock(lambda: (program.pid, os.getpid(), *control_plane.serving_pids))
                        await _first(
                            _live(
                                admin,
                                planned,
                                transport,
                                checker,
                                clock,
                                patience_s,
                                profile.planted,
                                momentary,
                                program,
                            ),
                            following,
                            program.run(),
                            clock.run(),
                        )
                except Broken as error:
                    broken = str(error)
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            await admin.clean_up(planned)
        return Result(seed, broken, transport.injected, program.log())


async def _live(
    admin: Admin,
    planned: Plan,
    transport: FaultyTransport,
    checker: SafetyChecker,
    clock: FairClock,
    patience_s: float,
    planted: tuple[Fault, ...],
    momentary: Callable[[], Coroutine[None, None, None]],
    program: RestartedProgram,
) -> None:
    while not await admin.is_running():
        if clock.now_s > patience_s:
            raise Broken(f"{patience_s:g} s after the start: the first pod waits, though there is room")
        await asyncio.sleep(0.1)
    faults = asyncio.create_task(momentary())
    await asyncio.gather(admin.work(planned), _stop_faults(admin, transport, planned.faults_s, planted))
    faults.cancel()
    await asyncio.gather(faults, return_exceptions=True)
    if Fault.CLOCK_SET in planted:
        program.clock.set_back()
        await admin.make_room()  # for pods that are in backoff, whose times are an hour ahead now
    await checker.settled(patience_s, clock)


async def _momentary_faults(
    program: RestartedProgram,
    transport: FaultyTransport,
    webhook: AdmissionWebhook,
    profile: FaultProfile,
    seed: int,
) -> None:
    """One after the other in the order of the profile, again and again, until cancelled."""
    rng = Random(f"moments {seed}")
    for fault in cycle(profile.moments):
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        span_s = rng.uniform(0.2, profile.moment_s)
        match fault:
            case Fault.PUT_OFF:
                transport.put_off(span_s)
            case Fault.FROZEN:
                transport.injected[fault] += 1
                with frozen(program.pid):
                    await asyncio.sleep(span_s)
            case Fault.NO_DESCRIPTORS:
                transport.injected[fault] += 1
                with without_descriptors(program.pid):
                    await asyncio.sleep(span_s)
            case Fault.CLOCK_SET:
                transport.injected[fault] += 1
                restarts = program.restarts
                if program.clock.step(rng):
                    while program.restarts == restarts:
                        await asyncio.sleep(0.1)
                await asyncio.sleep(span_s)
            case Fault.WEBHOOK_DENIES | Fault.WEBHOOK_FAILS | Fault.WEBHOOK_HANGS:
                with webhook.failing(fault):
                    await asyncio.sleep(span_s)
                    while fault in profile.planted and not transport.injected[fault]:
                        await asyncio.sleep(0.1)
            case _:
                raise AssertionError(f"{fault} is a fault of one request")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """It keeps what is open."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


async def _stop_faults(
    admin: Admin, transport: FaultyTransport, after_s: float, planted: tuple[Fault, ...]
) -> None:
    """Not before each planted fault has occurred, or a busy machine takes far too long for it. A webhook needs binds:
    where those of the workload are all done before it is in the way, more follow.
    """
    await asyncio.sleep(after_s)
    for number in range(PLANTED_WAIT_S * 10):
        missing = [fault for fault in planted if not transport.injected[fault]]
        if not missing:
            break
        if number % 10 == 9 and not set(WEBHOOK_FAULTS).isdisjoint(missing):
            await admin.create_small_pod(f"small-{number}")
        await asyncio.sleep(0.1)
    transport.stop_faults()


async def _first(*coroutines: Awaitable[None]) -> None:
    """Run until the first of them returns or raises."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def admin_session(control_plane: ControlPlane) -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context(cafile=str(control_plane.authority_path))
    tls.load_cert_chain(control_plane.admin.certificate, control_plane.admin.key)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield session


async def run_seeds(
    control_plane: ControlPlane,
    seeds: Sequence[int],
    *,
    at_once: int,
    bug: str = "",
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Result]:
    """Results in the order in which the seeds end."""
    allowed = asyncio.Semaphore(at_once)

    async def limited(seed: int) -> Result:
        async with allowed:
            try:
                return await run_seed(control_plane, seed, bug=bug, patience_s=patience_s)
            except Exception as error:  # noqa: BLE001 - the other seeds go on
                return Result(seed, f"the test failed: {error!r}", Counter(), traceback.format_exc())

    for result in asyncio.as_completed([asyncio.create_task(limited(seed)) for seed in seeds]):
        yield await result
