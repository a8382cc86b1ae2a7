"""The read set: everything of a pod that a plan's verdict can depend on.

Pods that agree on it share one evaluation: a template's thousand replicas are one question. Built-ins declare the
fields that they read, expressions name their attributes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from policysched.evaluate.compile.lower import AnyRule
from policysched.evaluate.scalar.eval_context import Seen
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir.program import FilterRule, Program
from policysched.lang.ir.reads import CLAIMS, NOTHING, reads_of, rule_reads, text_reads
from policysched.model.objects import Namespace, Pod

Read = Callable[[Seen], Hashable]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """`names` say in a policy's words (and built-ins' fields) what is read. `facts`: when the pod was queued or how
    often it was tried is read too, which is no part of the pod. `claims`: the pod's claims are read, which stand apart from
    `reads` because rules about them are asked on top of what pods without claims share. `selected_labels`: so are those of its labels that
    placed pods' terms ask about, `siblings`: so is which pods belong together with it. Both depend on the cluster, and
    are no part of `key`."""

    names: tuple[str, ...]
    fields: Callable[[Pod], tuple[object, ...]]
    reads: tuple[Read, ...]
    facts: bool
    claims: bool
    selected_labels: bool
    siblings: bool

    def key(self, seen: Seen) -> Hashable:
        """Pods that agree on it are told the same."""
        return self.key_but_claims(seen), seen.pod.claims if self.claims else ()

    def key_but_claims(self, seen: Seen) -> Hashable:
        fields = tuple([one if type(one) in _AS_IT_IS else _hashable(one) for one in self.fields(seen.pod)])
        return fields, tuple([read(seen) for read in self.reads])


def read_set(program: Program, rules: Iterable[AnyRule]) -> ReadSet:
    """What the rules, their words and the conditions of the layers read of the pod and its namespace."""
    found = NOTHING
    for layer in program.layers:
        found |= reads_of(layer.condition, program.inputs)
    for rule in rules:
        found |= rule_reads(rule, program.inputs)
        if isinstance(rule, FilterRule):
            found |= text_reads(rule, program.inputs)
    fields = sorted(found.pod_fields - _APART)
    reads: dict[str, Read] = {}
    for path in found.pod - _OF_THE_QUEUE:
        if path[0] not in found.pod_fields:
            reads[f"pod.{'.'.join(path)}"] = attribute("pod", path)
    if found.shares:
        # Shares themselves change all the time: pods of one namespace agree on them, and what is made of them has a
        # place of its own in the key, as the clock has.
        reads["namespace.name"] = attribute("namespace", ("name",))
    for path in found.namespace - _SHARES:
        reads[f"namespace.{'.'.join(path)}"] = attribute("namespace", path)
    # The time waited is no part of it: what the clock amounts to has a place of its own in the key.
    facts = not found.pod.isdisjoint(_OF_THE_QUEUE - {("waited",)})
    apart = found.pod_fields & _APART
    shares = [f"namespace.{'.'.join(path)}" for path in found.namespace & _SHARES]
    return ReadSet(
        names=tuple(sorted([*reads, *shares, *(f"pod.{name}" for name in (*fields, *apart))])),
        fields=_getter(fields),
        reads=tuple(reads[name] for name in sorted(reads)),
        facts=facts,
        claims=CLAIMS in apart,
        selected_labels="selected_labels" in apart,
        siblings="siblings" in apart,
    )


_APART = frozenset({CLAIMS, "selected_labels", "siblings"})
_SHARES = frozenset({("share", "cpu"), ("share", "memory")})
_OF_THE_QUEUE = frozenset({("queued",), ("waited",), ("attempts",)})


_AS_IT_IS = frozenset({bool, int, str, tuple, frozenset, type(None)})
"""What most fields are, told apart by their exact type: each pod has each field read, before anything else is known of it."""


def _hashable(value: object) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    assert isinstance(value, Hashable), f"a pod has {value!r}"
    return value


def _getter(fields: list[str]) -> Callable[[Pod], tuple[object, ...]]:
    """All at once, in one call."""
    match fields:
        case []:
            return lambda pod: ()
        case [field]:
            return lambda pod: (getattr(pod, field),)
        case _:
            return attrgetter(*fields)


def nameless(pod: Pod) -> Namespace:
    """A namespace that has not been seen has no labels."""
    return Namespace(pod.namespace, {}, {})
