"""The read set: everything of a pod that a plan's verdict can depend on.

Pods that agree on it share one evaluation: a template's thousand replicas are one question. Built-ins declare the
fields that they read, expressions name their attributes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from policysched.cluster.objects import Namespace, Pod
from policysched.lang import expr as e
from policysched.lang.builtins import BUILTINS
from policysched.lang.program import BuiltinFilter, BuiltinScore, FilterRule, Program, Template
from policysched.plan.lower import AnyRule, deciding
from policysched.plan.scalars import Seen, attribute, input_text

Read = Callable[[Seen], Hashable]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """`names` say in a policy's words (and built-ins' fields) what is read. `facts`: when the pod was queued or how
    often it was tried is read too, which is no part of the pod."""

    names: tuple[str, ...]
    reads: tuple[Read, ...]
    facts: bool

    def key(self, seen: Seen) -> Hashable:
        return tuple([read(seen) for read in self.reads])


def read_set(program: Program, rules: Iterable[AnyRule]) -> ReadSet:
    """What the rules, their words and the conditions of the layers read of the pod and its namespace."""
    reads: dict[str, Read] = {}
    facts = False
    exprs: list[e.Expr] = [layer.condition for layer in program.layers]
    for rule in rules:
        if isinstance(rule, BuiltinFilter | BuiltinScore):
            for field in BUILTINS[rule.builtin].pod_reads:
                reads[f"pod.{field}"] = _field(field)
        exprs += [one for one in deciding(rule) if one is not None]
        if isinstance(rule, FilterRule) and rule.template is not None:
            exprs += template_exprs(rule.template)
    for expr in exprs:
        for one in e.walk(expr):
            match one:
                case e.Attr(owner="pod", path=("queued" | "attempts",)):
                    facts = True
                case e.Attr(owner="pod", path=("waited",)):
                    pass  # the clock's part of the key says what it amounts to
                case e.Attr(owner="pod" | "namespace" as owner, path=path):
                    reads[f"{owner}.{'.'.join(path)}"] = attribute(one)
                case e.InputRef(name=name) if program.inputs[name].owner != "node":
                    reads[name] = input_text(program.inputs[name])
    return ReadSet(tuple(sorted(reads)), tuple(reads[name] for name in sorted(reads)), facts)


def template_exprs(template: Template) -> list[e.Expr]:
    return [part for part in template.parts if not isinstance(part, str)]


def _field(name: str) -> Read:
    field = attrgetter(name)

    def read(seen: Seen) -> Hashable:
        value = field(seen.pod)
        if isinstance(value, Mapping):
            return tuple(sorted(value.items()))
        assert isinstance(value, Hashable), f"pod.{name} is {value!r}"
        return value

    return read


def nameless(pod: Pod) -> Namespace:
    """A namespace that has not been seen has no labels."""
    return Namespace(pod.namespace, {}, {})
