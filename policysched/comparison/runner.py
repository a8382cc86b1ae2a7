"""What two policies are compared on: `Compared`, and a cluster, on which pods are placed by simulation."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from policysched.cluster.metric_samples import Samples
from policysched.comparison.forked import Progress, run_forked
from policysched.comparison.measures import Measures, measure
from policysched.comparison.outcomes import Outcomes, outcomes
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import PresentInputs, with_assumed_load
from policysched.from_files.simulate import Observe, Scope, SimulationResult, observe_nothing, simulate
from policysched.lang.ir.program import Program
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions

Show = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """What one policy does. `measures` are those of the cluster afterwards. `as_recorded`: how many pods got the node that
    they got in a recording, of how many."""

    outcomes: Outcomes
    measures: Measures
    as_recorded: tuple[int, int] | None = None


class Compared(Protocol):
    """Runs policies on the same inputs. They all have the name `policy_name` (None: any, but the same)."""

    @property
    def policy_name(self) -> str | None: ...

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said about the inputs after the runs."""

    def run_both(self, old: Program, new: Program, progress: Progress) -> tuple[PolicyRun, PolicyRun]: ...

    def run_each(
        self, programs: Sequence[Program | None], label: str, progress: Progress
    ) -> Iterator[Outcomes | None]:
        """The outcomes with each policy, in their order; None for None."""

    def observe(
        self, program: Program, observe: Observe, progress: Progress, is_done: Callable[[], bool]
    ) -> None:
        """Run a policy again, and show each of its binds and reports. It may stop when `is_done`."""

    def present(self, program: Program) -> tuple[Samples, int]:
        """While `observe` shows something: the samples of this policy's metrics, and the time (ns)."""


@dataclass(frozen=True, slots=True)
class ComparedCluster:
    """A cluster whose pending pods are placed. `present_of` reads the samples and states for a policy: metrics that only one
    of the policies declares are converted for that one."""

    files: ClusterFiles
    scope: Scope
    now_ns: int
    present_of: Callable[[Program], PresentInputs]
    permissions: PolicyPermissions = ANY_POLICY_NAME
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    policy_name: str | None = None
    notes: tuple[str, ...] = ()

    def run(
        self, program: Program, show: Show = lambda _: None, observe: Observe = observe_nothing
    ) -> SimulationResult:
        present = self.present_of(program)
        return simulate(
            program,
            self.files,
            samples=with_assumed_load(present.samples),
            saved_states=present.states,
            permissions=self.permissions,
            scope=self.scope,
            now_ns=self.now_ns,
            progress=lambda done, _total: show(done),
            observe=observe,
        )

    @property
    def _pending(self) -> int:
        return sum(observed.node is None for observed in self.files.pods)

    def run_both(self, old: Program, new: Program, progress: Progress) -> tuple[PolicyRun, PolicyRun]:
        before, after = self.run_each((old, new), "placing pods by both policies", progress)
        assert before is not None and after is not None
        return self._measured(old, before), self._measured(new, after)

    def _measured(self, program: Program, result: Outcomes) -> PolicyRun:
        samples = self.present_of(program).samples
        return PolicyRun(result, measure(program, self.files, result, samples=samples, now_ns=self.now_ns))

    def run_each(
        self, programs: Sequence[Program | None], label: str, progress: Progress
    ) -> Iterator[Outcomes | None]:
        jobs = [partial(self._outcomes, program) for program in programs if program is not None]
        results = run_forked(jobs, self.workers, progress, label, len(jobs) * self._pending)
        for program in programs:
            yield None if program is None else next(results)

    def _outcomes(self, program: Program, show: Show) -> Outcomes:
        return outcomes(self.run(program, show))

    def observe(
        self, program: Program, observe: Observe, progress: Progress, is_done: Callable[[], bool]
    ) -> None:
        del is_done  # a simulation is short, and its clock stands still
        total = self._pending
        self.run(program, lambda done: progress("finding the decisive rules", done, total), observe)

    def present(self, program: Program) -> tuple[Samples, int]:
        return with_assumed_load(self.present_of(program).samples), self.now_ns
