"""Changed policies on the running cluster, for the page's playground: a worker process for each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from policysched.from_files.cluster_snapshot import ClusterParts, cluster_parts
from policysched.from_files.policy_try import PolicyTry
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.runtime.worker_process import WorkerProcessFailed, run_worker, sent_samples
from policysched.serve.policy_try import TryFailed

WALL_MAX_S = 25.0
"""Less than the time-out of a response."""
PLACED_MAX = 500
_WORKER = "policysched.comparison.try_worker"
_ADVICE = "`policysched diff` on a machine of your own has no such limit"


@dataclass(frozen=True, slots=True)
class _VisibleCluster:
    """What the main loop had: the job without its text, and the cluster if it is simulated on."""

    job: PolicyTry
    cluster: ClusterParts


class WorkerTries:
    """The `PolicyTries` of a scheduler."""

    def __init__(self, app: SchedulerApp, cost_max: int, now_ns: Callable[[], int]) -> None:
        self._app, self._cost_max, self._now_ns = app, cost_max, now_ns

    def look(self, policy: str, *, simulates: bool) -> _VisibleCluster:
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
            samples=sent_samples(core.samples.of_policy(policy)) if simulates else {},
            states=core.state_texts().get(policy) if simulates else None,
            permissions=core.permissions,
        )
        return _VisibleCluster(job, cluster_parts(core.cache) if simulates else {})

    async def run(self, visible: _VisibleCluster, text: str, *, placed: bool) -> dict[str, Any]:
        job = replace(visible.job, text=text, placed_max=PLACED_MAX if placed else 0)
        try:
            return await run_worker(_WORKER, job, visible.cluster, wall_max_s=WALL_MAX_S)
        except WorkerProcessFailed as error:
            raise TryFailed(f"{error}; {_ADVICE}") from None
