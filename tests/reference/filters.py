"""Rejections of a node by the filters of a policy, and their messages."""

from collections.abc import Sequence

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import stage_of, type_of, walk
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import BuiltinFilter, FilterRule, MessageTemplate, RuleSet
from policysched.lang.ir.verdict import NodeRejection
from policysched.lang.types.units import format_value
from policysched.model.messages import (
    MISSING_TEXT,
    NODE_VALUE_PLACEHOLDER,
    no_sample_reason,
    not_recovered_reason,
    unsatisfied_reason,
)
from tests.reference.builtin_interface import NodeInfo
from tests.reference.builtins import ATTEMPT_ERRORS, FILTERS, PREFILTERS
from tests.reference.context import ExpressionContext
from tests.reference.expressions import holds, value
from tests.reference.inputs import InputRejection, read_input
from tests.reference.metrics import metric_is_missing, metrics_read
from tests.reference.values import MISSING

Filters = Sequence[FilterRule | BuiltinFilter]


def rejections(filters: Filters, context: ExpressionContext) -> tuple[NodeRejection, ...]:
    """All rejections of the context's node, the deciding one first: node inputs in the order of
    declaration, then filters in the order of the policy.

    One exception, as in kube-scheduler: if the pod names nodes by `metadata.name`, the rejection of
    other nodes by node_affinity comes first.
    """
    assert context.node is not None and context.usage is not None, "filters need a node"
    input_rejections = [*_input_rejections(context)]
    node_info = NodeInfo(context.node, context.usage)
    ruled = [rejection for rule in filters if (rejection := _rejection(rule, context, node_info)) is not None]
    return tuple(input_rejections + sorted(ruled, key=lambda rejection: rejection.reasons != NOT_NAMED))


NOT_NAMED = ("node(s) didn't satisfy plugin(s) [NodeAffinity]",)


def prefilter_rejection(rules: RuleSet, context: ExpressionContext) -> tuple[str, str] | None:
    """The first filter that rejects the pod on all nodes, and why. A filter whose `when` depends on
    the node rejects node by node instead."""
    assert context.cluster_facts is not None, "prefilters need the facts of the cluster"
    for rule in rules.filters:
        if isinstance(rule, BuiltinFilter) and rule.builtin in PREFILTERS:
            of_the_node = rule.when is not None and e.Stage.NODE in stage_of(rule.when)
            if not of_the_node and holds(rule.when, context):
                message = PREFILTERS[rule.builtin](context.pod, context.cluster_facts)
                if message is not None:
                    return rule.name, message
    return None


def attempt_error(
    filters: Filters, context: ExpressionContext, node_rejections: Sequence[NodeRejection]
) -> tuple[str, str] | None:
    """The filter that fails on the node, if no other one rejects the node before, and its error.
    `node_rejections` are those of `rejections`."""
    assert context.node is not None and context.usage is not None, "filters need a node"
    assert context.cluster_facts is not None, "filters need the facts of the cluster"
    decisive = next(iter(node_rejections), None)
    for rule in filters:
        if isinstance(rule, BuiltinFilter) and decisive is not None and decisive.rule == rule.name:
            node_info = NodeInfo(context.node, context.usage)
            fails = ATTEMPT_ERRORS.get(rule.builtin)
            error = None if fails is None else fails(context.pod, node_info, context.cluster_facts)
            return None if error is None else (rule.name, error)
    return None


def _input_rejections(context: ExpressionContext) -> list[NodeRejection]:
    node_rejections = []
    for declared in context.program.inputs.values():
        if declared.owner == "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, InputRejection):
                message = (outcome.text,)
                node_rejections.append(
                    NodeRejection(declared.name, message, message, resolvable=False, scaleup=True)
                )
    return node_rejections


def _rejection(
    rule: FilterRule | BuiltinFilter, context: ExpressionContext, node_info: NodeInfo
) -> NodeRejection | None:
    if not holds(rule.when, context):
        return None
    return (
        _builtin_rejection(rule, context, node_info)
        if isinstance(rule, BuiltinFilter)
        else _expression_rejection(rule, context)
    )


def _builtin_rejection(
    rule: BuiltinFilter, context: ExpressionContext, node_info: NodeInfo
) -> NodeRejection | None:
    assert context.cluster_facts is not None, "filters need the facts of the cluster"
    reasons = FILTERS[rule.builtin](context.pod, node_info, dict(rule.params), context.cluster_facts)
    if reasons is None:
        return None
    scaleup = BUILTINS[rule.builtin].scaleup
    return NodeRejection(rule.name, reasons.texts, reasons.texts, reasons.resolvable, scaleup)


def _expression_rejection(rule: FilterRule, context: ExpressionContext) -> NodeRejection | None:
    answer = value(rule.condition, context)
    if answer is MISSING:
        # Without a `missing` clause this is a `reject` (an absent label does not reject), or a node that an input rejects.
        passes = rule.missing == "pass" or (rule.missing is None and rule.rejects)
    else:
        passes = answer is not rule.rejects
    if passes:
        return None
    reason, group = _reason_and_group(rule, context, missing=answer is MISSING)
    return NodeRejection(rule.name, (reason,), (group,), is_resolvable_by_eviction(rule), rule.scaleup)


def _reason_and_group(rule: FilterRule, context: ExpressionContext, *, missing: bool) -> tuple[str, str]:
    if missing:
        for name in metrics_read([rule.condition]):
            if metric_is_missing(name, context):
                return no_sample_reason(name), no_sample_reason(name)
    recovers = split_recovery_condition(rule.condition)
    if recovers is not None and value(recovers[0], context) is not rule.rejects:
        message = not_recovered_reason(recovers[1].condition.metric)
        return message, message
    if rule.template is None:
        return unsatisfied_reason(rule.name), unsatisfied_reason(rule.name)
    return _render(rule.template, context), _render_group(rule.template, context)


def _render(template: MessageTemplate, context: ExpressionContext) -> str:
    """The message with the values of this node."""
    return "".join(part if isinstance(part, str) else _text(part, context) for part in template.parts)


def _render_group(template: MessageTemplate, context: ExpressionContext) -> str:
    """The message with a placeholder for values of the node, so that events group it by cause."""
    return "".join(
        part
        if isinstance(part, str)
        else (NODE_VALUE_PLACEHOLDER if e.Stage.NODE in stage_of(part) else _text(part, context))
        for part in template.parts
    )


def _text(part: e.Expr, context: ExpressionContext) -> str:
    part_value = value(part, context)
    return MISSING_TEXT if part_value is MISSING else format_value(part_value, type_of(part))


def is_resolvable_by_eviction(rule: FilterRule) -> bool:
    """Whether the condition reads what placed pods use."""
    return any(
        isinstance(part, e.CountPodsOnNode | e.SumPodsOnNode)
        or (isinstance(part, e.PodTotal) and part.topology_key is not None)
        or (
            isinstance(part, e.Attr)
            and part.owner == "node"
            and part.path[0] in ("free", "requested", "pods")
        )
        for part in walk(rule.condition)
    )
