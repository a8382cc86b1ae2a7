"""The read set: everything of a pod that a plan's verdict can depend on.

Pods that agree on it share one evaluation. Built-ins declare the fields that they read; expressions
name their attributes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from policysched.evaluate.plan.lowering import AnyRule
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import (
    CLAIMS_FIELD,
    Reads,
    expr_reads,
    layer_reads,
    rule_reads,
    text_reads,
    union_of,
)
from policysched.lang.ir.rules import FilterRule
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

ReadFunction = Callable[[EvalContext], Hashable]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """`names` lists what is read, as a policy writes it, and the fields of built-ins.

    Not part of `fields` and `reads`: `reads_queue_facts`, when the pod was queued or how often it
    was tried; `reads_claims`, since rules about claims are evaluated on top of what pods without
    claims share; `reads_selected_labels`, the labels that terms of placed pods select by, and
    `reads_selector_group`, both of which depend on the cluster.
    """

    names: tuple[str, ...]
    fields: Callable[[Pod], tuple[object, ...]]
    reads: tuple[ReadFunction, ...]
    reads_queue_facts: bool
    reads_claims: bool
    reads_selected_labels: bool
    reads_selector_group: bool

    def key(self, context: EvalContext) -> Hashable:
        """Pods with equal keys get the same verdict."""
        return self.key_without_claims(context), context.pod.claims if self.reads_claims else ()

    def key_without_claims(self, context: EvalContext) -> Hashable:
        fields = tuple(
            [
                value if type(value) in _HASHABLE_TYPES else _hashable(value)
                for value in self.fields(context.pod)
            ]
        )
        return fields, tuple([read(context) for read in self.reads])


class RuleReads:
    """What the rules and layers of a program read, each computed once: a tenant can make pods with ever other sets of layers."""

    def __init__(self, program: Program) -> None:
        self._inputs, self._layers = program.inputs, program.layers
        changed = [getattr(change, "rule", None) for layer in program.layers for change in layer.changes]
        # Others are made anew for each set of layers: their ids are not kept.
        self._lasting = {id(rule) for rule in (*program.rules.filters, *program.rules.scores, *changed)}
        self._of_rules: dict[int, Reads] = {}
        self._of_layers: dict[int, Reads] = {}

    @cached_property
    def of_conditions(self) -> Reads:
        return union_of([expr_reads(layer.condition, self._inputs) for layer in self._layers])

    def of_rule(self, rule: AnyRule) -> Reads:
        """With its message."""
        reads = self._of_rules.get(id(rule))
        if reads is None:
            reads = rule_reads(rule, self._inputs)
            if isinstance(rule, FilterRule) and rule.template is not None:
                reads |= text_reads(rule, self._inputs)
            if id(rule) in self._lasting:
                self._of_rules[id(rule)] = reads
        return reads

    def of_layer(self, index: int) -> Reads:
        """Of the rules that the layer brings."""
        if index not in self._of_layers:
            self._of_layers[index] = layer_reads(self._layers[index], self._inputs)
        return self._of_layers[index]


def read_set(reads_of: RuleReads, rules: Iterable[AnyRule], layers: Iterable[int] = ()) -> ReadSet:
    """What rules, their messages and the conditions of layers read of the pod and its namespace, and what all rules that these
    `layers` bring do."""
    all_reads = union_of(
        [reads_of.of_conditions, *map(reads_of.of_rule, rules), *map(reads_of.of_layer, layers)]
    )
    fields = sorted(all_reads.pod_fields - _SEPARATE_FIELDS)
    reads: dict[str, ReadFunction] = {}
    for path in all_reads.pod - QUEUE_PATHS:
        if path[0] not in all_reads.pod_fields:
            reads[f"pod.{'.'.join(path)}"] = attribute("pod", path)
    if all_reads.shares:
        # Shares change all the time. Pods of one namespace agree on them, and the cache key has what
        # the rules make of them.
        reads["namespace.name"] = attribute("namespace", ("name",))
    share_paths = {path for path in all_reads.namespace if path[0] == "share"}
    for path in all_reads.namespace - share_paths:
        reads[f"namespace.{'.'.join(path)}"] = attribute("namespace", path)
    # Not the time waited: the cache key has what the rules make of the clock.
    reads_queue_facts = not all_reads.pod.isdisjoint(QUEUE_PATHS - {("waited",)})
    separate_fields = all_reads.pod_fields & _SEPARATE_FIELDS
    shares = [f"namespace.{'.'.join(path)}" for path in share_paths]
    return ReadSet(
        names=tuple(sorted([*reads, *shares, *(f"pod.{name}" for name in (*fields, *separate_fields))])),
        fields=_field_getter(fields),
        reads=tuple(reads[name] for name in sorted(reads)),
        reads_queue_facts=reads_queue_facts,
        reads_claims=CLAIMS_FIELD in separate_fields,
        reads_selected_labels="selected_labels" in separate_fields,
        reads_selector_group="siblings" in separate_fields,
    )


_SEPARATE_FIELDS = frozenset({CLAIMS_FIELD, "selected_labels", "siblings"})
QUEUE_PATHS = frozenset({("queued",), ("waited",), ("attempts",)})


_HASHABLE_TYPES = frozenset({bool, int, str, tuple, frozenset, type(None)})
"""The types of most fields, compared exactly: every field of every pod is read before anything
else.
"""


def _hashable(value: object) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    assert isinstance(value, Hashable), f"pod field is not hashable: {value!r}"
    return value


def _field_getter(fields: list[str]) -> Callable[[Pod], tuple[object, ...]]:
    """Reads all fields in one call."""
    match fields:
        case []:
            return lambda pod: ()
        case [field]:
            return lambda pod: (getattr(pod, field),)
        case _:
            return attrgetter(*fields)


def unknown_namespace(pod: Pod) -> Namespace:
    """A namespace that is not in the cache has no labels."""
    return Namespace(pod.namespace, {}, {})
