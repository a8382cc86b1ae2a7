"""Binding a variant of a plan to one pod: what is left are the rules that have something to do for it.

A `when` that depends on the pod alone is settled here, and so is whether a built-in skips the pod.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policysched.builtins.kernels import FILTERS, SCORES
from policysched.builtins.registry import BUILTINS
from policysched.evaluate.compile.lower import FilterStep, ScoreStep, Variant
from policysched.evaluate.kernel import Around, Touch
from policysched.evaluate.rules.bound_rules import (
    BoundFilter,
    BoundScore,
    ConditionalFilter,
    ExpressionFilter,
    FilterWords,
    Moment,
    NodeInputs,
    builtin_score,
    expression_score,
)
from policysched.evaluate.rules.normalize import normalizer_of
from policysched.evaluate.rules.values_text import shown
from policysched.evaluate.scalar.eval_context import Seen, Value
from policysched.evaluate.vector.traffic import fingerprint
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import BuiltinFilter, BuiltinScore, FilterRule, Input, Template
from policysched.lang.ir.reads import reads_of
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import (
    VARYING_TEXT,
    no_sample_reason,
    not_recovered_reason,
    unsatisfied_reason,
)


@dataclass(frozen=True, slots=True)
class Bound:
    """Filters in the order in which they refuse (inputs of the node first), and scores. `steps` says which of the variant's
    filters those are that are no inputs. `refusing_beforehand`: those of the filters that may refuse the pod whatever the node."""

    variant: Variant
    moment: Moment
    filters: tuple[BoundFilter, ...]
    scores: tuple[BoundScore, ...]
    steps: tuple[int, ...]
    refusing_beforehand: tuple[BoundFilter, ...]

    def rule_metrics(self) -> list[tuple[str, ...]]:
        """The metrics of each rule."""
        return [rule.metrics for rule in self.filters] + [rule.metrics for rule in self.scores]


def bind(variant: Variant, seen: Seen, leaves: list[Value], around: Around) -> Bound:
    moment = Moment(variant.machine, seen, leaves)
    filters = [
        BoundFilter(declared.name, NodeInputs(declared), True, _input_wakes(declared))
        for declared in variant.node_inputs
    ]
    steps = []
    for place, step in enumerate(variant.filters):
        bound = _bound_filter(step, moment, around)
        if bound is not None:
            filters.append(bound)
            steps.append(place)
    scores = [found for one in variant.scores if (found := _bound_score(one, moment, around)) is not None]
    return _bound(variant, moment, filters, scores, steps)


def _bound(
    variant: Variant,
    moment: Moment,
    filters: Sequence[BoundFilter],
    scores: Sequence[BoundScore],
    steps: Sequence[int],
) -> Bound:
    return Bound(
        variant,
        moment,
        tuple(filters),
        tuple(scores),
        tuple(steps),
        refusing_beforehand=tuple(rule for rule in filters if rule.kernel.touch & Touch.VOLUMES),
    )


def bind_claims(bound: Bound, around: Around) -> tuple[Bound, list[int | None]]:
    """What was bound to a pod without claims, bound to one that has some and agrees with it otherwise: the `moment` is of that
    one. For each filter its place in `bound`; None where it reads claims, and is another one."""
    inputs = len(bound.filters) - len(bound.steps)
    filters, places = list(bound.filters[:inputs]), list[int | None](range(inputs))
    there = {step: inputs + place for place, step in enumerate(bound.steps)}
    steps = []
    for step, one in enumerate(bound.variant.filters):
        place = None if one.reads_claims else there.get(step)
        found = _bound_filter(one, bound.moment, around) if one.reads_claims else None
        if place is not None:
            found = bound.filters[place]
        if found is not None:
            filters.append(found)
            places.append(place)
            steps.append(step)
    return _bound(bound.variant, bound.moment, filters, bound.scores, steps), places


def _input_wakes(declared: Input) -> frozenset[ClusterEvent]:
    read = e.InputRef(declared.name, declared.type, declared.stage, declared.span)
    return reads_of(read, {declared.name: declared}).wakes | {ClusterEvent.NODE_ADD}


def _bound_filter(step: FilterStep, moment: Moment, around: Around) -> BoundFilter | None:
    if step.pod_when is not None and step.pod_when(moment.seen) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinFilter):
        kernel = FILTERS[rule.builtin](moment.seen.pod, dict(rule.params), around)
        if kernel is None:
            return None
        if step.node_when is not None:
            kernel = ConditionalFilter(kernel, step.node_when, moment)
        return BoundFilter(rule.name, kernel, BUILTINS[rule.builtin].scaleup, step.wakes, step.metrics)
    assert step.answer is not None, f"filter {rule.name} has no condition"
    group = (
        unsatisfied_reason(rule.name) if rule.template is None else _group(rule.template, step, moment.seen)
    )
    own = ExpressionFilter(
        moment,
        when=step.node_when,
        answer=step.answer,
        rejects=rule.rejects,
        missing=rule.missing,
        resolvable=step.resolvable,
        words=FilterWords(
            group,
            tuple((name, no_sample_reason(name)) for name in step.answer_metrics),
            "" if step.within is None else not_recovered_reason(step.answer_metrics[0]),
        ),
        within=step.within,
        around=fingerprint(moment.machine, rule.condition),
    )
    return BoundFilter(rule.name, own, rule.scaleup, step.wakes, step.metrics, _text(rule, step), group)


def _text(rule: FilterRule, step: FilterStep) -> Callable[[Seen], str] | None:
    """The words with the node's values filled in; None where they are the same for all nodes."""
    template = rule.template
    if template is None or not step.varies:
        return None
    parts = step.template

    def text(seen: Seen) -> str:
        return "".join(
            part if isinstance(part, str) else shown(function(seen), e.type_of(part))
            for part, function in zip(template.parts, parts, strict=True)
        )

    return text


def _group(template: Template, step: FilterStep, seen: Seen) -> str:
    return "".join(
        part
        if isinstance(part, str)
        else (VARYING_TEXT if e.Stage.NODE in e.stage_of(part) else shown(function(seen), e.type_of(part)))
        for part, function in zip(template.parts, step.template, strict=True)
    )


def _bound_score(step: ScoreStep, moment: Moment, around: Around) -> BoundScore | None:
    if step.pod_when is not None and step.pod_when(moment.seen) is not True:
        return None
    rule = step.rule
    if isinstance(rule, BuiltinScore):
        kernel = SCORES[rule.builtin](moment.seen.pod, dict(rule.params), around)
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
        instead=rule.missing if rule.missing is not None else 0,
        metrics=step.metrics,
        has_raw=rule.normalize is not None,
        over_candidates=e.Stage.CANDIDATES in e.stage_of(rule.value),
        around=fingerprint(moment.machine, rule.value),
    )
