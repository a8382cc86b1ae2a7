"""What would make a gang of the running scheduler start: a worker process computes the proposals on the present cluster.

They are those of `explain` with the files of this cluster: the same program makes them. One process at a time; a request
that has waited for long leaves it running, and the result is kept for later requests about a gang that waits for the same
reason.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from policysched.explanations.record import ExplainResult
from policysched.from_files.cluster_snapshot import ClusterParts, cluster_parts
from policysched.from_files.worker import ExplainJob
from policysched.runtime.worker_process import WorkerProcessFailed, run_worker, sent_samples
from policysched.scheduler.core import SchedulerCore

WAIT_MAX_S = 8.0
"""Of a request: less than the patience of the page. The worker goes on, for the next request."""
WALL_MAX_S = 25.0
_SEARCH_MAX_S = 20.0
"""The rest is for the start of the process and its answer."""
_KEPT_S, _KEPT_FACTOR = 30.0, 3.0
"""A result is kept for so long, or so many times as long as it took."""
_RESULTS_MAX = 16
_WORKER = "policysched.offline.explain_worker"

Json = dict[str, Any]


class LiveGangProposals:
    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._results: OrderedDict[tuple[str, str], tuple[float, Json]] = OrderedDict()
        self._key: tuple[str, str] | None = None
        self._running: asyncio.Task[Json] | None = None

    def prepare(
        self, core: SchedulerCore, result: ExplainResult, record: Json
    ) -> Callable[[], Awaitable[None]]:
        """Runs in the main loop and takes only references. What it returns is awaited elsewhere, and sets `would_fit` of the
        record: None if there is no result. A note says what was not tried."""
        key = result.pod.full_name, result.message
        kept = self._results.get(key)
        policy = result.program.name
        job = ExplainJob(
            policy,
            result.program.text,
            result.pod.full_name,
            result.now_ns,
            sent_samples(core.samples.of_policy(policy)),
            core.state_texts().get(policy),
            core.permissions,
            _SEARCH_MAX_S,
        )
        is_kept = kept is not None and self._monotonic_s() < kept[0]
        cluster = {} if is_kept else cluster_parts(core.cache)

        async def compute() -> None:
            if kept is not None and is_kept:
                _add_proposals(record, kept[1])
                return
            record["would_fit"] = None
            if self._running is None or self._running.done():
                self._key, self._running = key, asyncio.create_task(self._compute(key, job, cluster))
            elif self._key != key:
                record["notes"].append(
                    "the scheduler is computing the proposals for another gang; try again in a moment"
                )
                return
            done, _ = await asyncio.wait([self._running], timeout=WAIT_MAX_S)
            if done:
                _add_proposals(record, self._running.result())
            else:
                record["notes"].append(
                    "the scheduler is still computing the proposals for this gang; try again in a moment"
                )

        return compute

    async def _compute(self, key: tuple[str, str], job: ExplainJob, cluster: ClusterParts) -> Json:
        """`would_fit` and the notes about it. It goes on when no request waits any more."""
        began_s = self._monotonic_s()
        try:
            proposals = await run_worker(_WORKER, job, cluster, wall_max_s=WALL_MAX_S)
        except WorkerProcessFailed as error:
            note = (
                f"the proposals for this gang could not be computed: {error}; "
                "`policysched explain --policy FILE --cluster FILE` has no time limit"
            )
            proposals = {"would_fit": None, "notes": [note]}
        now_s = self._monotonic_s()
        self._results[key] = now_s + max(_KEPT_S, _KEPT_FACTOR * (now_s - began_s)), proposals
        while len(self._results) > _RESULTS_MAX:
            self._results.popitem(last=False)
        return proposals


def _add_proposals(record: Json, proposals: Json) -> None:
    record["would_fit"] = proposals["would_fit"]
    record["notes"] += proposals["notes"]
