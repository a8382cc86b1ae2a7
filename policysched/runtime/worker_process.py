"""Runs one job of a running scheduler in a worker process, with the present cluster.

The main loop passes only references (a millisecond for ten thousand pods). They are pickled on a thread in small pieces,
with rests in between, since the interpreter's lock is held meanwhile.
"""

import asyncio
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from policysched.child_process import ChildProcess
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
        worker = ChildProcess((sys.executable, "-m", module), own_group=True)
    except OSError as error:
        raise WorkerProcessFailed(f"no process can be started: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(wall_max_s):
            output, errors = await worker.communicate(_pieces(job, cluster))
    except TimeoutError:
        raise WorkerProcessFailed(f"no answer within {wall_max_s:g} s") from None
    finally:
        await worker.end()
    code = worker.returncode
    assert code is not None, "it has ended"
    if code == -signal.SIGXCPU:
        raise WorkerProcessFailed(f"it takes more than {CPU_MAX_S} s of CPU")
    if code < 0:
        raise WorkerProcessFailed(f"the worker was killed by signal {-code}, probably for lack of memory")
    if code or not output:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise WorkerProcessFailed(f"the worker exited with {code}: {''.join(last)}")
    answer: dict[str, Any] = orjson.loads(output)
    return answer


def _pieces(job: Any, cluster: ClusterParts) -> Iterator[bytes]:
    yield pickle.dumps(job)
    for name, objects in cluster.items():
        for start in range(0, len(objects), _OBJECTS_PER_PIECE):
            began_s = time.thread_time()
            piece = pickle.dumps((name, objects[start : start + _OBJECTS_PER_PIECE]))
            took_s = time.thread_time() - began_s
            yield piece
            time.sleep(_REST_FACTOR * took_s)
    yield pickle.dumps(None)
