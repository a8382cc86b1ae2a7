"""A policy's rules bound to one pod: what the state asks, row by row or for all rows at once.

Built-ins and rules written in the policy become the same two shapes here: a `SpecializedFilter` says whom it refuses and in
which words, a `SpecializedScore` measures and makes scores of the measures.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from policysched.evaluate.columns.column_kinds import INPUT_INVALID, INPUT_REQUIRED, InputState
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Dependency, FilterKernel, Normalizer, ScoreKernel
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.evaluate.vector.machine import EvalFrame, Fingerprint, KnownMask, VectorMachine
from policysched.lang.ir.declarations import Input
from policysched.model.cluster_events import ClusterEvent

NEUTRAL_SCORE_DEFAULT = 50


@dataclass(slots=True)
class Activation:
    """What all rules of one evaluation share: the machine, the pod, the values of the leaves. It moves on with the clock."""

    machine: VectorMachine
    context: EvalContext
    leaves: Sequence[EvalValue]

    def frame(self, view: View, candidates: Array | None = None) -> EvalFrame:
        return EvalFrame(view, self.context, self.leaves, candidates)


@dataclass(frozen=True, slots=True)
class ThreeValuedMask:
    """A condition a row, three-valued."""

    true: Array
    known: Array

    @property
    def missing(self) -> Array:
        return ~self.known


def evaluate_condition(machine: VectorMachine, step: int, frame: EvalFrame) -> ThreeValuedMask:
    """`true` only where it is known."""
    found = machine.run(frame, step)
    known = broadcast_to_rows(found.known, frame.view.count)
    return ThreeValuedMask(broadcast_to_rows(found.values, frame.view.count) & known, known)


def broadcast_to_rows(mask: KnownMask, count: int) -> Array:
    """One value a row. Not to be changed."""
    if isinstance(mask, bool):
        return np.full(count, mask)
    return mask if mask.shape == (count,) else np.broadcast_to(mask, (count,))


@dataclass(frozen=True, slots=True)
class SpecializedFilter:
    """`metrics` are those that decide about it. `message_at` gives the words for one node where they differ from those under
    which an event counts the refusal (`reason_group`)."""

    name: str
    kernel: FilterKernel
    scaleup: bool
    requeue_events: frozenset[ClusterEvent]
    metrics: tuple[str, ...] = ()
    message_at: Callable[[EvalContext], str] | None = None
    reason_group: str = ""


class ConditionalFilter:
    """A built-in with a `when` that depends on the node."""

    def __init__(self, kernel: FilterKernel, when: int, moment: Activation) -> None:
        self.kernel, self._when, self._activation = kernel, when, moment
        self.depends_on = kernel.depends_on | moment.machine.depends_on(when)

    def refused(self, view: View) -> Array:
        return self.kernel.refused(view) & self.applies(view)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        applies = self.applies(view)
        return [(text, mask & applies) for text, mask in self.kernel.reasons(view)]

    def unresolvable(self, view: View) -> Array:
        return self.kernel.unresolvable(view)

    def early_reject(self, view: View) -> Array | None:
        ahead = self.kernel.early_reject(view)
        return None if ahead is None else ahead & self.applies(view)

    def prefilter(self, view: View) -> str | None:
        """Where it depends on the node whether the rule applies, no pod is refused whatever the node."""
        return None

    def fingerprint(self, view: View) -> Hashable:
        return self.kernel.fingerprint(view)

    def is_node_local(self, view: View) -> bool:
        return self.kernel.is_node_local(view)

    def applies(self, view: View) -> Array:
        return evaluate_condition(self._activation.machine, self._when, self._activation.frame(view)).true


class NodeInputFilter:
    """An input of the node that its policy demands, or does not take in any form."""

    depends_on = Dependency.NODE

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

    def early_reject(self, view: View) -> Array | None:
        return None

    def prefilter(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return ()

    def is_node_local(self, view: View) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FilterMessages:
    """`group` is the reason as an event counts it; `no_sample` the reason for each metric that may lack, in the order of
    the condition."""

    group: str
    no_sample: tuple[tuple[str, str], ...]
    not_recovered: str = ""


class ExpressionFilter:
    """`require` or `reject` of the policy, for nodes where `when` (None: always) is True."""

    def __init__(
        self,
        moment: Activation,
        *,
        when: int | None,
        condition: int,
        rejects: bool,
        missing: Literal["reject", "pass"] | None,
        resolvable: bool,
        messages: FilterMessages,
        comparison: int | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self._activation, self._when, self._condition = moment, when, condition
        self._rejects, self._resolvable, self._messages = rejects, resolvable, messages
        self._fingerprint = fingerprint  # what of other nodes it reads
        self._comparison = comparison  # the comparison alone, of a condition that holds nodes back
        self._missing_passes = missing == "pass" or (missing is None and rejects)
        machine = moment.machine
        self.depends_on = machine.depends_on(condition) | (
            Dependency.NONE if when is None else machine.depends_on(when)
        )

    def refused(self, view: View) -> Array:
        return self._refused(view)[0]

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        refused, answer = self._refused(view)
        found, left = [], refused
        for metric, text in self._messages.no_sample:
            lacking = left & answer.missing & ~view.metric(metric)[1]
            found.append((text, lacking))
            left = left & ~lacking
        if self._comparison is not None:
            alone = evaluate_condition(
                self._activation.machine, self._comparison, self._activation.frame(view)
            )
            recovering = left & alone.known & (alone.true != self._rejects)
            found.append((self._messages.not_recovered, recovering))
            left = left & ~recovering
        return [*found, (self._messages.group, left)]

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self._resolvable)

    def early_reject(self, view: View) -> Array | None:
        return None

    def prefilter(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return () if self._fingerprint is None else self._fingerprint(self._activation.frame(view))

    def is_node_local(self, view: View) -> bool:
        return self._fingerprint is None

    def _refused(self, view: View) -> tuple[Array, ThreeValuedMask]:
        frame = self._activation.frame(view)
        answer = evaluate_condition(self._activation.machine, self._condition, frame)
        refused = answer.true if self._rejects else answer.known & ~answer.true
        if not self._missing_passes:
            refused = refused | answer.missing
        if self._when is not None:
            refused = refused & evaluate_condition(self._activation.machine, self._when, frame).true
        return refused, answer


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RawScores:
    """A row's raw value, whether it is known, and whether the rule applies there (`when`). None: everywhere."""

    raw: Array
    known: Array | None = None
    applies: Array | None = None


@dataclass(frozen=True, slots=True)
class SpecializedScore:
    """`over_candidates`: the measures themselves depend on which nodes are candidates, so `raw_scores` is given them, and all rows.
    `missing_score` is the score where the value is missing. `has_raw` False: the raw value says nothing to people. `display_raw`
    makes of raw values and the normalizer's facts what people see."""

    name: str
    weight: int
    depends_on: Dependency
    raw_scores: Callable[[View, Array | None], RawScores]
    fingerprint: Callable[[View], Hashable]
    normalizer: Normalizer
    missing_score: int | Literal["neutral"]
    metrics: tuple[str, ...] = ()
    has_raw: bool = True
    over_candidates: bool = False
    display_raw: Callable[[Array, Hashable], Array] = lambda raw, facts: raw

    @property
    def node_local(self) -> bool:
        """Whether a node's score depends on that node alone."""
        return self.normalizer.node_local and self.missing_score != "neutral" and not self.over_candidates

    def node_local_scores(self, measures: RawScores) -> Array:
        assert self.node_local, f"the scores of {self.name} depend on the candidates"
        instead = 0 if self.missing_score == "neutral" else self.missing_score
        return self._fill_missing(measures, self.normalizer.normalize(measures.raw, ()), instead)

    def candidate_stats(self, measures: RawScores, candidates: Array) -> tuple[Hashable, int] | None:
        """What of the candidates the scores depend on: the normalizer's facts and the score of those without a value."""
        counted = _scored_candidates(measures, candidates)
        if not counted.any():
            return None
        facts = self.normalizer.candidate_stats(measures.raw, counted)
        if self.missing_score != "neutral" or measures.known is None:
            return facts, 0 if self.missing_score == "neutral" else self.missing_score
        scores = self.normalizer.normalize(measures.raw[counted], facts)
        return facts, int(scores.sum()) // len(scores)

    def candidate_scores(self, measures: RawScores, facts: tuple[Hashable, int] | None) -> Array:
        if facts is None:
            instead = NEUTRAL_SCORE_DEFAULT if self.missing_score == "neutral" else self.missing_score
            return self._fill_missing(measures, np.full(len(measures.raw), instead, np.int64), instead)
        return self._fill_missing(measures, self.normalizer.normalize(measures.raw, facts[0]), facts[1])

    def _fill_missing(self, measures: RawScores, scores: Array, instead: int) -> Array:
        if measures.known is not None:
            scores = np.where(measures.known, scores, instead)
        return scores if measures.applies is None else np.where(measures.applies, scores, 0)


def _scored_candidates(measures: RawScores, candidates: Array) -> Array:
    counted = candidates
    if measures.known is not None:
        counted = counted & measures.known
    return counted if measures.applies is None else counted & measures.applies


def builtin_score(
    name: str,
    weight: int,
    kernel: ScoreKernel,
    when: int | None,
    metrics: tuple[str, ...],
    moment: Activation,
) -> SpecializedScore:
    machine = moment.machine

    def measure(view: View, _candidates: Array | None) -> RawScores:
        applies = None if when is None else evaluate_condition(machine, when, moment.frame(view)).true
        if kernel.skip(view):
            applies = np.zeros(view.count, np.bool_)
        return RawScores(kernel.raw(view), None, applies)

    touch = kernel.depends_on | (Dependency.NONE if when is None else machine.depends_on(when))
    return SpecializedScore(
        name,
        weight,
        touch,
        measure,
        kernel.fingerprint,
        kernel.normalizer,
        0,
        metrics,
        display_raw=kernel.display_raw,
    )


def expression_score(
    name: str,
    weight: int,
    moment: Activation,
    *,
    when: int | None,
    value: int,
    normalizer: Normalizer,
    missing_score: int | Literal["neutral"],
    metrics: tuple[str, ...],
    has_raw: bool,
    over_candidates: bool,
    fingerprint: Fingerprint | None,
) -> SpecializedScore:
    machine = moment.machine

    def measure(view: View, candidates: Array | None) -> RawScores:
        frame = moment.frame(view, candidates)
        found = machine.run(frame, value)
        raw = broadcast_to_rows(found.values, view.count)
        known = None if found.known is True else broadcast_to_rows(found.known, view.count)
        applies = None if when is None else evaluate_condition(machine, when, frame).true
        return RawScores(raw, known, applies)

    touch = machine.depends_on(value) | (Dependency.NONE if when is None else machine.depends_on(when))
    return SpecializedScore(
        name,
        weight,
        touch,
        measure,
        lambda view: () if fingerprint is None else fingerprint(moment.frame(view)),
        normalizer,
        missing_score,
        metrics,
        has_raw=has_raw,
        over_candidates=over_candidates,
    )
