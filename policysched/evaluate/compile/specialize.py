"""Binding a variant of a plan to one pod: what is left are the rules that have something to do for it.

A `when` that depends on the pod alone is settled here, and so is whether a built-in skips the pod.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policysched.builtins.kernels import FILTER_KERNELS, SCORE_KERNELS
from policysched.builtins.registry import BUILTINS
from policysched.evaluate.compile.lower import LoweredFilter, LoweredScore, Variant
from policysched.evaluate.kernel import ClusterContext, Dependency
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
from policysched.evaluate.rules.values_text import format_value_or_missing
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue
from policysched.evaluate.vector.traffic import traffic_fingerprint
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.reads import expr_reads
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, MessageTemplate
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import (
    NODE_VALUE_PLACEHOLDER,
    no_sample_reason,
    not_recovered_reason,
    unsatisfied_reason,
)


@dataclass(frozen=True, slots=True)
class SpecializedRules:
    """Filters in the order in which they refuse (inputs of the node first), and scores. `filter_indexes` says which of the variant's
    filters those are that are no inputs. `prefilters`: those of the filters that may refuse the pod whatever the node."""

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
    variant: Variant, seen: EvalContext, leaves: list[EvalValue], around: ClusterContext
) -> SpecializedRules:
    moment = Activation(variant.machine, seen, leaves)
    filters = [
        SpecializedFilter(declared.name, NodeInputFilter(declared), True, _input_requeue_events(declared))
        for declared in variant.node_inputs
    ]
    steps = []
    for place, step in enumerate(variant.filters):
        bound = _specialize_filter(step, moment, around)
        if bound is not None:
            filters.append(bound)
            steps.append(place)
    scores = [
        found for one in variant.scores if (found := _specialize_score(one, moment, around)) is not None
    ]
    return _specialized_rules(variant, moment, filters, scores, steps)


def _specialized_rules(
    variant: Variant,
    moment: Activation,
    filters: Sequence[SpecializedFilter],
    scores: Sequence[SpecializedScore],
    steps: Sequence[int],
) -> SpecializedRules:
    return SpecializedRules(
        variant,
        moment,
        tuple(filters),
        tuple(scores),
        tuple(steps),
        prefilters=tuple(rule for rule in filters if rule.kernel.depends_on & Dependency.VOLUMES),
    )


def specialize_claim_filters(
    bound: SpecializedRules, around: ClusterContext
) -> tuple[SpecializedRules, list[int | None]]:
    """What was bound to a pod without claims, bound to one that has some and agrees with it otherwise: the `activation` is of that
    one. For each filter its place in `bound`; None where it reads claims, and is another one."""
    inputs = len(bound.filters) - len(bound.filter_indexes)
    filters, places = list(bound.filters[:inputs]), list[int | None](range(inputs))
    there = {step: inputs + place for place, step in enumerate(bound.filter_indexes)}
    steps = []
    for step, one in enumerate(bound.variant.filters):
        place = None if one.reads_claims else there.get(step)
        found = _specialize_filter(one, bound.activation, around) if one.reads_claims else None
        if place is not None:
            found = bound.filters[place]
        if found is not None:
            filters.append(found)
            places.append(place)
            steps.append(step)
    return _specialized_rules(bound.variant, bound.activation, filters, bound.scores, steps), places


def _input_requeue_events(declared: Input) -> frozenset[ClusterEvent]:
    read = e.InputRef(declared.name, declared.type, declared.stage, declared.span)
    return expr_reads(read, {declared.name: declared}).requeue_events | {ClusterEvent.NODE_ADD}


def _specialize_filter(
    step: LoweredFilter, moment: Activation, around: ClusterContext
) -> SpecializedFilter | None:
    if step.pod_when is not None and step.pod_when(moment.context) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinFilter):
        kernel = FILTER_KERNELS[rule.builtin](moment.context.pod, dict(rule.params), around)
        if kernel is None:
            return None
        if step.node_when is not None:
            kernel = ConditionalFilter(kernel, step.node_when, moment)
        return SpecializedFilter(
            rule.name, kernel, BUILTINS[rule.builtin].scaleup, step.requeue_events, step.metrics
        )
    assert step.condition is not None, f"filter {rule.name} has no condition"
    group = (
        unsatisfied_reason(rule.name)
        if rule.template is None
        else _reason_group(rule.template, step, moment.context)
    )
    own = ExpressionFilter(
        moment,
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
        fingerprint=traffic_fingerprint(moment.machine, rule.condition),
    )
    return SpecializedFilter(
        rule.name, own, rule.scaleup, step.requeue_events, step.metrics, _message_function(rule, step), group
    )


def _message_function(rule: FilterRule, step: LoweredFilter) -> Callable[[EvalContext], str] | None:
    """The words with the node's values filled in; None where they are the same for all nodes."""
    template = rule.template
    if template is None or not step.varies_by_node:
        return None
    parts = step.template

    def text(seen: EvalContext) -> str:
        return "".join(
            part if isinstance(part, str) else format_value_or_missing(function(seen), e.type_of(part))
            for part, function in zip(template.parts, parts, strict=True)
        )

    return text


def _reason_group(template: MessageTemplate, step: LoweredFilter, seen: EvalContext) -> str:
    return "".join(
        part
        if isinstance(part, str)
        else (
            NODE_VALUE_PLACEHOLDER
            if e.Stage.NODE in e.stage_of(part)
            else format_value_or_missing(function(seen), e.type_of(part))
        )
        for part, function in zip(template.parts, step.template, strict=True)
    )


def _specialize_score(
    step: LoweredScore, moment: Activation, around: ClusterContext
) -> SpecializedScore | None:
    if step.pod_when is not None and step.pod_when(moment.context) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinScore):
        kernel = SCORE_KERNELS[rule.builtin](moment.context.pod, dict(rule.params), around)
        if kernel is None:
            return None
        return builtin_score(rule.name, rule.weight, kernel, step.node_when, step.metrics, moment)
    assert step.value is not None
    return expression_score(
        rule.name,
        rule.weight,
        moment,
        when=step.node_when,
        value=step.value,
        normalizer=normalizer_of(rule),
        missing_score=rule.missing if rule.missing is not None else 0,
        metrics=step.metrics,
        has_raw=rule.normalize is not None,
        over_candidates=e.Stage.CANDIDATES in e.stage_of(rule.value),
        fingerprint=traffic_fingerprint(moment.machine, rule.value),
    )
