"""Gang terms: which gang a pod belongs to, and its limits."""

from dataclasses import dataclass

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir.expr import Attr
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.program import DisruptionMode, GangMode, OnTimeout, Program


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group. `maximum` and `timeout_ns` are None where there is none.
    `topology`: the label key on which the nodes of all members must agree. `disruption`: how its running members are
    preempted.
    """

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    topology: str | None = None
    disruption: DisruptionMode = DisruptionMode.MINIMUM


class CompiledGang:
    """The `gang` clause as functions of a pod."""

    def __init__(self, program: Program) -> None:
        self._gang = gang = program.gang
        if gang is not None:
            self._by = compile_scalar(gang.key, program)
            self._minimum = compile_scalar(gang.minimum, program)
            self._maximum = None if gang.maximum is None else compile_scalar(gang.maximum, program)
            self._timeout = None if gang.timeout is None else compile_scalar(gang.timeout, program)
            self._topology = None if gang.topology is None else compile_scalar(gang.topology, program)
            self._disruption = None if gang.disruption is None else compile_scalar(gang.disruption, program)

    @property
    def reads_pod_groups(self) -> bool:
        """Whether the gangs are PodGroups: the key reads `pod.group`."""
        if self._gang is None:
            return False
        return any(
            isinstance(part, Attr) and part.owner == "pod" and part.path[:1] == ("group",)
            for part in walk(self._gang.key)
        )

    def terms(self, context: EvalContext) -> GangTerms | None:
        """None: the pod is in no gang, since the policy has none or the pod's key is missing."""
        if self._gang is None:
            return None
        group = self._by(context)
        if group is None:
            return None
        minimum = _int_or_none(self._minimum, context)
        return GangTerms(
            key=(context.pod.namespace, str(group)),
            minimum=1 if minimum is None else minimum,
            maximum=_int_or_none(self._maximum, context),
            timeout_ns=_int_or_none(self._timeout, context),
            on_timeout=self._gang.on_timeout,
            mode=self._gang.mode,
            topology=_text_or_none(self._topology, context),
            disruption=_MODES.get(_text_or_none(self._disruption, context) or "", DisruptionMode.MINIMUM),
        )


_MODES = {mode.value: mode for mode in DisruptionMode}


def _text_or_none(function: ScalarFunction | None, context: EvalContext) -> str | None:
    """None also for an empty text."""
    value = None if function is None else function(context)
    return str(value) if value else None


def _int_or_none(function: ScalarFunction | None, context: EvalContext) -> int | None:
    value = None if function is None else function(context)
    assert value is None or isinstance(value, int), f"{value!r} is not an integer"
    return value
