"""A policy's rules bound to one pod: what the state asks, row by row or for all rows at once.

Built-ins and rules written in the policy become the same two shapes here: a `BoundFilter` says whom it refuses and in
which words, a `BoundScore` measures and makes scores of the measures.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from policysched.evaluate.columns.column_kinds import INPUT_INVALID, INPUT_REQUIRED, InputState
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import FilterKernel, Normalizer, ScoreKernel, Touch
from policysched.evaluate.scalar.eval_context import Seen, Value
from policysched.evaluate.vector.machine import Fingerprint, Frame, Known, Machine
from policysched.lang.ir.program import Input
from policysched.model.cluster_events import ClusterEvent

NEUTRAL_OF_NOTHING = 50


@dataclass(slots=True)
class Moment:
    """What all rules of one evaluation share: the machine, the pod, the values of the leaves. It moves on with the clock."""

    machine: Machine
    seen: Seen
    leaves: Sequence[Value]

    def frame(self, view: View, candidates: Array | None = None) -> Frame:
        return Frame(view, self.seen, self.leaves, candidates)


@dataclass(frozen=True, slots=True)
class Answer:
    """A condition a row, three-valued."""

    true: Array
    known: Array

    @property
    def missing(self) -> Array:
        return ~self.known


def condition(machine: Machine, step: int, frame: Frame) -> Answer:
    """`true` only where it is known."""
    found = machine.run(frame, step)
    known = spread(found.known, frame.view.count)
    return Answer(spread(found.values, frame.view.count) & known, known)


def spread(mask: Known, count: int) -> Array:
    """One value a row. Not to be changed."""
    if isinstance(mask, bool):
        return np.full(count, mask)
    return mask if mask.shape == (count,) else np.broadcast_to(mask, (count,))


@dataclass(frozen=True, slots=True)
class BoundFilter:
    """`metrics` are those that decide about it. `text` gives the words for one node where they differ from those under
    which an event counts the refusal (`own_group`)."""

    name: str
    kernel: FilterKernel
    scaleup: bool
    wakes: frozenset[ClusterEvent]
    metrics: tuple[str, ...] = ()
    text: Callable[[Seen], str] | None = None
    own_group: str = ""


class ConditionalFilter:
    """A built-in with a `when` that depends on the node."""

    def __init__(self, kernel: FilterKernel, when: int, moment: Moment) -> None:
        self.kernel, self._when, self._moment = kernel, when, moment
        self.touch = kernel.touch | moment.machine.touch(when)

    def refused(self, view: View) -> Array:
        return self.kernel.refused(view) & self.applies(view)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        applies = self.applies(view)
        return [(text, mask & applies) for text, mask in self.kernel.reasons(view)]

    def unresolvable(self, view: View) -> Array:
        return self.kernel.unresolvable(view)

    def ahead(self, view: View) -> Array | None:
        ahead = self.kernel.ahead(view)
        return None if ahead is None else ahead & self.applies(view)

    def beforehand(self, view: View) -> str | None:
        """Where it depends on the node whether the rule applies, no pod is refused whatever the node."""
        return None

    def fingerprint(self, view: View) -> Hashable:
        return self.kernel.fingerprint(view)

    def apart(self, view: View) -> bool:
        return self.kernel.apart(view)

    def applies(self, view: View) -> Array:
        return condition(self._moment.machine, self._when, self._moment.frame(view)).true


class NodeInputs:
    """An input of the node that its policy demands, or does not take in any form."""

    touch = Touch.NODE

    def __init__(self, declared: Input) -> None:
        self._declared = declared

    def refused(self, view: View) -> Array:
        states = view.column(InputState(self._declared))
        return np.asarray((states == INPUT_REQUIRED) | (states == INPUT_INVALID))

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        states = view.column(InputState(self._declared))
        return [
            (text, np.asarray(states == state))
            for text, state in (
                (self._declared.required_text, INPUT_REQUIRED),
                (self._declared.invalid_text, INPUT_INVALID),
            )
            if text is not None
        ]

    def unresolvable(self, view: View) -> Array:
        return np.ones(view.count, np.bool_)

    def ahead(self, view: View) -> Array | None:
        return None

    def beforehand(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return ()

    def apart(self, view: View) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FilterWords:
    """`group` is the reason as an event counts it; `no_sample` the reason for each metric that may lack, in the order of
    the condition."""

    group: str
    no_sample: tuple[tuple[str, str], ...]
    not_recovered: str = ""


class ExpressionFilter:
    """`require` or `reject` of the policy, for nodes where `when` (None: always) is True."""

    def __init__(
        self,
        moment: Moment,
        *,
        when: int | None,
        answer: int,
        rejects: bool,
        missing: Literal["reject", "pass"] | None,
        resolvable: bool,
        words: FilterWords,
        within: int | None = None,
        around: Fingerprint | None = None,
    ) -> None:
        self._moment, self._when, self._answer = moment, when, answer
        self._rejects, self._resolvable, self._words = rejects, resolvable, words
        self._around = around  # what of other nodes it reads
        self._within = within  # the comparison alone, of a condition that holds nodes back
        self._missing_passes = missing == "pass" or (missing is None and rejects)
        machine = moment.machine
        self.touch = machine.touch(answer) | (Touch.NOTHING if when is None else machine.touch(when))

    def refused(self, view: View) -> Array:
        return self._refused(view)[0]

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        refused, answer = self._refused(view)
        found, left = [], refused
        for metric, text in self._words.no_sample:
            lacking = left & answer.missing & ~view.metric(metric)[1]
            found.append((text, lacking))
            left = left & ~lacking
        if self._within is not None:
            alone = condition(self._moment.machine, self._within, self._moment.frame(view))
            recovering = left & alone.known & (alone.true != self._rejects)
            found.append((self._words.not_recovered, recovering))
            left = left & ~recovering
        return [*found, (self._words.group, left)]

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self._resolvable)

    def ahead(self, view: View) -> Array | None:
        return None

    def beforehand(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return () if self._around is None else self._around(self._moment.frame(view))

    def apart(self, view: View) -> bool:
        return self._around is None

    def _refused(self, view: View) -> tuple[Array, Answer]:
        frame = self._moment.frame(view)
        answer = condition(self._moment.machine, self._answer, frame)
        refused = answer.true if self._rejects else answer.known & ~answer.true
        if not self._missing_passes:
            refused = refused | answer.missing
        if self._when is not None:
            refused = refused & condition(self._moment.machine, self._when, frame).true
        return refused, answer


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Measures:
    """A row's raw value, whether it is known, and whether the rule applies there (`when`). None: everywhere."""

    raw: Array
    known: Array | None = None
    applies: Array | None = None


@dataclass(frozen=True, slots=True)
class BoundScore:
    """`over_candidates`: the measures themselves depend on which nodes are candidates, so `measure` is given them, and all rows.
    `instead` is the score where the value is missing. `has_raw` False: the raw value says nothing to people. `shown`
    makes of raw values and the normalizer's facts what people see."""

    name: str
    weight: int
    touch: Touch
    measure: Callable[[View, Array | None], Measures]
    fingerprint: Callable[[View], Hashable]
    normalizer: Normalizer
    instead: int | Literal["neutral"]
    metrics: tuple[str, ...] = ()
    has_raw: bool = True
    over_candidates: bool = False
    shown: Callable[[Array, Hashable], Array] = lambda raw, facts: raw

    @property
    def local(self) -> bool:
        """Whether a node's score depends on that node alone."""
        return self.normalizer.local and self.instead != "neutral" and not self.over_candidates

    def local_scores(self, measures: Measures) -> Array:
        assert self.local, f"the scores of {self.name} depend on the candidates"
        instead = 0 if self.instead == "neutral" else self.instead
        return self._filled(measures, self.normalizer.scores(measures.raw, ()), instead)

    def candidate_facts(self, measures: Measures, candidates: Array) -> tuple[Hashable, int] | None:
        """What of the candidates the scores depend on: the normalizer's facts and the score of those without a value."""
        counted = _counted(measures, candidates)
        if not counted.any():
            return None
        facts = self.normalizer.facts(measures.raw, counted)
        if self.instead != "neutral" or measures.known is None:
            return facts, 0 if self.instead == "neutral" else self.instead
        scores = self.normalizer.scores(measures.raw[counted], facts)
        return facts, int(scores.sum()) // len(scores)

    def candidate_scores(self, measures: Measures, facts: tuple[Hashable, int] | None) -> Array:
        if facts is None:
            instead = NEUTRAL_OF_NOTHING if self.instead == "neutral" else self.instead
            return self._filled(measures, np.full(len(measures.raw), instead, np.int64), instead)
        return self._filled(measures, self.normalizer.scores(measures.raw, facts[0]), facts[1])

    def _filled(self, measures: Measures, scores: Array, instead: int) -> Array:
        if measures.known is not None:
            scores = np.where(measures.known, scores, instead)
        return scores if measures.applies is None else np.where(measures.applies, scores, 0)


def _counted(measures: Measures, candidates: Array) -> Array:
    counted = candidates
    if measures.known is not None:
        counted = counted & measures.known
    return counted if measures.applies is None else counted & measures.applies


def builtin_score(
    name: str, weight: int, kernel: ScoreKernel, when: int | None, metrics: tuple[str, ...], moment: Moment
) -> BoundScore:
    machine = moment.machine

    def measure(view: View, _candidates: Array | None) -> Measures:
        applies = None if when is None else condition(machine, when, moment.frame(view)).true
        if kernel.skips(view):
            applies = np.zeros(view.count, np.bool_)
        return Measures(kernel.raw(view), None, applies)

    touch = kernel.touch | (Touch.NOTHING if when is None else machine.touch(when))
    return BoundScore(
        name, weight, touch, measure, kernel.fingerprint, kernel.normalizer, 0, metrics, shown=kernel.shown
    )


def expression_score(
    name: str,
    weight: int,
    moment: Moment,
    *,
    when: int | None,
    value: int,
    normalizer: Normalizer,
    instead: int | Literal["neutral"],
    metrics: tuple[str, ...],
    has_raw: bool,
    over_candidates: bool,
    around: Fingerprint | None,
) -> BoundScore:
    machine = moment.machine

    def measure(view: View, candidates: Array | None) -> Measures:
        frame = moment.frame(view, candidates)
        found = machine.run(frame, value)
        raw = spread(found.values, view.count)
        known = None if found.known is True else spread(found.known, view.count)
        applies = None if when is None else condition(machine, when, frame).true
        return Measures(raw, known, applies)

    touch = machine.touch(value) | (Touch.NOTHING if when is None else machine.touch(when))
    return BoundScore(
        name,
        weight,
        touch,
        measure,
        lambda view: () if around is None else around(moment.frame(view)),
        normalizer,
        instead,
        metrics,
        has_raw=has_raw,
        over_candidates=over_candidates,
    )
