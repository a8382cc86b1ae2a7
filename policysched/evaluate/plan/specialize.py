"""Specialization of a plan's variant for one pod: the rules that apply to the pod, with their
kernels.

A `when` that reads only the pod is evaluated here, and built-ins that skip the pod are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policysched.builtins import kernels
from policysched.builtins.registry import BUILTINS
from policysched.evaluate.kernel import ClusterContext, Dependency
from policysched.evaluate.plan.lowering import LoweredFilter, LoweredScore, Variant
from policysched.evaluate.rules.normalizers import normalizer_of
from policysched.evaluate.rules.specialized_rules import (
    Activation,
    ConditionalFilter,
    ExpressionFilter,
    FilterMessages,
    NodeInputFilter,
    SpecializedFilter,
    SpecializedScore,
    builtin_score,
    expression_score,
)
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr_analysis import stage_of, type_of
from policysched.lang.ir.reads import expr_reads
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, MessageTemplate
from policysched.lang.types.kinds import Type
from policysched.lang.types.units import format_value
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import (
    MISSING_TEXT,
    NODE_VALUE_PLACEHOLDER,
    no_sample_reason,
    not_recovered_reason,
    unsatisfied_reason,
)


@dataclass(frozen=True, slots=True)
class SpecializedRules:
    """Filters in the order in which they reject (inputs of the node first), and scores.
    `filter_indexes`: the indexes in the variant of the filters that are not inputs.
    `prefilters`: the filters that may reject the pod on every node.
    """

    variant: Variant
    activation: Activation
    filters: tuple[SpecializedFilter, ...]
    scores: tuple[SpecializedScore, ...]
    filter_indexes: tuple[int, ...]
    prefilters: tuple[SpecializedFilter, ...]

    def rule_metrics(self) -> list[tuple[str, ...]]:
        """The metrics of each rule."""
        return [rule.metrics for rule in self.filters] + [rule.metrics for rule in self.scores]


def specialize(
    variant: Variant, context: EvalContext, leaves: list[EvalValue], cluster_context: ClusterContext
) -> SpecializedRules:
    activation = Activation(variant.machine, context, leaves)
    filters = [
        SpecializedFilter(declared.name, NodeInputFilter(declared), True, _input_requeue_events(declared))
        for declared in variant.node_inputs
    ]
    steps = []
    for index, step in enumerate(variant.filters):
        specialized_filter = _specialize_filter(step, activation, cluster_context)
        if specialized_filter is not None:
            filters.append(specialized_filter)
            steps.append(index)
    scores = [
        specialized
        for lowered in variant.scores
        if (specialized := _specialize_score(lowered, activation, cluster_context)) is not None
    ]
    return _specialized_rules(variant, activation, filters, scores, steps)


def _specialized_rules(
    variant: Variant,
    activation: Activation,
    filters: Sequence[SpecializedFilter],
    scores: Sequence[SpecializedScore],
    steps: Sequence[int],
) -> SpecializedRules:
    return SpecializedRules(
        variant,
        activation,
        tuple(filters),
        tuple(scores),
        tuple(steps),
        prefilters=tuple(rule for rule in filters if rule.kernel.depends_on & Dependency.VOLUMES),
    )


def specialize_claim_rules(
    rules: SpecializedRules, cluster_context: ClusterContext
) -> tuple[SpecializedRules, list[int | None]]:
    """Rules specialized for a pod without claims, extended for a pod that has claims and is
    otherwise equal (the one of `activation`). Also, for each filter, its index in `rules`; None
    for the new ones, which read claims. New scores come last.
    """
    inputs = len(rules.filters) - len(rules.filter_indexes)
    filters, positions = list(rules.filters[:inputs]), list[int | None](range(inputs))
    index_of_step = {step: inputs + index for index, step in enumerate(rules.filter_indexes)}
    steps = []
    for step, lowered in enumerate(rules.variant.filters):
        index = None if lowered.reads_claims else index_of_step.get(step)
        specialized = (
            _specialize_filter(lowered, rules.activation, cluster_context) if lowered.reads_claims else None
        )
        if index is not None:
            specialized = rules.filters[index]
        if specialized is not None:
            filters.append(specialized)
            positions.append(index)
            steps.append(step)
    scores = [
        score
        for step in rules.variant.scores
        if step.reads_claims
        and (score := _specialize_score(step, rules.activation, cluster_context)) is not None
    ]
    return _specialized_rules(
        rules.variant, rules.activation, filters, (*rules.scores, *scores), steps
    ), positions


def _input_requeue_events(declared: Input) -> frozenset[ClusterEvent]:
    read = e.InputRef(declared.name, declared.type, declared.stage, declared.span)
    return expr_reads(read, {declared.name: declared}).requeue_events | {ClusterEvent.NODE_ADD}


def _specialize_filter(
    step: LoweredFilter, activation: Activation, cluster_context: ClusterContext
) -> SpecializedFilter | None:
    if step.pod_when is not None and step.pod_when(activation.context) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinFilter):
        kernel = kernels.FILTER_KERNELS[rule.builtin](
            activation.context.pod, dict(rule.params), cluster_context
        )
        if kernel is None:
            return None
        if step.node_when is not None:
            kernel = ConditionalFilter(kernel, step.node_when, activation, step.fingerprint)
        return SpecializedFilter(
            rule.name, kernel, BUILTINS[rule.builtin].scaleup, step.requeue_events, step.metrics
        )
    assert step.condition is not None, f"filter {rule.name} has no condition"
    group = (
        unsatisfied_reason(rule.name)
        if rule.template is None
        else _reason_group(rule.template, step, activation.context)
    )
    first_filter = ExpressionFilter(
        activation,
        when=step.node_when,
        condition=step.condition,
        rejects=rule.rejects,
        missing=rule.missing,
        resolvable=step.resolvable,
        messages=FilterMessages(
            group,
            tuple((name, no_sample_reason(name)) for name in step.condition_metrics),
            "" if step.comparison is None else not_recovered_reason(step.condition_metrics[0]),
        ),
        comparison=step.comparison,
        fingerprint=step.fingerprint,
    )
    return SpecializedFilter(
        rule.name,
        first_filter,
        rule.scaleup,
        step.requeue_events,
        step.metrics,
        _message_function(rule, step),
        group,
        step.gap_at,
    )


def _message_function(rule: FilterRule, step: LoweredFilter) -> Callable[[EvalContext], str] | None:
    """The message with the node's values; None where it is the same on all nodes."""
    template = rule.template
    if template is None or not step.varies_by_node:
        return None
    parts = step.template

    def text(context: EvalContext) -> str:
        return "".join(
            part if isinstance(part, str) else _format_value_or_missing(function(context), type_of(part))
            for part, function in zip(template.parts, parts, strict=True)
        )

    return text


def _format_value_or_missing(value: EvalValue, type_: Type) -> str:
    return MISSING_TEXT if value is None else format_value(value, type_)


def _reason_group(template: MessageTemplate, step: LoweredFilter, context: EvalContext) -> str:
    return "".join(
        part
        if isinstance(part, str)
        else (
            NODE_VALUE_PLACEHOLDER
            if e.Stage.NODE in stage_of(part)
            else _format_value_or_missing(function(context), type_of(part))
        )
        for part, function in zip(template.parts, step.template, strict=True)
    )


def _specialize_score(
    step: LoweredScore, activation: Activation, cluster_context: ClusterContext
) -> SpecializedScore | None:
    if step.pod_when is not None and step.pod_when(activation.context) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinScore):
        kernel = kernels.SCORE_KERNELS[rule.builtin](
            activation.context.pod, dict(rule.params), cluster_context
        )
        if kernel is None:
            return None
        return builtin_score(
            rule.name, rule.weight, kernel, step.node_when, step.metrics, activation, step.fingerprint
        )
    assert step.value is not None
    return expression_score(
        rule.name,
        rule.weight,
        activation,
        when=step.node_when,
        value=step.value,
        normalizer=normalizer_of(rule),
        missing_score=rule.missing if rule.missing is not None else 0,
        metrics=step.metrics,
        has_raw=rule.normalize is not None,
        over_candidates=step.over_candidates,
        fingerprint=step.fingerprint,
    )
