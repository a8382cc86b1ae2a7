"""From a Program to steps: what a plan is made of.

For each set of layers that can apply there is one `Variant`, lowered when a pod first needs it. Constants are folded,
equal expressions become one step, and each rule knows what it depends on: a `when` of the pod alone is a plain function, the
rest are steps of the variant's machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from policysched.builtins.registry import BUILTINS
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Function
from policysched.evaluate.scalar.times import steepness, timed_parts
from policysched.evaluate.vector.expressions import machine as machine_of
from policysched.evaluate.vector.machine import Machine, is_leaf
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold
from policysched.lang.ir.program import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    Input,
    Program,
    ScoreRule,
    rules_for,
)
from policysched.lang.ir.reads import CLAIMS, rule_reads
from policysched.lang.ir.recovery import recovery
from policysched.model.cluster_events import ClusterEvent

AnyRule = FilterRule | BuiltinFilter | ScoreRule | BuiltinScore


@dataclass(frozen=True, slots=True)
class Lowering:
    """Which optimisations are carried out. Verdicts are the same with and without; tests say so."""

    fold: bool = True
    share: bool = True


@dataclass(frozen=True, slots=True)
class FilterStep:
    """`pod_when` is settled once a pod, `node_when` and `answer` are steps of the machine, and so is `within`,
    the comparison alone where the condition holds nodes back. `metrics` decide about the rule,
    `answer_metrics` are those of its condition. `template` has a function (or a text) for each part of its words."""

    rule: FilterRule | BuiltinFilter
    pod_when: Function | None
    node_when: int | None
    answer: int | None
    within: int | None
    metrics: tuple[str, ...]
    answer_metrics: tuple[str, ...]
    resolvable: bool
    template: tuple[Function, ...]
    varies: bool
    wakes: frozenset[ClusterEvent]
    reads_claims: bool  # of the pod


@dataclass(frozen=True, slots=True)
class ScoreStep:
    rule: ScoreRule | BuiltinScore
    pod_when: Function | None
    node_when: int | None
    value: int | None
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """How the rules read the clock. `compares`: two steps and how steeply their difference grows, each flips at a moment that can
    be computed. `vague`: something else runs with the clock. `in_words`: a text shows it; `shares_in_words`: a text shows what
    the namespace holds. `counts_in_words`: what of a text rests on which pods there are."""

    compares: tuple[tuple[int, int, int], ...]
    vague: bool
    in_words: bool
    shares_in_words: bool
    counts_in_words: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """The rules for the pods to which the layers `active` apply. `metrics`: every one that a rule reads."""

    active: tuple[int, ...]
    machine: Machine
    node_inputs: tuple[Input, ...]
    filters: tuple[FilterStep, ...]
    scores: tuple[ScoreStep, ...]
    clock: Clock
    metrics: tuple[str, ...]


def lower(program: Program, active: tuple[int, ...], lowering: Lowering) -> Variant:
    machine = machine_of(program, share=lowering.share)
    rules = rules_for(program, active)
    everything = [folded(rule, lowering) for rule in (*rules.filters, *rules.scores)]
    return Variant(
        active=active,
        machine=machine,
        node_inputs=tuple(
            declared
            for declared in program.inputs.values()
            if declared.owner == "node"
            and (declared.required_text is not None or declared.invalid_text is not None)
        ),
        filters=tuple(_filter_step(rule, folded(rule, lowering), machine) for rule in rules.filters),
        scores=tuple(_score_step(rule, folded(rule, lowering), machine) for rule in rules.scores),
        clock=_clock(everything, machine),
        metrics=metrics_read(expr for rule in (*rules.filters, *rules.scores) for expr in deciding(rule)),
    )


def _clock(rules: Iterable[AnyRule], machine: Machine) -> Clock:
    compares, vague, shown, counts = [], False, e.Stage.CONSTANT, list[Function]()
    for rule in rules:
        for expr in deciding(rule):
            if expr is not None:
                found, other = timed_parts(expr)
                compares += [
                    (machine.add(one.left), machine.add(one.right), steepness(one.left, one.right))
                    for one in found
                ]
                vague |= other
        if isinstance(rule, FilterRule) and rule.template is not None:
            for part in rule.template.parts:
                if isinstance(part, str):
                    continue
                shown |= e.stage_of(part)
                counts += [
                    compiled(one, machine.program) for one in e.walk(part) if isinstance(one, e.CountAnywhere)
                ]
    return Clock(tuple(compares), vague, e.Stage.TIME in shown, e.Stage.SHARES in shown, tuple(counts))


def folded(rule: AnyRule, lowering: Lowering) -> AnyRule:
    if not lowering.fold:
        return rule
    when = None if rule.when is None else fold(rule.when)
    match rule:
        case FilterRule():
            return replace(rule, when=when, condition=fold(rule.condition))
        case ScoreRule():
            return replace(rule, when=when, value=fold(rule.value))
        case BuiltinFilter() | BuiltinScore():
            return replace(rule, when=when)


def _filter_step(written: AnyRule, rule: AnyRule, machine: Machine) -> FilterStep:
    """What a rule reads is what is written, also where folding found that it does not matter."""
    assert isinstance(rule, FilterRule | BuiltinFilter), f"{rule.name} does not filter"
    pod_when, node_when = _when(rule.when, machine)
    metrics = metrics_read(deciding(written))
    wakes = rule_reads(written, machine.program.inputs).wakes | {ClusterEvent.NODE_ADD}
    if isinstance(rule, BuiltinFilter):
        return FilterStep(
            rule,
            pod_when,
            node_when,
            None,
            None,
            metrics,
            (),
            resolvable=True,
            template=(),
            varies=False,
            wakes=wakes,
            reads_claims=CLAIMS in BUILTINS[rule.builtin].pod_reads,
        )
    assert isinstance(written, FilterRule)
    recovers = recovery(written.condition)
    parts = () if rule.template is None else rule.template.parts
    return FilterStep(
        rule,
        pod_when,
        node_when,
        machine.add(rule.condition),
        None if recovers is None else machine.add(recovers[0]),
        metrics,
        metrics_read([written.condition]),
        resolvable=evicting_could_help(written.condition),
        template=tuple(_part(part, machine.program) for part in parts),
        varies=any(not isinstance(part, str) and not is_leaf(part) for part in parts),
        wakes=wakes,
        reads_claims=False,
    )


def _score_step(written: AnyRule, rule: AnyRule, machine: Machine) -> ScoreStep:
    assert isinstance(rule, ScoreRule | BuiltinScore), f"{rule.name} does not score"
    pod_when, node_when = _when(rule.when, machine)
    metrics = metrics_read(deciding(written))
    value = None if isinstance(rule, BuiltinScore) else machine.add(rule.value)
    return ScoreStep(rule, pod_when, node_when, value, metrics)


def _when(when: e.Expr | None, machine: Machine) -> tuple[Function | None, int | None]:
    """For the pod as a function, for the nodes as a step."""
    if when is None:
        return None, None
    if is_leaf(when):
        number = machine.leaf_number(when)  # so that a condition on the clock is part of the key
        return machine.leaves[number].function, None
    return None, machine.add(when)


def _part(part: str | e.Expr, program: Program) -> Function:
    return (lambda seen: part) if isinstance(part, str) else compiled(part, program)


def evicting_could_help(condition: e.Expr) -> bool:
    """Only where the condition reads what placed pods take up."""
    return any(
        isinstance(one, e.CountPods | e.SumPods)
        or (isinstance(one, e.Attr) and one.owner == "node" and one.path[0] in ("free", "requested", "pods"))
        for one in e.walk(condition)
    )


def deciding(rule: AnyRule) -> tuple[e.Expr | None, ...]:
    """The expressions that decide about a rule, its words aside."""
    match rule:
        case FilterRule():
            return (rule.when, rule.condition)
        case ScoreRule():
            return (rule.when, rule.value)
        case BuiltinFilter() | BuiltinScore():
            return (rule.when,)


def metrics_read(exprs: Iterable[e.Expr | None]) -> tuple[str, ...]:
    """Each once, in the order of the text."""
    names = (
        one.name
        for expr in exprs
        if expr is not None
        for one in e.walk(expr)
        if isinstance(one, e.MetricRef | e.TrafficTo)
    )
    return tuple(dict.fromkeys(names))
