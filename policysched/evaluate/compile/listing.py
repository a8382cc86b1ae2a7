"""What a plan consists of, as rows that a command can print: `policysched show` and nothing decides by it."""

from dataclasses import dataclass

from policysched.evaluate.compile.lower import AnyRule, Variant, rule_expressions
from policysched.evaluate.compile.plan import Plan
from policysched.lang.format.clauses import RenderedClause, describe_outage, render_clauses
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Parameter
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.reads import Reads, RuleCost, program_reads, rule_cost, rule_reads, stage_text
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, RuleSet, ScoreRule
from policysched.lang.types.kinds import DURATION
from policysched.lang.types.units import format_value
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule in the order of the file. `builtin` is empty for a rule written in the policy. `stage` says what it depends on;
    `pod_reads` and `node_reads` name attributes as a policy writes them, and fields that built-ins read. `missing` is what becomes of a
    node for which the value is missing, None where it cannot be; `recover` what keeps a node refused that had crossed the limit."""

    kind: str
    name: str
    builtin: str
    weight: int | None
    stage: str
    cost: RuleCost
    pod_reads: tuple[str, ...]
    node_reads: tuple[str, ...]
    metrics: tuple[str, ...]
    wakes: tuple[ClusterEvent, ...]
    missing: str | None
    recover: str | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One vector operation of the machine. `text` is where it stands in the policy for the first time; `rules` use it: more than
    one where equal expressions are shared."""

    number: int
    operation: str
    text: str
    stage: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter with the value that the plan was made with. `limits` as a policy writes them, `given_in` empty where
    nobody set it."""

    name: str
    type: str
    value: str
    default: str
    limits: str
    given_in: str


@dataclass(frozen=True, slots=True)
class ExtenderRow:
    """Somebody who is asked over HTTP after the rules. `missing` as a policy writes it, a number for `worst` and `best`."""

    name: str
    weight: int | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The evaluation plan for the pods to which these layers apply. `read_set` is what pods must agree on to share an evaluation;
    `clauses` decide beside the rules, and `outage` says what happens while samples are lacking."""

    policy: str
    sha256: str
    parameters: tuple[ParameterRow, ...]
    layers: tuple[str, ...]
    rules: tuple[RuleRow, ...]
    steps: tuple[StepRow, ...]
    cost: RuleCost
    read_set: tuple[str, ...]
    wakes: tuple[ClusterEvent, ...]
    extenders: tuple[ExtenderRow, ...]
    clauses: tuple[RenderedClause, ...]
    outage: str | None


def listing(plan: Plan, active: tuple[int, ...] = ()) -> Listing:
    """`active`: indexes of the layers that apply, none by default."""
    program, variant = plan.program, plan.variant(active)
    rules = rules_for(program, active)
    rows = tuple(_row(rule, program) for rule in _all_rules(rules))
    return Listing(
        policy=program.name,
        sha256=program.sha256,
        parameters=tuple(map(_parameter, program.parameters.values())),
        layers=tuple(program.layers[index].name for index in active),
        rules=rows,
        steps=_steps(variant),
        cost=sum((row.cost for row in rows), RuleCost()),
        read_set=plan.read_set(active).names,
        wakes=_sorted(program_reads(program).requeue_events),
        extenders=tuple(
            ExtenderRow(one.name, one.weight, None if one.missing is None else str(one.missing))
            for one in program.extenders
        ),
        clauses=render_clauses(program),
        outage=describe_outage(program),
    )


def _parameter(one: Parameter) -> ParameterRow:
    def shown(const: e.Const | None) -> str:
        return "" if const is None else format_value(const.value, one.type)

    limits = f"range {shown(one.low)}..{shown(one.high)}" if one.low is not None else ""
    if one.choices:
        limits = f"in [{', '.join(map(shown, one.choices))}]"
    return ParameterRow(one.name, str(one.type), shown(one.value), shown(one.default), limits, one.set_in)


def _all_rules(rules: RuleSet) -> list[AnyRule]:
    found: list[AnyRule] = [*rules.filters]
    found += rules.scores
    return found


def _row(rule: AnyRule, program: Program) -> RuleRow:
    reads = rule_reads(rule, program.inputs)
    stage = e.Stage.CONSTANT
    for expr in rule_expressions(rule):
        if expr is not None:
            stage |= e.stage_of(expr)
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
        wakes=_sorted(reads.requeue_events),
        missing=_missing(rule),
        recover=_recover(rule, program),
    )


def _missing(rule: AnyRule) -> str | None:
    given = rule.missing if isinstance(rule, FilterRule | ScoreRule) else None
    return None if given is None else str(given)


def _recover(rule: AnyRule, program: Program) -> str | None:
    """As it stands behind the limit: `600Mbps for 2m`."""
    found = split_recovery_condition(rule.condition) if isinstance(rule, FilterRule) else None
    if found is None:
        return None
    watch = found[1].condition
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
    """As a policy writes it: keys of labels and annotations are quoted."""
    match path:
        case ("labels" | "annotations" | "conditions" | "objects" as entries, key):
            return f'{owner}.{entries}["{key}"]'
        case _:
            return ".".join((owner, *path))


def _steps(variant: Variant) -> tuple[StepRow, ...]:
    users: dict[e.Expr, list[str]] = {}
    for rule in [*(step.rule for step in variant.filters), *(step.rule for step in variant.scores)]:
        parts = {one for expr in rule_expressions(rule) if expr is not None for one in e.walk(expr)}
        for part in parts:
            users.setdefault(part, []).append(rule.name)
    return tuple(
        StepRow(
            number,
            type(expr).__name__,
            expr.span.text,
            stage_text(e.stage_of(expr)),
            tuple(users.get(expr, ())),
        )
        for number, expr in enumerate(variant.machine.exprs)
    )


def _sorted(events: frozenset[ClusterEvent]) -> tuple[ClusterEvent, ...]:
    return tuple(sorted(events, key=lambda event: event.value))
