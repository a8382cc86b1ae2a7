"""Changed policies on the running cluster, for the page's playground: a worker process for each.

The main loop gives references alone (a millisecond for ten thousand pods). They are pickled on the HTTP thread in small pieces,
with rests in between, since the interpreter's lock is held meanwhile.
"""

import asyncio
import contextlib
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from policysched.from_files.cluster_snapshot import ClusterParts, cluster_parts
from policysched.from_files.policy_try import CPU_MAX_S, PolicyTry
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.serve.policy_try import TryFailed

WALL_MAX_S = 25.0
"""Less than the time-out of a response."""
PLACED_MAX = 500
_OBJECTS_PER_PIECE = 100
_REST_FACTOR = 3.0
_WORKER = "policysched.comparison.try_worker"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the main loop had: the job without its text, and the cluster if it is simulated on."""

    job: PolicyTry
    cluster: ClusterParts


class WorkerTries:
    """The `PolicyTries` of a scheduler."""

    def __init__(self, app: SchedulerApp, cost_max: int, now_ns: Callable[[], int]) -> None:
        self._app, self._cost_max, self._now_ns = app, cost_max, now_ns

    def look(self, policy: str, *, simulates: bool) -> _Seen:
        core = self._app.scheduler.core
        running = core.policies.running.get(policy)
        if running is None:
            raise LookupError(f"no policy {policy} runs")
        program = running.program
        source = program.name_span.source
        location, mark, key = source.name.partition(" key ")
        if program.team is not None or not mark or key not in self._app.policy_feed.texts:
            raise LookupError(
                f"policy {policy} is not in the policies' ConfigMap; `policysched diff` compares its texts"
            )
        job = PolicyTry(
            policy,
            key,
            location,
            "",
            source.text,
            self._app.policy_feed.texts,
            self._cost_max,
            simulates,
            self._now_ns(),
            samples={
                name: replace(
                    samples, assumed=dict(samples.assumed), state_rows=dict(samples.state_rows)
                )  # which change
                for name, samples in core.samples.of_policy(policy).items()
            },
            states=core.state_texts().get(policy),
            permissions=core.permissions,
        )
        return _Seen(job, cluster_parts(core.cache) if simulates else {})

    async def run(self, seen: _Seen, text: str, *, placed: bool) -> dict[str, Any]:
        job = replace(seen.job, text=text, placed_max=PLACED_MAX if placed else 0)
        try:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", _WORKER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise TryFailed(f"no process can be started: {error.strerror or error}") from None
        assert worker.stdout is not None and worker.stderr is not None, "pipes"
        try:
            async with asyncio.timeout(WALL_MAX_S), asyncio.TaskGroup() as group:
                group.create_task(_send(worker, _pieces(job, seen.cluster)))
                output, errors = [
                    group.create_task(stream.read()) for stream in (worker.stdout, worker.stderr)
                ]
            code = await worker.wait()
        except TimeoutError:
            raise TryFailed(f"no answer within {WALL_MAX_S:g} s; {_ADVICE}") from None
        finally:
            if worker.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    worker.kill()
                await worker.communicate()  # `wait` alone does not return while its output is not read
        if code == -signal.SIGXCPU:
            raise TryFailed(f"it takes more than {CPU_MAX_S} s of CPU; {_ADVICE}")
        if code < 0:
            raise TryFailed(
                f"the worker was killed by signal {-code}, probably for lack of memory; {_ADVICE}"
            )
        if code or not output.result():
            last = errors.result().decode(errors="replace").strip().splitlines()[-1:]
            raise TryFailed(f"the worker exited with {code}: {''.join(last)}")
        answer: dict[str, Any] = orjson.loads(output.result())
        return answer


_ADVICE = "`policysched diff` on a machine of your own has no such limit"


async def _send(worker: asyncio.subprocess.Process, pieces: Iterator[bytes]) -> None:
    """A worker that needs no cluster answers before it has read all."""
    assert worker.stdin is not None, "a pipe"
    began_s = time.thread_time()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for piece in pieces:
            took_s = time.thread_time() - began_s
            worker.stdin.write(piece)
            await worker.stdin.drain()
            await asyncio.sleep(_REST_FACTOR * took_s)
            began_s = time.thread_time()
        worker.stdin.close()


def _pieces(job: PolicyTry, cluster: ClusterParts) -> Iterator[bytes]:
    yield pickle.dumps(job)
    for name, objects in cluster.items():
        for start in range(0, len(objects), _OBJECTS_PER_PIECE):
            yield pickle.dumps((name, objects[start : start + _OBJECTS_PER_PIECE]))
    yield pickle.dumps(None)
