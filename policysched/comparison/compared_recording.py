"""A recording on which two policies are compared: it is run again with each of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from policysched.cluster.metric_samples import Samples
from policysched.comparison.forked import Progress, run_forked
from policysched.comparison.measures import measure
from policysched.comparison.outcomes import Outcomes
from policysched.comparison.rerun import Rerun
from policysched.comparison.runner import PolicyRun, Show
from policysched.from_files.simulate import Observe
from policysched.lang.ir.program import Program
from policysched.recording.reader import (
    CONTRADICTIONS,
    Item,
    RecordedDecide,
    RecordedEvent,
    Recording,
    RecordingGap,
    UnusableRecording,
)
from policysched.scheduler import events as e
from policysched.text.sanitize import sanitize_line

_ITEMS_PER_PROGRESS = 1000
_ITEMS_KEPT_MAX = 100_000
"""About 350 MiB."""

Result = TypeVar("Result")


@dataclass(slots=True)
class ComparedRecording:
    """`policy_name`: the policy of the recording whose place the compared ones take. The recording is read once, and the
    processes that run it share what was read; a long one is read by each process, once for all policies that it runs.
    `notes`: what is missing in the recording."""

    recording: Recording
    policy_name: str | None
    since_ns: int | None = None
    until_ns: int | None = None
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    notes: list[str] = field(default_factory=list)
    _observed: Rerun | None = None
    _kept: list[Item] | None = None
    _is_long: bool = False

    def run_both(self, old: Program, new: Program, progress: Progress) -> tuple[PolicyRun, PolicyRun]:
        before, after = self._run_each((old, new), _policy_run, "running the recording again", progress)
        return before, after

    def run_each(
        self, programs: Sequence[Program | None], label: str, progress: Progress
    ) -> Iterator[Outcomes | None]:
        wanted = [program for program in programs if program is not None]
        results = iter(self._run_each(wanted, _outcomes, label, progress) if wanted else ())
        for program in programs:
            yield None if program is None else next(results)

    def observe(
        self, program: Program, observe: Observe, progress: Progress, is_done: Callable[[], bool]
    ) -> None:
        self._keep_items(progress)
        total = self.recording.bytes_total(self.since_ns)
        self._observed = rerun = Rerun(program, since_ns=self.since_ns, observe=observe)
        self._read([rerun], lambda done: progress("finding the decisive rules", done, total), is_done)

    def present(self, program: Program) -> tuple[Samples, int]:
        assert self._observed is not None, "nothing is observed"
        return self._observed.samples_of(program), self._observed.now_ns

    def _run_each(
        self,
        programs: Sequence[Program],
        result_of: Callable[[Rerun, Program], Result],
        label: str,
        progress: Progress,
    ) -> list[Result]:
        self._keep_items(progress)
        workers = min(self.workers, len(programs))
        shares = [programs[number::workers] for number in range(workers)]
        jobs = [partial(self._run_share, share, result_of) for share in shares]
        total = workers * self.recording.bytes_total(self.since_ns)
        results: dict[int, Result] = {}
        for number, (shared, notes) in enumerate(run_forked(jobs, workers, progress, label, total)):
            results |= {number + workers * index: result for index, result in enumerate(shared)}
            self.notes += [note for note in notes if note not in self.notes]
        return [results[number] for number in range(len(programs))]

    def _keep_items(self, progress: Progress) -> None:
        """Before processes are forked, so that they share them."""
        recording, kept = self.recording, list[Item]()
        if self._kept is not None or self._is_long:
            return
        total = recording.bytes_total(self.since_ns)
        for count, item in enumerate(recording.items(self.since_ns, self.until_ns)):
            if count % _ITEMS_PER_PROGRESS == 0:
                progress("reading the recording", recording.bytes_read, total)
            if count == _ITEMS_KEPT_MAX:
                self._is_long = True
                return
            kept.append(item)
        self._kept = kept

    def _run_share(
        self, programs: Sequence[Program], result_of: Callable[[Rerun, Program], Result], show: Show
    ) -> tuple[list[Result], list[str]]:
        reruns = [Rerun(program, since_ns=self.since_ns) for program in programs]
        notes = self._read(reruns, show)
        return [result_of(rerun, program) for rerun, program in zip(reruns, programs, strict=True)], notes

    def _read(
        self, reruns: Sequence[Rerun], show: Show, is_done: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Run the policies over the recording, up to its end or until `is_done`, and say what is missing in it."""
        recording, notes, kept = self.recording, list[str](), self._kept
        total = recording.bytes_total(self.since_ns)
        items = recording.items(self.since_ns, self.until_ns) if kept is None else kept
        for count, item in enumerate(items):
            if count % _ITEMS_PER_PROGRESS == 0:
                show(recording.bytes_read if kept is None else total * count // len(kept))
            if is_done():
                return notes
            if isinstance(item, RecordingGap):
                notes.append(f"{item.lines} lines are missing in the recording: {item.reason}")
            try:
                for rerun in reruns:
                    rerun.apply(item)
            except CONTRADICTIONS as error:
                raise UnusableRecording(
                    f"the recording contradicts itself: {type(error).__name__} {sanitize_line(str(error))}"
                ) from error
        for rerun in reruns:
            rerun.finish()
        return list(dict.fromkeys([*recording.problems, *notes]))  # a long recording is read again


def compared_recording(
    recording: Recording, wanted: str, since_ns: int | None, until_ns: int | None
) -> ComparedRecording:
    """The recording, for policies that take the place of the recorded policy `wanted`, or of the only one there is. Raises
    UnusableRecording."""
    names = policy_names(recording, since_ns)
    if wanted not in names and len(names) != 1:
        raise UnusableRecording(
            f"the recording has no policy {wanted}; it has {', '.join(names)}"
            if names
            else "no policy runs in the recording"
        )
    return ComparedRecording(recording, wanted if wanted in names else names[0], since_ns, until_ns)


def policy_names(recording: Recording, since_ns: int | None) -> tuple[str, ...]:
    """The names of the policies up to the first decision, sorted."""
    names: set[str] = set()
    for item in recording.items(since_ns):
        if isinstance(item, RecordedDecide) and item.decisions and names:
            break
        if isinstance(item, RecordedEvent) and isinstance(item.event, e.PoliciesUpdated):
            for bundle in (item.event.bundle, item.event.last_good):
                for source in () if bundle is None else bundle.sources.values():
                    name = source.policy_name if source.program is None else source.program.name
                    names |= set() if name is None else {name}
    return tuple(sorted(names))


def _outcomes(rerun: Rerun, _program: Program) -> Outcomes:
    return rerun.outcomes()


def _policy_run(rerun: Rerun, program: Program) -> PolicyRun:
    """Measured at the end of the recording."""
    files, present = rerun.cluster()
    measures = measure(
        program,
        files,
        present,
        samples=rerun.samples_of(program),
        now_ns=rerun.now_ns,
        waits_ns=rerun.waits_ns(),
    )
    return PolicyRun(rerun.outcomes(), measures, rerun.as_recorded())
