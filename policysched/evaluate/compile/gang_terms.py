"""Which gang a pod is in, and on what terms."""

from dataclasses import dataclass

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir.program import GangMode, OnTimeout, Program


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group; `maximum` and `timeout_ns` None: there is none. `topology`: the key of the label that all
    members' nodes have to agree on."""

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    topology: str | None = None


class CompiledGang:
    def __init__(self, program: Program) -> None:
        self._gang = gang = program.gang
        if gang is not None:
            self._by = compile_scalar(gang.key, program)
            self._minimum = compile_scalar(gang.minimum, program)
            self._maximum = None if gang.maximum is None else compile_scalar(gang.maximum, program)
            self._timeout = None if gang.timeout is None else compile_scalar(gang.timeout, program)

    def terms(self, seen: EvalContext) -> GangTerms | None:
        """None: the pod goes alone, because the policy has no gangs or what they go by is missing."""
        if self._gang is None:
            return None
        group = self._by(seen)
        if group is None:
            return None
        minimum = _int_or_none(self._minimum, seen)
        return GangTerms(
            key=(seen.pod.namespace, str(group)),
            minimum=1 if minimum is None else minimum,
            maximum=_int_or_none(self._maximum, seen),
            timeout_ns=_int_or_none(self._timeout, seen),
            on_timeout=self._gang.on_timeout,
            mode=self._gang.mode,
            topology=self._gang.topology_key,
        )


def _int_or_none(function: ScalarFunction | None, seen: EvalContext) -> int | None:
    found = None if function is None else function(seen)
    assert found is None or isinstance(found, int), f"{found!r} is not a whole number"
    return found
