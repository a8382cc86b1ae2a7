"""Equivalence classes: the pods that share one verdict.

Pods with equal read keys that may evict the same pods get the same verdict on the same cluster, unless the policy
reads what only the queue knows of a pod: when it was queued, how long it has waited, how often it was tried. If a rule
does, each pod is a class of its own.
"""

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache

from policysched.evaluate import Plan
from policysched.lang.ir.expr import Attr
from policysched.lang.ir.program import Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

_QUEUE_ATTRIBUTES = frozenset({("queued",), ("waited",), ("attempts",)})


class HashedKey:
    """A key that is hashed once. A pod has up to a thousand claims, and each event opens all groups that wait for it."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.value)
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedKey) and hash(self) == hash(other) and self.value == other.value

    def __repr__(self) -> str:
        return repr(self.value)


def compute_equivalence_key(
    plan: Plan, pod: Pod, namespace: Namespace | None, *, reads_queue: bool
) -> Hashable:
    """What pods have in common that fail together. `reads_queue`: `program_reads_queue` of the plan's program."""
    if reads_queue:
        return plan.program.name, pod.uid
    return HashedKey((plan.program.name, plan.read_key(pod, namespace), plan.victims_key(pod, namespace)))


def program_reads_queue(program: Program) -> bool:
    """Whether any rule, the condition of any layer or the preemption clause reads `pod.queued`, `pod.waited` or
    `pod.attempts`. A layer counts even if it does not apply to a pod."""
    return any(
        attribute.owner == "pod" and attribute.path in _QUEUE_ATTRIBUTES
        for part in (program.rules, program.layers, program.preemption)
        for attribute in _attributes(part, set())
    )


def _attributes(value: object, visited: set[int]) -> Iterator[Attr]:
    """The attributes inside a value. An object that occurs several times is visited once."""
    if id(value) in visited:
        return
    visited.add(id(value))
    match value:
        case Attr():
            yield value
        case tuple():
            for item in value:
                yield from _attributes(item, visited)
        case _:
            kind: type = type(value)
            for name in _compared_fields(kind):
                yield from _attributes(getattr(value, name), visited)


@cache
def _compared_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass without spans; nothing for other types."""
    return tuple(field.name for field in fields(kind) if field.compare) if is_dataclass(kind) else ()
