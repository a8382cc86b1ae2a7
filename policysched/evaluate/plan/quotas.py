"""The `quota` statements as functions of a pod: which entities it counts towards, and with how much."""

from dataclasses import dataclass

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.evaluate.scalar.leaves import attribute
from policysched.evaluate.scalar.operations import requested_amount
from policysched.lang.ir.cost import scalar_cost
from policysched.lang.ir.program import Program
from policysched.text.short_key import short_key

QuotaEntity = tuple[str, ...]
"""The name of the quota, then the path of the entity in it: `("team", "research", "vision")`."""


@dataclass(frozen=True, slots=True)
class QuotaCharge:
    """What one pod uses of the quotas while it is placed. `entities`: one for each quota, in the order of the policy.
    `amounts`: one for each of `CompiledQuotas.resources`, in whole internal units."""

    entities: tuple[QuotaEntity, ...]
    amounts: tuple[int, ...]


class CompiledQuotas:
    """The `quota` clauses. `resources` are those that any of them limits."""

    def __init__(self, program: Program) -> None:
        self.specs = tuple(program.quotas.values())
        names = dict.fromkeys(
            limit.resource
            for spec in self.specs
            for limits in (*(row.limits for row in spec.rows), spec.others)
            for limit in limits
        )
        self.resources = tuple(names)
        self._keys = [(spec.name, spec.parent, compile_scalar(spec.key, program)) for spec in self.specs]
        self._amounts: list[ScalarFunction] = [_request(program, name) for name in self.resources]
        declared = [program.resources[name].request for name in names if name in program.resources]
        self.amount_operations = sum(scalar_cost(request).per_pod for request in declared)
        """The static cost of `amounts`."""
        self.operations = self.amount_operations + sum(scalar_cost(each.key).per_pod for each in self.specs)
        """The static cost of `charge`."""

    def charge(self, context: EvalContext) -> QuotaCharge:
        """A pod whose key has no value (its input is invalid, and another scheduler bound it) is in the entity ""."""
        paths: dict[str, tuple[str, ...]] = {}
        for name, parent, key_of in self._keys:
            key = key_of(context)
            outer = () if parent is None else paths[parent]
            paths[name] = (*outer, "" if key is None else short_key(str(key)))
        return QuotaCharge(tuple([(name, *path) for name, path in paths.items()]), self.amounts(context))

    def amounts(self, context: EvalContext) -> tuple[int, ...]:
        """Those of the charge."""
        return tuple([requested_amount(amount, context) for amount in self._amounts])


def _request(program: Program, resource: str) -> ScalarFunction:
    declared = program.resources.get(resource)
    return (
        attribute("pod", ("requests", resource))
        if declared is None
        else compile_scalar(declared.request, program)
    )
