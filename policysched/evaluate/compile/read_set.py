"""The read set: everything of a pod that a plan's verdict can depend on.

Pods that agree on it share one evaluation: a template's thousand replicas are one question. Built-ins declare the
fields that they read, expressions name their attributes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from policysched.evaluate.compile.lower import AnyRule
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import CLAIMS_FIELD, NO_READS, expr_reads, rule_reads, text_reads
from policysched.lang.ir.rules import FilterRule
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

ReadFunction = Callable[[EvalContext], Hashable]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """`names` say in a policy's words (and built-ins' fields) what is read. `reads_queue_facts`: when the pod was queued or how
    often it was tried is read too, which is no part of the pod. `reads_claims`: the pod's claims are read, which stand apart from
    `reads` because rules about them are asked on top of what pods without claims share. `reads_selected_labels`: so are those of its labels that
    placed pods' terms ask about, `reads_selector_group`: so is which pods belong together with it. Both depend on the cluster, and
    are no part of `key`."""

    names: tuple[str, ...]
    fields: Callable[[Pod], tuple[object, ...]]
    reads: tuple[ReadFunction, ...]
    reads_queue_facts: bool
    reads_claims: bool
    reads_selected_labels: bool
    reads_selector_group: bool

    def key(self, seen: EvalContext) -> Hashable:
        """Pods that agree on it are told the same."""
        return self.key_without_claims(seen), seen.pod.claims if self.reads_claims else ()

    def key_without_claims(self, seen: EvalContext) -> Hashable:
        fields = tuple(
            [one if type(one) in _HASHABLE_TYPES else _hashable(one) for one in self.fields(seen.pod)]
        )
        return fields, tuple([read(seen) for read in self.reads])


def read_set(program: Program, rules: Iterable[AnyRule]) -> ReadSet:
    """What the rules, their words and the conditions of the layers read of the pod and its namespace."""
    found = NO_READS
    for layer in program.layers:
        found |= expr_reads(layer.condition, program.inputs)
    for rule in rules:
        found |= rule_reads(rule, program.inputs)
        if isinstance(rule, FilterRule):
            found |= text_reads(rule, program.inputs)
    fields = sorted(found.pod_fields - _SEPARATE_FIELDS)
    reads: dict[str, ReadFunction] = {}
    for path in found.pod - _QUEUE_PATHS:
        if path[0] not in found.pod_fields:
            reads[f"pod.{'.'.join(path)}"] = attribute("pod", path)
    if found.shares:
        # Shares themselves change all the time: pods of one namespace agree on them, and what is made of them has a
        # place of its own in the key, as the clock has.
        reads["namespace.name"] = attribute("namespace", ("name",))
    for path in found.namespace - _SHARE_PATHS:
        reads[f"namespace.{'.'.join(path)}"] = attribute("namespace", path)
    # The time waited is no part of it: what the clock amounts to has a place of its own in the key.
    facts = not found.pod.isdisjoint(_QUEUE_PATHS - {("waited",)})
    apart = found.pod_fields & _SEPARATE_FIELDS
    shares = [f"namespace.{'.'.join(path)}" for path in found.namespace & _SHARE_PATHS]
    return ReadSet(
        names=tuple(sorted([*reads, *shares, *(f"pod.{name}" for name in (*fields, *apart))])),
        fields=_field_getter(fields),
        reads=tuple(reads[name] for name in sorted(reads)),
        reads_queue_facts=facts,
        reads_claims=CLAIMS_FIELD in apart,
        reads_selected_labels="selected_labels" in apart,
        reads_selector_group="siblings" in apart,
    )


_SEPARATE_FIELDS = frozenset({CLAIMS_FIELD, "selected_labels", "siblings"})
_SHARE_PATHS = frozenset({("share", "cpu"), ("share", "memory")})
_QUEUE_PATHS = frozenset({("queued",), ("waited",), ("attempts",)})


_HASHABLE_TYPES = frozenset({bool, int, str, tuple, frozenset, type(None)})
"""What most fields are, told apart by their exact type: each pod has each field read, before anything else is known of it."""


def _hashable(value: object) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    assert isinstance(value, Hashable), f"a pod has {value!r}"
    return value


def _field_getter(fields: list[str]) -> Callable[[Pod], tuple[object, ...]]:
    """All at once, in one call."""
    match fields:
        case []:
            return lambda pod: ()
        case [field]:
            return lambda pod: (getattr(pod, field),)
        case _:
            return attrgetter(*fields)


def unknown_namespace(pod: Pod) -> Namespace:
    """A namespace that has not been seen has no labels."""
    return Namespace(pod.namespace, {}, {})
