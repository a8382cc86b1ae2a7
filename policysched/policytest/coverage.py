"""Coverage of a policy by its tests: which outcomes of its rules were reached.

The outcomes are what the policy's own text decides: a filter passes and rejects a node, a score scores, each `when` holds
and does not hold, a layer applies and does not. Of kube-scheduler's built-ins only the `when` counts. The evaluator
determines the outcomes: a `when` is evaluated as a filter of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_plan
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.layers import apply_layer
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, Rule, RuleSet, ScoreRule
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import QueuedPodInfo
from policysched.policytest.scenario_runner import DecisionRound
from policysched.text import Span

PODS_PER_ROUND_MAX = 200
"""More pending pods than this in one round add no new outcomes."""


@dataclass(frozen=True, slots=True)
class CoverageOutcome:
    """An outcome that a test can reach. `rule` is such as `filter link_cool`, followed by the layer if that changes the
    rule; `kind` is `passes`, `refuses`, `scores`, `when holds`, `when does not hold`, `applies` or `does not apply`.
    """

    rule: str
    kind: str


@dataclass(slots=True)
class Coverage:
    """The coverage of one policy over all of its tests. `outcomes` has every outcome with the span of its rule, in the
    order of the text."""

    outcomes: dict[CoverageOutcome, Span]
    reached: set[CoverageOutcome] = field(default_factory=set)

    @property
    def percent(self) -> int:
        """Rounded down, so that 100 means all outcomes. A policy without outcomes has 100."""
        return 100 if not self.outcomes else 100 * len(self.reached) // len(self.outcomes)

    def not_reached(self) -> list[tuple[CoverageOutcome, Span]]:
        return [(outcome, span) for outcome, span in self.outcomes.items() if outcome not in self.reached]


def new_coverage(program: Program) -> Coverage:
    """The coverage before any test."""
    outcomes: dict[CoverageOutcome, Span] = {}
    for rule in _all(program.rules):
        outcomes |= dict.fromkeys(_outcomes(rule, ""), rule.span)
    for index, layer in enumerate(program.layers):
        outcomes |= {CoverageOutcome(f"layer {layer.name}", outcome): layer.span for outcome in _OF_LAYERS}
        for rule, changed_by in _rules_in(program, (index,)):
            if changed_by == layer.name:
                outcomes |= dict.fromkeys(_outcomes(rule, layer.name), rule.span)
    return Coverage(outcomes)


_OF_LAYERS = ("applies", "does not apply")


def record_round(coverage: Coverage, program: Program, moment: DecisionRound) -> None:
    """Records the outcomes for the pending pods. `program` is the policy with the parameters of a test."""
    for observed in moment.pending[:PODS_PER_ROUND_MAX]:
        explanation = moment.scheduler.explain(observed.pod.uid, moment.now_ns)
        if explanation is None or explanation.pod_rejection is not None:
            continue
        coverage.reached |= coverage.outcomes.keys() & set(
            _outcomes_reached(program, moment, observed, explanation)
        )


def _outcomes_reached(
    program: Program, moment: DecisionRound, observed: ObservedPod, explanation: PlacementExplanation
) -> Iterator[CoverageOutcome]:
    cache, pod = moment.scheduler.cache, observed.pod
    status = moment.scheduler.pending_status(pod.uid)
    assert status is not None, f"{pod.full_name} is explained but not pending"
    facts = QueuedPodInfo(status.queued_ns, status.attempts)
    plan = compile_plan(program)
    active = Evaluator(cache).active_layers(plan, pod, now_ns=moment.now_ns, facts=facts)
    for index, layer in enumerate(program.layers):
        yield CoverageOutcome(f"layer {layer.name}", _OF_LAYERS[0] if index in active else _OF_LAYERS[1])
    rules = list(_rules_in(program, active))
    whens = _nodes_where_when_holds(program, [rule for rule, _ in rules], moment, observed, facts)
    for number, (rule, layer_name) in enumerate(rules):
        name = _name(rule, layer_name)
        applies: set[str] = set(cache.nodes)
        if number in whens:
            nodes_with_when = whens[number]
            if nodes_with_when:
                yield CoverageOutcome(name, "when holds")
            if applies - nodes_with_when:
                yield CoverageOutcome(name, "when does not hold")
            applies = nodes_with_when
        else:  # also where a parameter makes the `when` constant
            yield CoverageOutcome(name, "when holds")
        if isinstance(rule, FilterRule):
            rejected = {
                node
                for node, rejections in explanation.rejections.items()
                if any(rejection.rule == rule.name for rejection in rejections)
            }
            if rejected:
                yield CoverageOutcome(name, "refuses")
            if applies - rejected:
                yield CoverageOutcome(name, "passes")
        elif isinstance(rule, ScoreRule) and applies & set(explanation.scores.get(rule.name, {})):
            yield CoverageOutcome(name, "scores")


def _nodes_where_when_holds(
    program: Program, rules: list[Rule], moment: DecisionRound, observed: ObservedPod, facts: QueuedPodInfo
) -> dict[int, set[str]]:
    """The nodes for which each rule's `when` holds, by the rule's number."""
    probes = {
        f"when_{number}": (number, rule.when) for number, rule in enumerate(rules) if rule.when is not None
    }
    if not probes:
        return {}
    filters = tuple(_when_probe(name, when, rules[number].span) for name, (number, when) in probes.items())
    probe_program = replace(program, rules=RuleSet(filters, ()), layers=(), outage=None)
    scheduler = moment.scheduler
    explanation = Evaluator(scheduler.cache).explain(
        compile_plan(probe_program),
        observed.pod,
        now_ns=moment.now_ns,
        facts=facts,
        samples=scheduler.samples(program.name),
    )
    if explanation.pod_rejection is not None:
        return {}
    nodes = set(scheduler.cache.nodes)
    return {
        number: {
            node
            for node in nodes
            if not any(rejection.rule == name for rejection in explanation.rejections.get(node, ()))
        }
        for name, (number, _) in probes.items()
    }


def _when_probe(name: str, when: Expr, span: Span) -> FilterRule:
    return FilterRule(
        name=name,
        when=None,
        rejects=False,
        condition=when,
        missing="reject",
        scaleup=True,
        template=None,
        locked=False,
        span=span,
    )


def _rules_in(program: Program, active: tuple[int, ...]) -> Iterator[tuple[Rule, str]]:
    """The rules with these layers active, each with the last layer that changed it, or an empty string."""
    changed: dict[tuple[str, str], str] = {}
    rules = program.rules
    for index in active:
        before = {(_kind(rule), rule.name): rule for rule in _all(rules)}
        rules = apply_layer(rules, program.layers[index])
        for rule in _all(rules):
            key = _kind(rule), rule.name
            if not _is_same_rule(before.get(key), rule):
                changed[key] = program.layers[index].name
    for rule in _all(rules_for(program, active)):
        yield rule, changed.get((_kind(rule), rule.name), "")


def _is_same_rule(before: Rule | None, after: Rule) -> bool:
    """Whether the rules differ at most in their weight."""
    if isinstance(before, ScoreRule | BuiltinScore) and isinstance(after, ScoreRule | BuiltinScore):
        after = replace(after, weight=before.weight)
    return before == after


def _outcomes(rule: Rule, layer: str) -> Iterable[CoverageOutcome]:
    name = _name(rule, layer)
    match rule:
        case FilterRule():
            kinds = ["passes", "refuses"]
        case ScoreRule():
            kinds = ["scores"]
        case BuiltinFilter() | BuiltinScore():
            kinds = []
    if rule.when is not None:
        kinds += ["when holds", "when does not hold"]
    return [CoverageOutcome(name, kind) for kind in kinds]


def _all(rules: RuleSet) -> tuple[Rule, ...]:
    return (*rules.filters, *rules.scores)


def _kind(rule: Rule) -> str:
    return "filter" if isinstance(rule, FilterRule | BuiltinFilter) else "score"


def _name(rule: Rule, layer: str) -> str:
    return f"{_kind(rule)} {rule.name}" + (f" (layer {layer})" if layer else "")
