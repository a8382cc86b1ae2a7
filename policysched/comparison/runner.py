"""Runs simulations of one cluster with different policies, several at a time where processes can be forked."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from policysched.comparison.outcomes import Outcomes, outcomes
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import PresentInputs, with_assumed_load
from policysched.from_files.simulate import Observe, Scope, SimulationResult, simulate
from policysched.lang.ir.program import Program
from policysched.scheduler.authority import ANY_POLICY_NAME, Authority

Progress = Callable[[str, int, int], None]
"""What is being done, and how much of how much is done."""

_PROGRESS_S = 0.2


def no_progress(_what: str, _done: int, _total: int) -> None:
    return


@dataclass(frozen=True, slots=True)
class ComparedCluster:
    """What every simulation of a comparison starts from. `present_of` reads the samples and states for a policy: metrics
    that only one of the policies declares are converted for that one."""

    files: ClusterFiles
    scope: Scope
    now_ns: int
    present_of: Callable[[Program], PresentInputs]
    authority: Authority = ANY_POLICY_NAME
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)

    def run(
        self,
        program: Program,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        observe: Observe | None = None,
    ) -> SimulationResult:
        present = self.present_of(program)
        extra = {} if observe is None else {"observe": observe}
        return simulate(
            program,
            self.files,
            samples=with_assumed_load(present.samples),
            saved_states=present.states,
            authority=self.authority,
            scope=self.scope,
            now_ns=self.now_ns,
            progress=progress,
            **extra,
        )

    def run_each(
        self, programs: Sequence[Program | None], what: str, progress: Progress
    ) -> Iterator[Outcomes | None]:
        """The outcomes with each policy, in their order; None for None."""
        wanted = [program for program in programs if program is not None]
        workers = min(self.workers, len(wanted))
        if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
            for program in programs:
                yield None if program is None else outcomes(self.run(program, partial(progress, what)))
            return
        context = multiprocessing.get_context("fork")
        decided = context.Array("q", len(wanted), lock=False)
        # The children read this process's memory: the cluster is not sent to them.
        _forked.append((self, tuple(wanted), decided))
        try:
            with ProcessPoolExecutor(workers, mp_context=context) as pool:
                running = [pool.submit(_run_forked, index) for index in range(len(wanted))]
                total = len(wanted) * sum(observed.node is None for observed in self.files.pods)
                while wait(running, timeout=_PROGRESS_S, return_when=FIRST_EXCEPTION).not_done:
                    progress(what, min(total, sum(decided)), total)
                results = iter(running)
                for program in programs:
                    yield None if program is None else next(results).result()
        finally:
            _forked.pop()


_forked: list[tuple[ComparedCluster, tuple[Program, ...], Any]] = []
"""What the forked processes run, and where each counts the pods that it has decided."""


def _run_forked(index: int) -> Outcomes:
    cluster, programs, decided = _forked[-1]

    def count(done: int, _total: int) -> None:
        decided[index] = done

    return outcomes(cluster.run(programs[index], count))
