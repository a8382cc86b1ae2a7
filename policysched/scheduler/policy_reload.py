"""Policy reload: replaces one policy text by another between two attempts.

The slow parts are lowering the rules, building the columns that only the new text reads, and its
pre-enqueue result for each pending pod. They are done in slices between attempts while the old
plan stays active; the pods enter the new order in slices after the swap. A text with metrics that were never polled
waits for their first samples before it is prepared. Before the first attempt of this process a text
becomes active at once, and its pods wait while the totals over pods are built in slices; of many texts,
most are prepared in slices then, too. Which pods are in a canary is told in slices as well.

Slices for the text of a team are at the expense of its namespace (`slice_turns`). Namespaces take turns. In the pause of an
attempt texts are prepared, and take over after it.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from policysched.evaluate import Plan, compile_lazily
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.first_samples import same_query
from policysched.scheduler.queue.pre_enqueue import NO_RESULTS, PreEnqueueResult
from policysched.scheduler.slice_turns import PayerTurns, Slice


class PolicyPods(Protocol):
    """The pending pods of each policy; implemented by `PolicyTextEvents`."""

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]: ...
    def pods_of(self, policy: str) -> Iterator[Pod]: ...
    def unpark_in_steps(self, policy: str, now_ns: int) -> Iterator[None]: ...
    def forget(self, policy: str) -> None: ...
    def enqueue_again(
        self,
        policy: str,
        now_ns: int,
        precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS,
        *,
        before_attempts: bool,
    ) -> None: ...


REMOVED_KEPT_MAX = 8
"""Removed policies without a key of each owner that are kept for pods to come, which are told so."""

STARTED_AT_ONCE_MAX = 64
"""Texts that become active in one piece at a start, about a millisecond each, and those of the operator. Hundreds of teams may
have thousands."""

TIDYING_INTERVAL_NS = SECOND_NS
"""After texts that follow one another, the texts of all policies are saved and what is cached for all plans is looked through."""

_DONE = object()


@dataclass(slots=True)
class _PlanInPreparation:
    """A plan in preparation: first its rules and columns, then the pre-enqueue result of each pod, then its parked pods await it. `is_ready`: it takes over after
    the pause of an attempt."""

    program: Program
    columns: Generator[None, None, None] = field(init=False)
    plan: Plan | None = None
    pod_results: Iterator[dict[PodUid, PreEnqueueResult]] = field(default_factory=lambda: iter(()))
    precomputed: dict[PodUid, PreEnqueueResult] = field(default_factory=dict)
    unparking: Iterator[None] | None = None
    is_ready: bool = False


class PolicyReload:
    """Prepares new policy versions in slices and activates them."""

    def __init__(self, core: SchedulerCore, pods: PolicyPods) -> None:
        self._core = core
        self._pods = pods
        self._in_preparation: dict[str, _PlanInPreparation] = {}
        self._awaiting_samples: dict[str, Program] = {}
        self._totals_of_active: dict[str, tuple[Program, Iterator[None]]] = {}
        self._turns = PayerTurns[str]()  # policies with slices
        self._tidied_ns, self._is_tidy = -TIDYING_INTERVAL_NS, True

    @property
    def busy(self) -> bool:
        """Whether `take_slice` has something to do."""
        return self._next_policy() is not None or any(
            not self._core.samples.first_samples.missing(name) for name in self._awaiting_samples
        )

    def metrics(self) -> dict[str, Mapping[str, Metric]]:
        """Metrics to poll: those of active programs, and the additional ones of texts in preparation."""
        wanted: dict[str, Mapping[str, Metric]] = {
            name: running.program.metrics for name, running in self._core.policies.running.items()
        }
        for program in (
            *self._awaiting_samples.values(),
            *(preparation.program for preparation in self._in_preparation.values()),
        ):
            wanted[program.name] = {**program.metrics, **wanted.get(program.name, {})}
        return {name: metrics for name, metrics in wanted.items() if metrics}

    def metric_polled(self, policy: str, metric: str) -> None:
        """The metric was polled, with or without success."""
        self._core.samples.first_samples.metric_polled(policy, metric, self.metrics().get(policy, {}))

    def apply_update(self, event: PoliciesUpdated, now_ns: int, *, synced: bool, has_attempted: bool) -> None:
        """Apply the current content of the ConfigMap."""
        core = self._core
        commands, programs = core.policies.apply_update(event, now_ns)
        core.commands += commands
        unwanted = [
            name
            for name, preparation in self._in_preparation.items()
            if not core.policies.still_wanted(preparation.program)
        ]
        for name in unwanted:
            self._give_up_preparation(name, now_ns)
            core.quotas.forget_prepared(name)
        if unwanted:  # edits that follow one another must not leave behind what each began
            self._retain_prepared()
        for name in [
            name
            for name, program in self._awaiting_samples.items()
            if not core.policies.still_wanted(program)
        ]:
            del self._awaiting_samples[name]
            core.samples.first_samples.cancel(name)
        for number, program in enumerate(sorted(programs, key=lambda each: self._owner(each.name) != "")):
            preparation, awaiting = (
                self._in_preparation.get(program.name),
                self._awaiting_samples.get(program.name),
            )
            waiting = awaiting if preparation is None else preparation.program
            if waiting is None or waiting.sha256 != program.sha256:
                with core.raises_for_text(program):
                    is_late = number >= STARTED_AT_ONCE_MAX and self._owner(program.name) != ""
                    self._start(program, now_ns, synced=synced, decided=has_attempted or is_late)
                    # Only at a start: edits without end would protect pods for ever.
                    if is_late and not has_attempted:
                        core.unstarted_policies.add(program.name)

        core.commands += core.policies.save()
        if programs and not has_attempted:  # others are not active yet
            self._retain_prepared()
        self._forget_removed()
        if core.policies.running:
            core.samples.policy_states.stop_buffering()
        can_run = core.policies.running or self._in_preparation or event.unchecked_texts
        if not can_run and core.policies.startup_error is None:
            core.policies.startup_error = (
                f"no policy to run: no policy in {event.source_name} could be compiled"
            )

    def _next_policy(self, *, beside_pause: bool = False) -> tuple[str, str] | None:
        """Whose turn it is, with its first policy that can have a slice."""
        for policy, active in self._core.canaries.active.items():
            if active.unsorted:
                self._turns.add(self._owner(policy), policy)
        for owner, policies in self._turns:
            rests = self._rest_ends_ns(owner) is not None
            for policy in policies if self._totals_of_active or not rests else ():
                if policy in self._totals_of_active:
                    return owner, policy
                preparation = self._in_preparation.get(policy)
                is_waiting = beside_pause and preparation is not None and preparation.is_ready
                if not rests and not is_waiting:
                    return owner, policy
        return None

    def _owner(self, policy: str) -> str:
        return self._core.permissions.owner(policy) or ""

    def _rest_ends_ns(self, owner: str) -> int | None:
        if not owner or not self._core.policies.running:
            return None
        return self._core.queue.decision_time.slice_rest_ends_ns(owner)

    def next_time_ns(self) -> int | None:
        """When the first rest ends: beside that, `busy` says whether there is a slice to take."""
        if not self._core.queue.decision_time.is_any_slice_resting:
            return None
        return min(filter(None, (self._rest_ends_ns(owner) for owner, _ in self._turns)), default=None)

    def take_slice(self, now_ns: int) -> Slice | None:
        """Run one slice; activate the plan after the last one."""
        return self._take_slice(now_ns, beside_pause=False)

    def take_slice_beside_pause(self, now_ns: int) -> Slice | None:
        """The same in the pause of an attempt, where no plan becomes active."""
        return self._take_slice(now_ns, beside_pause=True)

    def _take_slice(self, now_ns: int, *, beside_pause: bool) -> Slice | None:
        for name in [
            name for name in self._awaiting_samples if not self._core.samples.first_samples.missing(name)
        ]:
            self._start_preparation(self._awaiting_samples.pop(name), now_ns)
        turn = self._next_policy(beside_pause=beside_pause)
        if turn is None:
            return None
        owner, policy = turn
        self._turns.take(owner, policy)
        if policy in self._totals_of_active:
            program, totals = self._totals_of_active[policy]
            with self._core.raises_for_text(program):
                if next(totals, _DONE) is _DONE:
                    self._end_counting(policy)
            return Slice("")
        preparation, canary = self._in_preparation.get(policy), self._core.canaries.active.get(policy)
        if preparation is not None:
            with self._core.raises_for_text(preparation.program):
                self._prepare(preparation, now_ns, beside_pause=beside_pause)
        elif canary is not None and canary.unsorted:
            self._core.canaries.sort_slice(canary)
        else:
            self._end_turns(policy)
        self._tidy(now_ns)
        return Slice(owner)

    def _end_turns(self, policy: str) -> None:
        """Unless there is something left: of a canary it is found again."""
        if policy not in self._in_preparation and policy not in self._totals_of_active:
            self._turns.discard(self._owner(policy), policy)

    def _drop_preparation(self, policy: str) -> None:
        self._in_preparation.pop(policy).columns.close()  # at once: totals are counted for it
        self._core.unstarted_policies.discard(policy)
        self._end_turns(policy)

    def _give_up_preparation(self, policy: str, now_ns: int) -> None:
        """The pods that await the text are enqueued by the active one again."""
        unparking = self._in_preparation[policy].unparking
        self._drop_preparation(policy)
        if unparking is not None and policy in self._core.policies.running:
            self._pods.enqueue_again(policy, now_ns, before_attempts=False)

    def _prepare(self, preparation: _PlanInPreparation, now_ns: int, *, beside_pause: bool) -> None:
        name = preparation.program.name
        try:
            if next(preparation.columns, _DONE) is not _DONE:
                return
        except RecursionError:
            self._drop_preparation(name)
            self._core.quotas.forget_prepared(name)
            self._reject_nesting(preparation.program, now_ns)
            return
        prepared = next(preparation.pod_results, None)
        if prepared is not None:
            preparation.precomputed = prepared
            return
        if beside_pause:
            preparation.is_ready = True
            return
        assert preparation.plan is not None, f"{name} is not compiled"
        if name in self._core.policies.running:
            preparation.unparking = preparation.unparking or self._pods.unpark_in_steps(name, now_ns)
            if next(preparation.unparking, _DONE) is not _DONE:
                return
        self._drop_preparation(name)
        self._activate(
            preparation.program,
            preparation.plan,
            now_ns,
            synced=True,
            before_attempts=False,
            precomputed=preparation.precomputed,
        )
        self._is_tidy = False

    def _tidy(self, now_ns: int) -> None:
        """Once for many texts that take over: it takes a time for each policy."""
        is_due = not self._in_preparation or now_ns >= self._tidied_ns + TIDYING_INTERVAL_NS
        if not self._is_tidy and is_due:
            self._tidied_ns, self._is_tidy = now_ns, True
            self._core.commands += self._core.policies.save()
            self._retain_prepared()

    def restart_without_canary(self, policy: str, now_ns: int) -> None:
        """The canary of the active text was rolled back. A text that is being prepared takes over soon anyway, and is prepared
        again if it has the same canary."""
        core = self._core
        preparation, awaiting = self._in_preparation.get(policy), self._awaiting_samples.get(policy)
        if awaiting is not None:
            self._awaiting_samples[policy] = core.canaries.effective(awaiting)
        if preparation is None:
            program = core.canaries.effective(core.policies.running[policy].program)
        else:
            program = core.canaries.effective(preparation.program)
        if preparation is None or program is not preparation.program:
            core.quotas.forget_prepared(policy)
            self._start_preparation(program, now_ns)

    def _start(self, program: Program, now_ns: int, *, synced: bool, decided: bool) -> None:
        core = self._core
        program = core.canaries.effective(program)
        running = core.policies.running.get(program.name)
        if decided and running is not None and program.name not in core.samples.first_samples.held_policies:
            must_wait, commands = core.samples.first_samples.await_new_metrics(
                running.program, program, now_ns
            )
            core.commands += commands
            if must_wait:
                self._awaiting_samples[program.name] = program
                return
        if decided:
            self._start_preparation(program, now_ns)
            return
        try:
            plan = compile_lazily(program)
            core.evaluator.build_columns(plan)
        except RecursionError:
            self._reject_nesting(program, now_ns)
            return
        self._activate(program, plan, now_ns, synced=synced, before_attempts=True)
        if plan.pod_totals:
            self._totals_of_active[program.name] = program, core.evaluator.build_totals_in_steps(plan)
            self._turns.add(self._owner(program.name), program.name)
            core.counting_policies.add(program.name)

    def _end_counting(self, policy: str) -> None:
        if self._totals_of_active.pop(policy, None) is not None:
            self._core.counting_policies.discard(policy)
            self._end_turns(policy)

    def _reject_nesting(self, program: Program, now_ns: int) -> None:
        """The nesting limit should reject it first; no edit may end the event loop."""
        self._core.commands += self._core.policies.reject(
            program, "the policy is nested too deeply to compile", now_ns
        )

    def _start_preparation(self, program: Program, now_ns: int) -> None:
        if program.name in self._in_preparation:
            self._give_up_preparation(program.name, now_ns)
        preparation = self._in_preparation[program.name] = _PlanInPreparation(program)
        preparation.columns = self._build_in_steps(preparation, now_ns)
        self._turns.add(self._owner(program.name), program.name)

    def _build_in_steps(self, preparation: _PlanInPreparation, now_ns: int) -> Generator[None, None, None]:
        evaluator, program = self._core.evaluator, preparation.program
        plan = preparation.plan = compile_lazily(program)
        preparation.pod_results = self._pods.precompute_pre_enqueue(program, plan, now_ns)
        yield from evaluator.build_columns_in_steps(plan)
        yield from evaluator.build_totals_in_steps(plan)
        yield from self._core.quotas.prepare(plan)

    def _activate(
        self,
        program: Program,
        plan: Plan,
        now_ns: int,
        *,
        synced: bool,
        before_attempts: bool,
        precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS,
    ) -> None:
        core = self._core
        before = core.policies.running.get(program.name)
        previous_metrics = {} if before is None else before.program.metrics
        core.commands += core.policies.activate(program, plan, now_ns)
        core.quotas.activate(plan, now_ns)
        core.commands += core.samples.first_samples.hold_policy(program, now_ns)
        self._end_counting(program.name)
        core.samples.assumed_load.activate(plan)
        core.samples.recovery_tracker.activate(program)
        core.samples.by_policy[program.name] = {
            metric: core.samples.adjust(program.name, metric, samples)
            for metric, samples in core.samples.of_policy(program.name).items()
            if metric in program.metrics
            and (
                metric not in previous_metrics
                or same_query(previous_metrics[metric], program.metrics[metric])
            )
        }
        core.samples.activate_states(program, now_ns)
        if core.canaries.activate(program, plan, self._pods.pods_of(program.name), now_ns):
            core.save_canary("edit", now_ns)
        if synced:
            self._pods.enqueue_again(program.name, now_ns, precomputed, before_attempts=before_attempts)

    def _forget_removed(self) -> None:
        """Forget removed policies without a key that no pod names, except the latest of each owner. A team can rename its
        policies with each edit."""
        core, newer = self._core, Counter[str | None]()
        needed = {bind.pod.policy for bind in core.binds.in_flight.values()}
        needed |= self._in_preparation.keys() | core.changing_policies
        for name in reversed(core.policies.removed_without_key()):
            owner = core.permissions.owner(name)
            newer[owner] += 1
            if newer[owner] <= REMOVED_KEPT_MAX or name in needed or any(self._pods.pods_of(name)):
                continue
            core.policies.forget(name)
            core.samples.forget(name)
            core.records.counters.forget(name)
            self._pods.forget(name)
            self._retain_prepared()

    def _retain_prepared(self) -> None:
        """Drop what is cached for plans that neither are active nor will be."""
        active_plans = {running.plan for running in self._core.policies.running.values()}
        self._core.evaluator.retain_only(
            active_plans | {plan for each in self._in_preparation.values() if (plan := each.plan) is not None}
        )
