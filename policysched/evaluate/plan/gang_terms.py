"""Gang terms: which gang a pod belongs to, and its limits."""

from dataclasses import dataclass

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir.program import GangMode, OnTimeout, Program


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group. `maximum` and `timeout_ns` are None where there is none.
    `topology`: the label key on which the nodes of all members must agree.
    """

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    topology: str | None = None


class CompiledGang:
    """The `gang` clause as functions of a pod."""

    def __init__(self, program: Program) -> None:
        self._gang = gang = program.gang
        if gang is not None:
            self._by = compile_scalar(gang.key, program)
            self._minimum = compile_scalar(gang.minimum, program)
            self._maximum = None if gang.maximum is None else compile_scalar(gang.maximum, program)
            self._timeout = None if gang.timeout is None else compile_scalar(gang.timeout, program)

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
            topology=self._gang.topology_key,
        )


def _int_or_none(function: ScalarFunction | None, context: EvalContext) -> int | None:
    value = None if function is None else function(context)
    assert value is None or isinstance(value, int), f"{value!r} is not an integer"
    return value
