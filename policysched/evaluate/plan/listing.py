"""The listing of a plan, printed by `policysched show`. No decision depends on it."""

from dataclasses import dataclass, replace

from policysched.evaluate.plan.lowering import AnyRule, Variant, rule_expressions
from policysched.evaluate.plan.plan import Plan
from policysched.lang.format.clauses import RenderedClause, describe_outage, render_clauses
from policysched.lang.ir import expr as e
from policysched.lang.ir.cost import RuleCost, rule_cost
from policysched.lang.ir.declarations import Parameter
from policysched.lang.ir.expr_analysis import stage_of, walk
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.reads import Reads, program_reads, rule_reads, stage_text
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    RuleSet,
    ScoreRule,
    included_by,
    location_of,
)
from policysched.lang.types.kinds import DURATION
from policysched.lang.types.units import format_value
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule in the order of the file. `builtin` is empty for a rule written in the policy.
    `pod_reads` and `node_reads` name attributes as a policy writes them, and fields that
    built-ins read. `missing`: the verdict on a node whose value is missing, None where it cannot
    be. `recover`: the recovery condition. `location` is the file and line, `included_by` the include that brings the
    rule in, empty for a rule of the policy's own text.
    """

    kind: str
    name: str
    builtin: str
    weight: int | None
    stage: str
    cost: RuleCost
    pod_reads: tuple[str, ...]
    node_reads: tuple[str, ...]
    metrics: tuple[str, ...]
    requeue_events: tuple[ClusterEvent, ...]
    missing: str | None
    recover: str | None
    location: str
    included_by: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """One vector operation of the machine. `text` is its first occurrence in the policy; `rules`
    share it.
    """

    number: int
    operation: str
    text: str
    stage: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter with the value of this plan. `limits` as a policy writes them; `given_in` is
    empty where the default applies.
    """

    name: str
    type: str
    value: str
    default: str
    limits: str
    given_in: str


@dataclass(frozen=True, slots=True)
class ExtenderRow:
    """A scheduler extender that is called after the rules. `missing` as a policy writes it, a
    number for `worst` and `best`.
    """

    name: str
    weight: int | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The plan for pods to which these layers apply. `read_set`: what pods must agree on to share
    an evaluation. `clauses`: the clauses besides rules. `outage`: the behaviour in a metric
    outage.
    """

    policy: str
    sha256: str
    parameters: tuple[ParameterRow, ...]
    layers: tuple[str, ...]
    rules: tuple[RuleRow, ...]
    steps: tuple[StepRow, ...]
    cost: RuleCost
    read_set: tuple[str, ...]
    requeue_events: tuple[ClusterEvent, ...]
    extenders: tuple[ExtenderRow, ...]
    clauses: tuple[RenderedClause, ...]
    outage: str | None


def listing(plan: Plan, active: tuple[int, ...] = ()) -> Listing:
    """`active`: indexes of the layers that apply, none by default."""
    program, variant = plan.program, plan.variant(active)
    rules = rules_for(program, active)
    rows = tuple(_row(rule, program) for rule in _all_rules(rules))
    shadows = tuple(
        replace(row, kind=f"shadow {row.kind}", requeue_events=())
        for row in (_row(rule, program) for rule in _all_rules(program.shadows))
    )
    return Listing(
        policy=program.name,
        sha256=program.sha256,
        parameters=tuple(map(_parameter, program.parameters.values())),
        layers=tuple(program.layers[index].name for index in active),
        rules=(*rows, *shadows),
        steps=_steps(variant),
        cost=sum((row.cost for row in (*rows, *shadows)), RuleCost()),
        read_set=plan.read_set(active).names,
        requeue_events=_sorted(program_reads(program).requeue_events),
        extenders=tuple(
            ExtenderRow(
                extender.name, extender.weight, None if extender.missing is None else str(extender.missing)
            )
            for extender in program.extenders
        ),
        clauses=render_clauses(program),
        outage=describe_outage(program),
    )


def _parameter(parameter: Parameter) -> ParameterRow:
    def shown(const: e.Const | None) -> str:
        return "" if const is None else format_value(const.value, parameter.type)

    limits = f"range {shown(parameter.low)}..{shown(parameter.high)}" if parameter.low is not None else ""
    if parameter.choices:
        limits = f"in [{', '.join(map(shown, parameter.choices))}]"
    return ParameterRow(
        parameter.name,
        str(parameter.type),
        shown(parameter.value),
        shown(parameter.default),
        limits,
        parameter.set_in,
    )


def _all_rules(rules: RuleSet) -> list[AnyRule]:
    all_rules: list[AnyRule] = [*rules.filters]
    all_rules += rules.scores
    return all_rules


def _row(rule: AnyRule, program: Program) -> RuleRow:
    reads = rule_reads(rule, program.inputs)
    stage = e.Stage.CONSTANT
    for expr in rule_expressions(rule):
        if expr is not None:
            stage |= stage_of(expr)
    built_in = isinstance(rule, BuiltinFilter | BuiltinScore)
    if built_in:
        stage |= e.Stage.POD | e.Stage.NODE
    return RuleRow(
        kind="filter" if isinstance(rule, FilterRule | BuiltinFilter) else "score",
        name=rule.name,
        builtin=rule.builtin if isinstance(rule, BuiltinFilter | BuiltinScore) else "",
        weight=rule.weight if isinstance(rule, ScoreRule | BuiltinScore) else None,
        stage=stage_text(stage),
        cost=rule_cost(rule),
        pod_reads=_pod_reads(reads),
        node_reads=_node_reads(reads),
        metrics=tuple(sorted(reads.metrics)),
        requeue_events=_sorted(reads.requeue_events),
        missing=_missing(rule),
        recover=_recover(rule, program),
        location=location_of(rule.span),
        included_by=included_by(rule.span, program.name_span),
    )


def _missing(rule: AnyRule) -> str | None:
    missing = rule.missing if isinstance(rule, FilterRule | ScoreRule) else None
    return None if missing is None else str(missing)


def _recover(rule: AnyRule, program: Program) -> str | None:
    """As written after the limit: `600Mbps for 2m`."""
    recovery = split_recovery_condition(rule.condition) if isinstance(rule, FilterRule) else None
    if recovery is None:
        return None
    watch = recovery[1].condition
    mark = format_value(watch.recover_at, program.metrics[watch.metric].type)
    return f"{mark} for {format_value(watch.recover_for_ns, DURATION)}"


def _pod_reads(reads: Reads) -> tuple[str, ...]:
    paths = {_source_path("pod", path) for path in reads.pod} | {
        _source_path("namespace", path) for path in reads.namespace
    }
    return tuple(sorted(paths | {f"pod.{field}" for field in reads.pod_fields}))


def _node_reads(reads: Reads) -> tuple[str, ...]:
    paths = {_source_path("node", path) for path in reads.node} | {
        _source_path("other", path) for path in reads.counted_pods
    }
    return tuple(sorted(paths | {f"node.{field}" for field in reads.node_fields}))


def _source_path(owner: str, path: tuple[str, ...]) -> str:
    """As a policy writes it: keys of maps are quoted."""
    match path:
        case ("taint_values", key):
            return f'{owner}.taints["{key}"]'
        case ("labels" | "annotations" | "conditions" | "objects" as entries, key):
            return f'{owner}.{entries}["{key}"]'
        case _:
            return ".".join((owner, *path))


def _steps(variant: Variant) -> tuple[StepRow, ...]:
    users: dict[e.Expr, list[str]] = {}
    for rule in [*(step.rule for step in variant.filters), *(step.rule for step in variant.scores)]:
        parts = {part for expr in rule_expressions(rule) if expr is not None for part in walk(expr)}
        for part in parts:
            users.setdefault(part, []).append(rule.name)
    return tuple(
        StepRow(
            number,
            type(expr).__name__,
            expr.span.text,
            stage_text(stage_of(expr)),
            tuple(users.get(expr, ())),
        )
        for number, expr in enumerate(variant.machine.exprs)
    )


def _sorted(events: frozenset[ClusterEvent]) -> tuple[ClusterEvent, ...]:
    return tuple(sorted(events, key=lambda event: event.value))
