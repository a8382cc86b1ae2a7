"""The pages that `policysched explain`, `pending`, `queue`, `samples` and `top` read from a running scheduler.

Each is a generator of steps that run on the main loop between decisions, so that a page about 50,000 pods delays no
decision by more than a few milliseconds.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from policysched.daemon.status_documents import describe_ambiguous_pod, pending_pod_record
from policysched.explanations.live import NotExplainable, explain_running
from policysched.explanations.pending_causes import PendingCauses
from policysched.metric_sources.samples_export import export_samples, samples_document
from policysched.model.identifiers import NodeName, PodUid
from policysched.runtime.live_gang_proposals import LiveGangProposals
from policysched.runtime.worker_process import sent_samples
from policysched.scheduler.pending_status import pending_status
from policysched.scheduler.scheduler import Scheduler
from policysched.serve.main_loop_reader import LiveEndpoint, LiveStep, NoSuchEndpoint

Json = dict[str, Any]
Steps = Iterator[LiveStep]
Query = Mapping[str, str]

_PODS_PER_STEP = 100
"""Few, because each can have a cause and a message of its own."""
_NODES_PER_STEP = 500
FORMAT_VERSION = 1
QUEUE_ROWS_MAX = 1_000
"""With messages of 4,096 characters they are 5 MB of JSON, made in one piece beside the main loop."""


class LiveEndpoints:
    """`unavailable_reason`: why this process has no data, None where it leads."""

    def __init__(
        self, scheduler: Scheduler, unavailable_reason: Callable[[], str | None], now_ns: Callable[[], int]
    ) -> None:
        self._scheduler, self._unavailable_reason, self.now_ns = scheduler, unavailable_reason, now_ns
        self._gang_proposals = LiveGangProposals()

    def by_path(self) -> dict[str, LiveEndpoint]:
        return {
            "/explain": self.explain,
            "/pending": self.pending,
            "/queue": self.queue,
            "/samples": self.samples,
            "/nodes": self.nodes,
        }

    def explain(self, query: Query) -> Steps:
        """`pod`: `namespace/name`, or a name that one pod has. Schema: `schemas/explain.json`."""
        note, name = self._unavailable_reason(), query.get("pod", "")
        if note is not None:
            raise NoSuchEndpoint(note)
        names = self._scheduler.pending_pods.full_names(name)
        if len(names) != 1:
            raise NoSuchEndpoint(describe_ambiguous_pod(name, names))
        status = self._scheduler.pending_pods.status(names[0])
        try:
            for result in explain_running(self._scheduler.core, names[0], self.now_ns()):
                if result is not None:
                    waiting = None if status is None else pending_pod_record(status)
                    record = {**(yield from result.record_in_steps()), "waiting": waiting}
                    if result.gang is not None and result.gang.blocked and result.placed_on is None:
                        yield self._gang_proposals.prepare(self._scheduler.core, result, record)
                    yield record
                    return
                yield None
        except NotExplainable as error:
            raise NoSuchEndpoint(str(error)) from None

    def pending(self, _query: Query) -> Steps:
        """The pending pods by cause. Schema: `schemas/pending.json`."""
        core = self._scheduler.core
        causes = PendingCauses(core)
        for uids in chunks(list(core.pods), _PODS_PER_STEP):
            for uid in uids:
                causes.add(uid)
            yield None
        for record in causes.record(self.now_ns()):
            yield None if record is None else {**record, "note": self._unavailable_reason()}

    def queue(self, query: Query) -> Steps:
        """The pending pods in the order of the queue, the first `limit` (default: 100, at most QUEUE_ROWS_MAX)."""
        limit = query.get("limit", "100")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9):
            raise NoSuchEndpoint(f"limit is not a number: {limit}")
        if int(limit) > QUEUE_ROWS_MAX:
            raise NoSuchEndpoint(f"limit is {QUEUE_ROWS_MAX:,} at most")
        core, count = self._scheduler.core, 0
        first: list[tuple[str, tuple[Any, ...], PodUid, Json]] = []
        for uids in chunks(list(core.pods), _PODS_PER_STEP):
            for uid in uids:
                pod, status = core.pods.get(uid), pending_status(core, uid)
                if pod is not None and status is not None:
                    count += 1
                    insort(
                        first, (pod.policy, pod.sort_key, uid, pending_pod_record(status))
                    )  # a sort is one piece
            del first[int(limit) :]
            yield None
        yield {
            "format_version": FORMAT_VERSION,
            "note": self._unavailable_reason(),
            "counts": self._scheduler.pending_counts(),
            "pods": [record for *_, record in first],
            "omitted": count - len(first),
        }

    def samples(self, _query: Query) -> Steps:
        """What rules read as samples. Schema: `schemas/samples-export.json`."""
        core = self._scheduler.core
        states = core.samples.policy_states.texts()
        yield None
        policies: dict[str, Any] = {}
        for name, program in self._scheduler.programs().items():
            samples, state = sent_samples(self._scheduler.samples(name)), states.get(name)
            export = partial(export_samples, program, samples, state if program.states else None)
            yield partial(_run_beside, export, policies, name)
        yield samples_document(policies, self.now_ns(), self._unavailable_reason())

    def nodes(self, _query: Query) -> Steps:
        """Requested and allocatable amounts of each node, and how many pods it has."""
        cache, records = self._scheduler.cache, []
        for names in chunks(sorted(cache.nodes), _NODES_PER_STEP):
            for name in names:
                node = cache.nodes.get(NodeName(name))
                if node is None:
                    continue
                usage = cache.ledger.usage(node.name)
                records.append(
                    {
                        "node": node.name,
                        "pods": len(usage.pods),
                        "unschedulable": node.unschedulable,
                        "requested": {name: usage.requested_capped(name) for name in usage.requested},
                        "allocatable": dict(node.allocatable),
                    }
                )
            yield None
        yield {"format_version": FORMAT_VERSION, "note": self._unavailable_reason(), "nodes": records}


async def _run_beside(make: Callable[[], Json], of_name: Json, name: str) -> None:
    """On a thread: samples between pods may be thousands, and do not change."""
    of_name[name] = await asyncio.to_thread(make)


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    """The items of each step."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
