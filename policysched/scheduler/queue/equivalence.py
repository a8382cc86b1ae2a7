"""Which pods share one verdict.

Pods whose read keys agree, and who may evict the same pods, get the same answer on the same cluster, unless the policy reads what only the queue knows of
a pod: when it came, how long it has waited, how often it was tried. Where a rule does, each pod is its own kin.
"""

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass

from policysched.evaluate import Plan
from policysched.lang.ir.expr import Attr
from policysched.lang.ir.program import Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

_QUEUE_ATTRIBUTES = frozenset({("queued",), ("waited",), ("attempts",)})


def compute_equivalence_key(
    plan: Plan, pod: Pod, namespace: Namespace | None, *, reads_queue: bool
) -> Hashable:
    """What pods must have in common to fail together. `reads_queue` as `program_reads_queue` says of the plan's program."""
    if reads_queue:
        return plan.program.name, pod.uid
    return plan.program.name, plan.read_key(pod, namespace), plan.victims_key(pod, namespace)


def program_reads_queue(program: Program) -> bool:
    """Whether any rule, the condition of any layer or the preemption clause reads `pod.queued`, `pod.waited` or
    `pod.attempts`. Where it stands in a layer that does not apply to a pod, sharing is given up all the same."""
    return any(
        one.owner == "pod" and one.path in _QUEUE_ATTRIBUTES
        for part in (program.rules, program.layers, program.preemption)
        for one in _attributes(part, set())
    )


def _attributes(value: object, seen: set[int]) -> Iterator[Attr]:
    """What stands in several places as one object is looked into once."""
    if id(value) in seen:
        return
    seen.add(id(value))
    match value:
        case Attr():
            yield value
        case tuple():
            for item in value:
                yield from _attributes(item, seen)
        case _ if is_dataclass(value):
            for one in fields(value):
                if one.compare:  # spans are left out of it
                    yield from _attributes(getattr(value, one.name), seen)
        case _:
            pass
