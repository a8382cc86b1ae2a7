"""Lowering: from a program to the variants of its plan.

There is one `Variant` for each set of layers that can apply, lowered when a pod first needs it.
Constants are folded and equal expressions become one step. A `when` that reads only the pod becomes
a scalar function; the rest are steps of the variant's machine.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

from policysched.builtins.registry import BUILTINS
from policysched.evaluate.rules.rejection_gaps import GapFunction, gap_function
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import ScalarFunction
from policysched.evaluate.scalar.next_change import TimedParts, time_dependent_parts
from policysched.evaluate.vector.machine import VectorMachine
from policysched.evaluate.vector.pod_totals import OtherRows, fingerprint_of_other_rows
from policysched.evaluate.vector.step_builders import build_machine as machine_of
from policysched.lang.ir import expr as e
from policysched.lang.ir.clock import slope_difference
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr_analysis import stage_of, walk
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.reads import CLAIMS_FIELD, rule_reads
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, ScoreRule
from policysched.model.cluster_events import ClusterEvent

AnyRule = FilterRule | BuiltinFilter | ScoreRule | BuiltinScore

_BYTES_PER_EXPR = 3 * 1024
_BYTES_PER_RULE = 1024


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """The optimizations to apply. They do not change verdicts."""

    fold_constants: bool = True
    share_subexpressions: bool = True


@dataclass(frozen=True, slots=True)
class LoweredFilter:
    """`pod_when` is evaluated once per pod. `node_when`, `condition` and `comparison` are steps of
    the machine; `comparison` is the comparison of a condition with `recover`. `metrics` are
    those the rule depends on, `condition_metrics` those of its condition. `template` has a
    function for each part of the message. `fingerprint`: of what the rule reads of other nodes. `gap_at`: see
    `SpecializedFilter`.
    """

    rule: FilterRule | BuiltinFilter
    pod_when: ScalarFunction | None
    node_when: int | None
    condition: int | None
    comparison: int | None
    metrics: tuple[str, ...]
    condition_metrics: tuple[str, ...]
    resolvable: bool
    template: tuple[ScalarFunction, ...]
    varies_by_node: bool
    requeue_events: frozenset[ClusterEvent]
    reads_claims: bool
    fingerprint: OtherRows | None
    gap_at: GapFunction | None = None


@dataclass(frozen=True, slots=True)
class LoweredScore:
    rule: ScoreRule | BuiltinScore
    pod_when: ScalarFunction | None
    node_when: int | None
    value: int | None
    metrics: tuple[str, ...]
    reads_claims: bool
    fingerprint: OtherRows | None
    over_candidates: bool


@dataclass(frozen=True, slots=True)
class ClockReads:
    """How the rules read the clock.

    `comparisons`: two steps and the slope of their difference, which flips at a computable time. `totals`: over pods of a
    domain, by their age. `has_other_reads`: something else changes with the clock. `in_messages`: a message shows the
    time. `shares_in_messages`: a message shows the shares of the namespace. `counts_in_messages`:
    pod counts of the cluster that messages show.
    """

    comparisons: tuple[tuple[int, int, int], ...]
    totals: tuple[e.PodTotal, ...]
    has_other_reads: bool
    in_messages: bool
    shares_in_messages: bool
    counts_in_messages: tuple[ScalarFunction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The rules for pods to which the layers `active` apply. `metrics`: all that a rule reads. Compared by identity:
    what is kept of a variant that the plan dropped is not of the one that it lowers anew."""

    active: tuple[int, ...]
    machine: VectorMachine
    node_inputs: tuple[Input, ...]
    filters: tuple[LoweredFilter, ...]
    scores: tuple[LoweredScore, ...]
    clock_reads: ClockReads
    metrics: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        rules = len(self.filters) + len(self.scores)
        return _BYTES_PER_EXPR * len(self.machine.exprs) + _BYTES_PER_RULE * rules


def lower_in_steps(
    program: Program, active: tuple[int, ...], lowering: LoweringOptions
) -> Generator[None, None, Variant]:
    """The variant for these layers, in steps of one rule: a policy near its limits takes a second."""
    machine = machine_of(program, share=lowering.share_subexpressions)
    rules = rules_for(program, active)
    folded_rules: list[AnyRule] = []
    filters: list[LoweredFilter] = []
    scores: list[LoweredScore] = []
    metrics_of_rules: list[tuple[str, ...]] = []
    for written in (*rules.filters, *rules.scores):
        folded_rules.append(fold_rule(written, lowering))
        if isinstance(written, FilterRule | BuiltinFilter):
            filters.append(_lower_filter(written, folded_rules[-1], machine))
        else:
            scores.append(_lower_score(written, folded_rules[-1], machine))
        metrics_of_rules.append(metrics_read(rule_expressions(written)))
        yield
    clock_reads = yield from _clock_reads(folded_rules, machine)
    return Variant(
        active=active,
        machine=machine,
        node_inputs=tuple(
            declared
            for declared in program.inputs.values()
            if declared.owner == "node"
            and (declared.required_text is not None or declared.invalid_text is not None)
        ),
        filters=tuple(filters),
        scores=tuple(scores),
        clock_reads=clock_reads,
        metrics=tuple(dict.fromkeys(name for metrics in metrics_of_rules for name in metrics)),
    )


def _clock_reads(rules: Iterable[AnyRule], machine: VectorMachine) -> Generator[None, None, ClockReads]:
    timed, message_stages, counts = TimedParts(), e.Stage.CONSTANT, list[ScalarFunction]()
    for rule in rules:
        for expr in rule_expressions(rule):
            if expr is not None:
                timed |= time_dependent_parts(expr)
        if isinstance(rule, FilterRule) and rule.template is not None:
            for part in rule.template.parts:
                if isinstance(part, str):
                    continue
                message_stages |= stage_of(part)
                counts += [
                    compile_scalar(node, machine.program)
                    for node in walk(part)
                    if isinstance(node, e.PodTotal) and node.topology_key is None
                ]
        yield
    comparisons = [
        (
            machine.add(comparison.left),
            machine.add(comparison.right),
            slope_difference(comparison.left, comparison.right),
        )
        for comparison in timed.comparisons
    ]
    return ClockReads(
        tuple(comparisons),
        timed.totals,
        timed.has_others,
        e.Stage.TIME in message_stages,
        e.Stage.NAMESPACE_SHARES in message_stages,
        tuple(counts),
    )


def fold_rule(rule: AnyRule, lowering: LoweringOptions) -> AnyRule:
    if not lowering.fold_constants:
        return rule
    when = None if rule.when is None else fold_constants(rule.when)
    match rule:
        case FilterRule():
            return replace(rule, when=when, condition=fold_constants(rule.condition))
        case ScoreRule():
            return replace(rule, when=when, value=fold_constants(rule.value))
        case BuiltinFilter() | BuiltinScore():
            return replace(rule, when=when)


def _lower_filter(written: AnyRule, rule: AnyRule, machine: VectorMachine) -> LoweredFilter:
    """Reads are taken from the rule as written, also where folding removes them."""
    assert isinstance(rule, FilterRule | BuiltinFilter), f"{rule.name} does not filter"
    pod_when, node_when = _lower_when(rule.when, machine)
    metrics = metrics_read(rule_expressions(written))
    requeue_events = rule_reads(written, machine.program.inputs).requeue_events | {ClusterEvent.NODE_ADD}
    if isinstance(rule, BuiltinFilter):
        return LoweredFilter(
            rule,
            pod_when,
            node_when,
            None,
            None,
            metrics,
            (),
            resolvable=True,
            template=(),
            varies_by_node=False,
            requeue_events=requeue_events,
            reads_claims=CLAIMS_FIELD in BUILTINS[rule.builtin].pod_reads,
            fingerprint=fingerprint_of_other_rows(machine, rule.when),
        )
    assert isinstance(written, FilterRule)
    recovery = split_recovery_condition(written.condition)
    parts = () if rule.template is None else rule.template.parts
    condition = machine.add(rule.condition)
    return LoweredFilter(
        rule,
        pod_when,
        node_when,
        condition,
        None if recovery is None else machine.add(recovery[0]),
        metrics,
        metrics_read([written.condition]),
        resolvable=evicting_could_help(written.condition),
        template=tuple(_lower_message_part(part, machine.program) for part in parts),
        varies_by_node=any(not isinstance(part, str) and not machine.is_leaf(part) for part in parts),
        requeue_events=requeue_events,
        reads_claims=False,
        fingerprint=fingerprint_of_other_rows(machine, rule.when, rule.condition),
        gap_at=gap_function(rule, machine.program),
    )


def _lower_score(written: AnyRule, rule: AnyRule, machine: VectorMachine) -> LoweredScore:
    assert isinstance(rule, ScoreRule | BuiltinScore), f"{rule.name} does not score"
    pod_when, node_when = _lower_when(rule.when, machine)
    metrics = metrics_read(rule_expressions(written))
    value = None if isinstance(rule, BuiltinScore) else machine.add(rule.value)
    reads_claims = isinstance(rule, BuiltinScore) and CLAIMS_FIELD in BUILTINS[rule.builtin].pod_reads
    fingerprint = fingerprint_of_other_rows(
        machine, rule.when, None if isinstance(rule, BuiltinScore) else rule.value
    )
    over_candidates = isinstance(rule, ScoreRule) and e.Stage.CANDIDATES in stage_of(rule.value)
    return LoweredScore(rule, pod_when, node_when, value, metrics, reads_claims, fingerprint, over_candidates)


def _lower_when(when: e.Expr | None, machine: VectorMachine) -> tuple[ScalarFunction | None, int | None]:
    """As a function for the pod, or as a step for the nodes."""
    if when is None:
        return None, None
    if machine.is_leaf(when):
        number = machine.leaf_index(
            when
        )  # as a leaf, so that a condition on the clock is part of the cache key
        return machine.leaves[number].function, None
    return None, machine.add(when)


def _lower_message_part(part: str | e.Expr, program: Program) -> ScalarFunction:
    return (lambda context: part) if isinstance(part, str) else compile_scalar(part, program)


def evicting_could_help(condition: e.Expr) -> bool:
    """Only where the condition reads what placed pods use."""
    return any(
        isinstance(node, e.CountPodsOnNode | e.SumPodsOnNode)
        or (isinstance(node, e.PodTotal) and node.topology_key is not None)
        or (
            isinstance(node, e.Attr)
            and node.owner == "node"
            and node.path[0] in ("free", "requested", "pods")
        )
        for node in walk(condition)
    )


def rule_expressions(rule: AnyRule) -> tuple[e.Expr | None, ...]:
    """The expressions that decide a rule, without its message."""
    match rule:
        case FilterRule():
            return (rule.when, rule.condition)
        case ScoreRule():
            return (rule.when, rule.value)
        case BuiltinFilter() | BuiltinScore():
            return (rule.when,)


def metrics_read(exprs: Iterable[e.Expr | None]) -> tuple[str, ...]:
    """Each metric once, in the order of the text."""
    names = (
        node.name
        for expr in exprs
        if expr is not None
        for node in walk(expr)
        if isinstance(node, e.MetricRef | e.GangTraffic)
    )
    return tuple(dict.fromkeys(names))
