"""Which rules refuse a node, and in which words."""

from collections.abc import Sequence

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir import expr as e
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import BuiltinFilter, FilterRule, RuleSet
from policysched.lang.ir.verdict import NodeRefusal
from policysched.model.messages import no_sample_reason, not_recovered_reason, unsatisfied_reason
from tests.reference.builtin_interface import NodeInfo
from tests.reference.builtins import FILTERS, PREFILTERS
from tests.reference.context import ExpressionContext
from tests.reference.expressions import holds, value
from tests.reference.inputs import InputRefusal, read_input
from tests.reference.metrics import metric_is_missing, metrics_read
from tests.reference.templates import render, render_group
from tests.reference.values import MISSING

Filters = Sequence[FilterRule | BuiltinFilter]


def refusals(filters: Filters, context: ExpressionContext) -> tuple[NodeRefusal, ...]:
    """Every refusal of the context's node, the deciding one first: inputs of the node in the order in which they are
    declared, then the filters in the order of the file.

    One exception, kube-scheduler's: the nodes that a pod does not name, where it names some by `metadata.name`, are
    not looked at by any other rule before, so that refusal of node_affinity goes ahead of the others.
    """
    found = [*_input_refusals(context)]
    ruled = [refusal for rule in filters if (refusal := _refusal(rule, context)) is not None]
    return tuple(found + sorted(ruled, key=lambda refusal: refusal.reasons != NOT_NAMED))


NOT_NAMED = ("node(s) didn't satisfy plugin(s) [NodeAffinity]",)


def prefilter_refusal(rules: RuleSet, context: ExpressionContext) -> tuple[str, str] | None:
    """The first filter that refuses the pod whatever the node, and why. One whose `when` depends on the node says so of
    each node instead."""
    assert context.cluster_facts is not None, "claims and volumes are looked up"
    for rule in rules.filters:
        if isinstance(rule, BuiltinFilter) and rule.builtin in PREFILTERS:
            of_the_node = rule.when is not None and e.Stage.NODE in e.stage_of(rule.when)
            if not of_the_node and holds(rule.when, context):
                words = PREFILTERS[rule.builtin](context.pod, context.cluster_facts)
                if words is not None:
                    return rule.name, words
    return None


def _input_refusals(context: ExpressionContext) -> list[NodeRefusal]:
    found = []
    for declared in context.program.inputs.values():
        if declared.owner == "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, InputRefusal):
                words = (outcome.text,)
                found.append(NodeRefusal(declared.name, words, words, resolvable=False, scaleup=True))
    return found


def _refusal(rule: FilterRule | BuiltinFilter, context: ExpressionContext) -> NodeRefusal | None:
    if not holds(rule.when, context):
        return None
    return (
        _builtin_refusal(rule, context)
        if isinstance(rule, BuiltinFilter)
        else _expression_refusal(rule, context)
    )


def _builtin_refusal(rule: BuiltinFilter, context: ExpressionContext) -> NodeRefusal | None:
    assert context.node is not None and context.usage is not None, "filters look at a node"
    assert context.cluster_facts is not None, "and at the cluster around it"
    seen = NodeInfo(context.node, context.usage)
    reasons = FILTERS[rule.builtin](context.pod, seen, dict(rule.params), context.cluster_facts)
    if reasons is None:
        return None
    scaleup = BUILTINS[rule.builtin].scaleup
    return NodeRefusal(rule.name, reasons.texts, reasons.texts, reasons.resolvable, scaleup)


def _expression_refusal(rule: FilterRule, context: ExpressionContext) -> NodeRefusal | None:
    answer = value(rule.condition, context)
    if answer is MISSING:
        # Without a `missing` clause only a `reject` meets this (an absent label does not reject), or a node that an
        # input has refused already.
        passes = rule.missing == "pass" or (rule.missing is None and rule.rejects)
    else:
        passes = answer is not rule.rejects
    if passes:
        return None
    reason, group = _reason_and_group(rule, context, missing=answer is MISSING)
    return NodeRefusal(rule.name, (reason,), (group,), is_resolvable_by_eviction(rule), rule.scaleup)


def _reason_and_group(rule: FilterRule, context: ExpressionContext, *, missing: bool) -> tuple[str, str]:
    if missing:
        for name in metrics_read([rule.condition]):
            if metric_is_missing(name, context):
                return no_sample_reason(name), no_sample_reason(name)
    recovers = split_recovery_condition(rule.condition)
    if recovers is not None and value(recovers[0], context) is not rule.rejects:
        words = not_recovered_reason(recovers[1].condition.metric)
        return words, words
    if rule.template is None:
        return unsatisfied_reason(rule.name), unsatisfied_reason(rule.name)
    return render(rule.template, context), render_group(rule.template, context)


def is_resolvable_by_eviction(rule: FilterRule) -> bool:
    """Only where the condition reads what placed pods take up."""
    return any(
        isinstance(one, e.CountPodsOnNode | e.SumPodsOnNode)
        or (isinstance(one, e.Attr) and one.owner == "node" and one.path[0] in ("free", "requested", "pods"))
        for one in e.walk(rule.condition)
    )
