"""Gang terms: which gang a pod belongs to, and its limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir.expr import Attr, Const, Else, Expr
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.program import DisruptionMode, GangMode, GangSpec, OnTimeout, Program, TopologyLevel
from policysched.model.nodes import Resources
from policysched.model.pod_groups import PodGroup

_KEPT_GROUPS_MAX = 1024
_KEPT_REQUESTS_MAX = 32
"""Pods that request more have their terms computed anew: what is kept counts by its number."""


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group. `maximum` and `timeout_ns` are None where there is none.
    `levels`: the labels on which the nodes of all members agree, widest first. `disruption`: how its running members are
    preempted. `min_resources`: what the members that start together request at least, and `requests` what this one
    requests of it; only PodGroups say so.
    """

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    levels: tuple[TopologyLevel, ...] = ()
    disruption: DisruptionMode = DisruptionMode.MINIMUM
    min_resources: tuple[tuple[str, int], ...] = ()
    requests: tuple[int, ...] = ()


class CompiledGang:
    """The `gang` clause as functions of a pod."""

    def __init__(self, program: Program) -> None:
        self._gang = gang = program.gang
        self.reads_pod_groups = gang is not None and _reads_pod_groups(gang.key)
        self._reads_group_alone = gang is not None and all(map(_is_of_group, _leaves(gang)))
        self._kept: dict[int, tuple[ref[PodGroup], str, Resources, GangTerms | None]] = {}
        """By the identity of a PodGroup: with what terms were computed last. Its members are mostly alike. An earlier version
        of a group is not held: with its conditions it can have megabytes."""
        if gang is not None:
            self._by = compile_scalar(gang.key, program)
            self._minimum = compile_scalar(gang.minimum, program)
            self._maximum = None if gang.maximum is None else compile_scalar(gang.maximum, program)
            self._timeout = None if gang.timeout is None else compile_scalar(gang.timeout, program)
            self._topology = None if gang.topology is None else compile_scalar(gang.topology, program)
            self._disruption = None if gang.disruption is None else compile_scalar(gang.disruption, program)

    def terms(self, context: EvalContext) -> GangTerms | None:
        """None: the pod is in no gang, since the policy has none or the pod's key is missing."""
        pod, group = context.pod, context.pod.group
        if group is None or not self._reads_group_alone or len(pod.requests) > _KEPT_REQUESTS_MAX:
            return self._compute(context)
        kept = self._kept.get(id(group))
        if kept is not None and kept[0]() is group and kept[1] == pod.namespace and kept[2] == pod.requests:
            return kept[3]
        terms = self._compute(context)
        if len(self._kept) >= _KEPT_GROUPS_MAX:
            self._kept.clear()
        self._kept[id(group)] = ref(group), pod.namespace, pod.requests, terms
        return terms

    def _compute(self, context: EvalContext) -> GangTerms | None:
        if self._gang is None:
            return None
        group = self._by(context)
        if group is None:
            return None
        minimum = _int_or_none(self._minimum, context)
        pod_group = context.pod.group if self.reads_pod_groups else None
        needed = () if pod_group is None else tuple(pod_group.min_resources.items())
        return GangTerms(
            key=(context.pod.namespace, str(group)),
            minimum=1 if minimum is None else minimum,
            maximum=_int_or_none(self._maximum, context),
            timeout_ns=_int_or_none(self._timeout, context),
            on_timeout=self._gang.on_timeout,
            mode=self._gang.mode,
            levels=self._levels(context),
            disruption=_MODES.get(_text_or_none(self._disruption, context) or "", DisruptionMode.MINIMUM),
            min_resources=needed,
            requests=tuple(1 if name == "pods" else context.pod.requests.get(name, 0) for name, _ in needed),
        )

    def _levels(self, context: EvalContext) -> tuple[TopologyLevel, ...]:
        assert self._gang is not None, "a policy without gangs has no levels"
        key = _text_or_none(self._topology, context)
        return self._gang.levels if key is None else (TopologyLevel(key, required=True),)


def _reads_pod_groups(key: Expr) -> bool:
    """Whether the gangs are PodGroups: the key reads `pod.group`."""
    return any(isinstance(part, Attr) and _is_of_group(part) for part in walk(key))


def _leaves(gang: GangSpec) -> Iterator[Expr]:
    """Every expression of the clause but `else`, whose value is that of its parts."""
    clauses = (gang.key, gang.minimum, gang.maximum, gang.timeout, gang.topology, gang.disruption)
    for clause in clauses:
        for part in () if clause is None else walk(clause):
            if not isinstance(part, Else):
                yield part


def _is_of_group(part: Expr) -> bool:
    """Whether it is the same for all pods of a PodGroup."""
    is_of_group = isinstance(part, Attr) and part.owner == "pod" and part.path[:1] == ("group",)
    return is_of_group or isinstance(part, Const)


_MODES = {mode.value: mode for mode in DisruptionMode}


def _text_or_none(function: ScalarFunction | None, context: EvalContext) -> str | None:
    """None also for an empty text."""
    value = None if function is None else function(context)
    return str(value) if value else None


def _int_or_none(function: ScalarFunction | None, context: EvalContext) -> int | None:
    value = None if function is None else function(context)
    assert value is None or isinstance(value, int), f"{value!r} is not an integer"
    return value
