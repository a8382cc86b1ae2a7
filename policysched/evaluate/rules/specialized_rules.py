"""A policy's rules specialized for one pod, evaluated on single rows or on all.

Built-ins and rules written in the policy take the same two forms: a `SpecializedFilter` rejects
rows and gives reasons, a `SpecializedScore` computes raw values and scores.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from policysched.cluster.metric_samples import StateRow
from policysched.evaluate.columns.column_kinds import INPUT_INVALID, INPUT_REQUIRED, InputStateColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Dependency, FilterKernel, FilterKernelBase, Normalizer, ScoreKernel
from policysched.evaluate.rules.raw_scores import RawScores
from policysched.evaluate.rules.rejection_gaps import GapFunction
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.evaluate.vector.machine import EvalFrame, Fingerprint, KnownMask, VectorMachine
from policysched.evaluate.vector.pod_totals import OtherRows
from policysched.evaluate.verdict import PrebindRequirements
from policysched.lang.ir.declarations import Input
from policysched.model.cluster_events import ClusterEvent
from policysched.model.nodes import Node
from policysched.model.pods import Pod

NEUTRAL_SCORE_DEFAULT = 50


@dataclass(slots=True)
class Activation:
    """What the rules of one evaluation share: the machine, the pod's context and the leaf values.
    Context and leaf values change with each pod and with the clock.
    """

    machine: VectorMachine
    context: EvalContext
    leaves: Sequence[EvalValue]

    def frame(self, view: View, candidates: Array | None = None) -> EvalFrame:
        return EvalFrame(view, self.context, self.leaves, candidates)

    def state_changes_ns(self) -> list[int | None]:
        """When decay changes the values of each state that the rules read; None: not by itself."""
        return [row.changes_ns for row in cast(Sequence[object], self.leaves) if isinstance(row, StateRow)]


@dataclass(frozen=True, slots=True)
class ThreeValuedMask:
    """A three-valued condition by row."""

    true: Array
    known: Array

    @property
    def missing(self) -> Array:
        return ~self.known


def evaluate_condition(machine: VectorMachine, step: int, frame: EvalFrame) -> ThreeValuedMask:
    """`true` only where the condition is known."""
    vector = machine.run(frame, step)
    known = broadcast_to_rows(vector.known, frame.view.count)
    return ThreeValuedMask(broadcast_to_rows(vector.values, frame.view.count) & known, known)


def broadcast_to_rows(mask: KnownMask, count: int) -> Array:
    """One value per row. Read-only."""
    if isinstance(mask, bool):
        return np.full(count, mask)
    return mask if mask.shape == (count,) else np.broadcast_to(mask, (count,))


@dataclass(frozen=True, slots=True)
class SpecializedFilter:
    """`metrics` are those that its result depends on. `message_at` gives the message for one node
    where it differs from the reason under which an event counts the rejection (`reason_group`);
    `gap_at` says how far a rejected node is from passing.
    """

    name: str
    kernel: FilterKernel
    scaleup: bool
    requeue_events: frozenset[ClusterEvent]
    metrics: tuple[str, ...] = ()
    message_at: Callable[[EvalContext], str] | None = None
    reason_group: str = ""
    gap_at: GapFunction | None = None


class ConditionalFilter:
    """A built-in with a `when` that depends on the node."""

    def __init__(
        self, kernel: FilterKernel, when: int, activation: Activation, fingerprint: OtherRows | None
    ) -> None:
        self.kernel, self._when, self._activation = kernel, when, activation
        self._fingerprint = fingerprint  # of what `when` reads on other nodes
        self.depends_on = kernel.depends_on | activation.machine.depends_on(when)

    def rejected(self, view: View) -> Array:
        return self.kernel.rejected(view) & self.applies(view)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        applies = self.applies(view)
        return [(text, mask & applies) for text, mask in self.kernel.reasons(view)]

    def unresolvable(self, view: View) -> Array:
        return self.kernel.unresolvable(view)

    def early_reject(self, view: View) -> Array | None:
        ahead = self.kernel.early_reject(view)
        return None if ahead is None else ahead & self.applies(view)

    def prefilter(self, view: View) -> str | None:
        """None: the rule applies to some nodes only, so it rejects no pod on every node."""
        return None

    def repeated_on_new_node(self, view: View) -> Array:
        return self.kernel.repeated_on_new_node(view) & self.applies(view)

    def attempt_errors(self, view: View) -> Sequence[tuple[str, Array]]:
        errors = self.kernel.attempt_errors(view)
        return [(text, mask & self.applies(view)) for text, mask in errors]

    def fingerprint(self, view: View) -> Hashable:
        of_kernel = self.kernel.fingerprint(view)
        return of_kernel if self._fingerprint is None else (of_kernel, self._fingerprint(self._frame(view)))

    def is_node_local(self, view: View) -> bool:
        return self._fingerprint is None and self.kernel.is_node_local(view)

    def alone(self, view: View, base: View) -> FilterKernel | None:
        others, frame = self._fingerprint, self._frame
        counts_more = others is not None and not others.counts_no_more(frame(view), frame(base))
        kernel = None if counts_more else self.kernel.alone(view, base)
        return None if kernel is None else ConditionalFilter(kernel, self._when, self._activation, None)

    def shortfall(self, view: View) -> Mapping[str, Array]:
        """Not known: on which nodes the rule applies may change."""
        return {}

    def prebind_requirements(self, pod: Pod, node: Node, view: View) -> PrebindRequirements | None:
        return self.kernel.prebind_requirements(pod, node, view) if self.applies(view)[0] else None

    def applies(self, view: View) -> Array:
        return evaluate_condition(self._activation.machine, self._when, self._frame(view)).true

    def _frame(self, view: View) -> EvalFrame:
        return self._activation.frame(view)


class NodeInputFilter(FilterKernelBase):
    """An input of the node that is required and absent, or invalid."""

    def __init__(self, declared: Input) -> None:
        self._declared = declared

    def rejected(self, view: View) -> Array:
        states = view.column(InputStateColumn(self._declared))
        return np.asarray((states == INPUT_REQUIRED) | (states == INPUT_INVALID))

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        states = view.column(InputStateColumn(self._declared))
        return [
            (text, np.asarray(states == evaluation))
            for text, evaluation in (
                (self._declared.required_text, INPUT_REQUIRED),
                (self._declared.invalid_text, INPUT_INVALID),
            )
            if text is not None
        ]


@dataclass(frozen=True, slots=True)
class FilterMessages:
    """`group` is the reason as an event counts it, `no_sample` the reason for each metric that may
    lack a sample, in the order of the condition, `not_recovered` the reason of a node that has
    not recovered.
    """

    group: str
    no_sample: tuple[tuple[str, str], ...]
    not_recovered: str = ""


class ExpressionFilter(FilterKernelBase):
    """A `require` or `reject` of the policy, for the nodes where `when` is true (None: all)."""

    def __init__(
        self,
        activation: Activation,
        *,
        when: int | None,
        condition: int,
        rejects: bool,
        missing: Literal["reject", "pass"] | None,
        resolvable: bool,
        messages: FilterMessages,
        comparison: int | None = None,
        fingerprint: OtherRows | None = None,
    ) -> None:
        self._activation, self._when, self._condition = activation, when, condition
        self._rejects, self._resolvable, self._messages = rejects, resolvable, messages
        self._fingerprint = fingerprint  # of what it reads on other nodes
        self._comparison = comparison  # of a condition with `recover`
        self._missing_passes = missing == "pass" or (missing is None and rejects)
        machine = activation.machine
        self.depends_on = machine.depends_on(condition) | (
            Dependency.NONE if when is None else machine.depends_on(when)
        )

    def rejected(self, view: View) -> Array:
        return self._rejected(view)[0]

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        rejected, answer = self._rejected(view)
        reasons, unexplained = [], rejected
        for metric, text in self._messages.no_sample:
            lacking = unexplained & answer.missing & ~view.metric(metric)[1]
            reasons.append((text, lacking))
            unexplained = unexplained & ~lacking
        if self._comparison is not None:
            comparison = evaluate_condition(
                self._activation.machine, self._comparison, self._activation.frame(view)
            )
            recovering = unexplained & comparison.known & (comparison.true != self._rejects)
            reasons.append((self._messages.not_recovered, recovering))
            unexplained = unexplained & ~recovering
        return [*reasons, (self._messages.group, unexplained)]

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self._resolvable)

    def fingerprint(self, view: View) -> Hashable:
        return () if self._fingerprint is None else self._fingerprint(self._activation.frame(view))

    def is_node_local(self, view: View) -> bool:
        return self._fingerprint is None

    def alone(self, view: View, base: View) -> FilterKernel | None:
        """None if it counts some of the pods on other nodes: a condition that is the same with all of them can differ with some."""
        others, frame = self._fingerprint, self._activation.frame
        return self if others is None or others.counts_no_more(frame(view), frame(base)) else None

    def _rejected(self, view: View) -> tuple[Array, ThreeValuedMask]:
        frame = self._activation.frame(view)
        answer = evaluate_condition(self._activation.machine, self._condition, frame)
        rejected = answer.true if self._rejects else answer.known & ~answer.true
        if not self._missing_passes:
            rejected = rejected | answer.missing
        if self._when is not None:
            rejected = rejected & evaluate_condition(self._activation.machine, self._when, frame).true
        return rejected, answer


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SpecializedScore:
    """`over_candidates`: raw values depend on which nodes are candidates, so `raw_scores` gets the
    candidates and all rows. `missing_score`: the score where the value is missing. `has_raw`
    False: the raw value is not shown. `display_raw` makes the shown value from raw values and
    the normalizer's statistics.
    """

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
    display_raw: Callable[[Array, Hashable], Array] = lambda raw, stats: raw

    @property
    def node_local(self) -> bool:
        """Whether a node's score depends on that node alone."""
        return self.normalizer.node_local and self.missing_score != "neutral" and not self.over_candidates

    def node_local_scores(self, raw_scores: RawScores) -> Array:
        assert self.node_local, f"the scores of {self.name} depend on the candidates"
        default_score = 0 if self.missing_score == "neutral" else self.missing_score
        return self._fill_missing(raw_scores, self.normalizer.normalize(raw_scores.raw, ()), default_score)

    def candidate_stats(self, raw_scores: RawScores, candidates: Array) -> tuple[Hashable, int] | None:
        """The statistics of the candidates that scores depend on: the normalizer's, and the score
        of candidates without a value.
        """
        counted = _scored_candidates(raw_scores, candidates)
        if not counted.any():
            return None
        stats = self.normalizer.candidate_stats(raw_scores.raw, counted)
        if self.missing_score != "neutral" or raw_scores.known is None:
            return stats, 0 if self.missing_score == "neutral" else self.missing_score
        scores = self.normalizer.normalize(raw_scores.raw[counted], stats)
        return stats, int(scores.sum()) // len(scores)

    def candidate_scores(self, raw_scores: RawScores, stats: tuple[Hashable, int] | None) -> Array:
        if stats is None:
            default_score = NEUTRAL_SCORE_DEFAULT if self.missing_score == "neutral" else self.missing_score
            return self._fill_missing(
                raw_scores, np.full(len(raw_scores.raw), default_score, np.int64), default_score
            )
        return self._fill_missing(raw_scores, self.normalizer.normalize(raw_scores.raw, stats[0]), stats[1])

    def _fill_missing(self, raw_scores: RawScores, scores: Array, default_score: int) -> Array:
        if raw_scores.known is not None:
            scores = np.where(raw_scores.known, scores, default_score)
        return scores if raw_scores.applies is None else np.where(raw_scores.applies, scores, 0)


def _scored_candidates(raw_scores: RawScores, candidates: Array) -> Array:
    counted = candidates
    if raw_scores.known is not None:
        counted = counted & raw_scores.known
    return counted if raw_scores.applies is None else counted & raw_scores.applies


def builtin_score(
    name: str,
    weight: int,
    kernel: ScoreKernel,
    when: int | None,
    metrics: tuple[str, ...],
    activation: Activation,
    when_fingerprint: Fingerprint | None,
) -> SpecializedScore:
    machine = activation.machine

    def raw_scores(view: View, _candidates: Array | None) -> RawScores:
        applies = None if when is None else evaluate_condition(machine, when, activation.frame(view)).true
        if kernel.skip(view):
            applies = np.zeros(view.count, np.bool_)
        return RawScores(kernel.raw(view), None, applies)

    def fingerprint(view: View) -> Hashable:
        of_kernel = kernel.fingerprint(view)
        return (
            of_kernel if when_fingerprint is None else (of_kernel, when_fingerprint(activation.frame(view)))
        )

    depends_on = kernel.depends_on | (Dependency.NONE if when is None else machine.depends_on(when))
    return SpecializedScore(
        name,
        weight,
        depends_on,
        raw_scores,
        fingerprint,
        kernel.normalizer,
        0,
        metrics,
        display_raw=kernel.display_raw,
    )


def expression_score(
    name: str,
    weight: int,
    activation: Activation,
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
    machine = activation.machine

    def raw_scores(view: View, candidates: Array | None) -> RawScores:
        frame = activation.frame(view, candidates)
        vector = machine.run(frame, value)
        raw = broadcast_to_rows(vector.values, view.count)
        known = None if vector.known is True else broadcast_to_rows(vector.known, view.count)
        applies = None if when is None else evaluate_condition(machine, when, frame).true
        return RawScores(raw, known, applies)

    depends_on = machine.depends_on(value) | (Dependency.NONE if when is None else machine.depends_on(when))
    return SpecializedScore(
        name,
        weight,
        depends_on,
        raw_scores,
        lambda view: () if fingerprint is None else fingerprint(activation.frame(view)),
        normalizer,
        missing_score,
        metrics,
        has_raw=has_raw,
        over_candidates=over_candidates,
    )
