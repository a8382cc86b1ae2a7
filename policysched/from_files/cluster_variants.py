"""Simulations of one cluster with changes: the cluster is loaded once, and each change is decided in a forked process.

Loading a large cluster takes most of the time of a simulation. What a forked process changes is gone when it ends.
"""

import gc
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from policysched.cluster.metric_samples import MetricSamples
from policysched.evaluate import compile as compile_plan
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import SimulationResult, load_cluster, place_pending, simulate
from policysched.lang.ir.program import Program
from policysched.scheduler import events as e
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.scheduler.scheduler import Scheduler

FORKED_FROM_OBJECTS = 2000
"""A smaller cluster is loaded in less time than a process is forked."""


class NotTried(Exception):
    """Whether a change helps is unknown. The message says why."""


def check_time(deadline_s: float) -> None:
    """Raises NotTried if no time is left."""
    if time.monotonic() >= deadline_s:
        raise NotTried("no time left")


@dataclass(slots=True)
class ClusterVariants:
    """The pods of this policy alone are decided. `files` are the cluster without changes."""

    policy: str
    files: ClusterFiles
    samples: Mapping[str, MetricSamples]
    saved_states: str | None = None
    permissions: PolicyPermissions = ANY_POLICY_NAME
    now_ns: int = 0
    _loaded: tuple[Scheduler, set[int]] | None = field(default=None, init=False)

    def simulate(
        self, program: Program, files: ClusterFiles, deadline_s: float = math.inf
    ) -> SimulationResult:
        """The policy on the cluster with changes: nodes and pods that are added or replaced. Raises NotTried, also at
        `deadline_s` (`time.monotonic`)."""
        check_time(deadline_s)
        if len(files.pods) + len(files.nodes) < FORKED_FROM_OBJECTS:
            return simulate(
                program,
                files,
                samples=self.samples,
                saved_states=self.saved_states,
                permissions=self.permissions,
                scope="named",
                now_ns=self.now_ns,
            )
        scheduler, loaded = self._load(program)

        def place() -> SimulationResult:
            for node in files.nodes:
                if id(node) not in loaded:
                    scheduler.handle(e.NodeUpdated(node), self.now_ns)
            for observed in files.pods:
                if id(observed) not in loaded:
                    scheduler.handle(e.PodUpdated(replace(observed, container_events=())), self.now_ns)
            return place_pending(
                scheduler,
                program,
                files,
                samples=self.samples,
                saved_states=self.saved_states,
                scope="named",
                now_ns=self.now_ns,
            )

        return _in_a_fork(place, deadline_s)

    def _load(self, program: Program) -> tuple[Scheduler, set[int]]:
        """The placed pods and everything else of the files, and the identities of these nodes and pods."""
        if self._loaded is None:
            placed = [observed for observed in self.files.pods if observed.node is not None]
            scheduler = load_cluster(
                replace(self.files, pods=placed),
                self.policy,
                "named",
                permissions=self.permissions,
                now_ns=self.now_ns,
            )
            scheduler.core.evaluator.build_columns(compile_plan(program))
            self._loaded = scheduler, {id(each) for each in (*self.files.nodes, *placed)}
        return self._loaded


def _in_a_fork(job: Callable[[], SimulationResult], deadline_s: float) -> SimulationResult:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(job, sender, deadline_s))
    process.start()
    sender.close()
    try:
        result: SimulationResult = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGALRM:
            raise NotTried("no time left") from None
        raise NotTried(f"its process ended with {process.exitcode}") from None
    process.join()
    return result


def _send_result(job: Callable[[], SimulationResult], sender: Connection, deadline_s: float) -> None:
    gc.disable()  # a collection would write to all objects, and so copy them
    if deadline_s < math.inf:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(deadline_s - time.monotonic(), 0.001))
    sender.send(job())
