"""Runs one job of a running scheduler in a worker process, with the present cluster.

The main loop passes only references (a millisecond for ten thousand pods). They are pickled on the HTTP thread in small pieces,
with rests in between, since the interpreter's lock is held meanwhile.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from policysched.cluster.metric_samples import MetricSamples, Samples
from policysched.from_files.cluster_snapshot import ClusterParts
from policysched.from_files.worker import CPU_MAX_S

_OBJECTS_PER_PIECE = 100
_REST_FACTOR = 3.0


class WorkerProcessFailed(Exception):
    """The worker gave no answer: its limits, or no process. The message is one line for the user."""


def sent_samples(samples: Samples) -> dict[str, MetricSamples]:
    """Copies of what the main loop changes of them, for the thread that pickles them."""
    return {
        name: replace(of_metric, assumed=dict(of_metric.assumed), state_rows=dict(of_metric.state_rows))
        for name, of_metric in samples.items()
    }


async def run_worker(module: str, job: Any, cluster: ClusterParts, *, wall_max_s: float) -> dict[str, Any]:
    """The answer of `python -m MODULE`, which is built with `from_files.worker`. Raises WorkerProcessFailed."""
    try:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,  # it may fork
        )
    except OSError as error:
        raise WorkerProcessFailed(f"no process can be started: {error.strerror or error}") from None
    assert worker.stdout is not None and worker.stderr is not None, "pipes"
    try:
        async with asyncio.timeout(wall_max_s), asyncio.TaskGroup() as group:
            group.create_task(_send(worker, _pieces(job, cluster)))
            output, errors = [group.create_task(stream.read()) for stream in (worker.stdout, worker.stderr)]
        code = await worker.wait()
    except TimeoutError:
        raise WorkerProcessFailed(f"no answer within {wall_max_s:g} s") from None
    finally:
        if worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            await worker.communicate()  # `wait` alone does not return while its output is not read
    if code == -signal.SIGXCPU:
        raise WorkerProcessFailed(f"it takes more than {CPU_MAX_S} s of CPU")
    if code < 0:
        raise WorkerProcessFailed(f"the worker was killed by signal {-code}, probably for lack of memory")
    if code or not output.result():
        last = errors.result().decode(errors="replace").strip().splitlines()[-1:]
        raise WorkerProcessFailed(f"the worker exited with {code}: {''.join(last)}")
    answer: dict[str, Any] = orjson.loads(output.result())
    return answer


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


def _pieces(job: Any, cluster: ClusterParts) -> Iterator[bytes]:
    yield pickle.dumps(job)
    for name, objects in cluster.items():
        for start in range(0, len(objects), _OBJECTS_PER_PIECE):
            yield pickle.dumps((name, objects[start : start + _OBJECTS_PER_PIECE]))
    yield pickle.dumps(None)
