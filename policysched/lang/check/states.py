"""`state NAME: TYPE { key = E  per = node  on = terminated  when = E  value = E  keep = 90%  start = 1.0  half_life = 30m  most = 10000 }`."""

from typing import Literal, cast

from policysched.lang.check.block_params import BlockParams, check_block_params
from policysched.lang.check.constants import check_constant
from policysched.lang.check.declarations import declare_name, resolve_type
from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.presence import check_always_present
from policysched.lang.check.scope import STATE_KEY, STATE_UPDATE, ExpressionContext, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.decay import Decay
from policysched.lang.ir.declarations import StateSpec, StateTrigger
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import BOOL, DURATION, INT, RATIO, STRING, Type

_PARAMS = ("key", "per", "on", "when", "value", "keep", "start", "half_life", "most")
_VALUES_DEFAULT = 10_000
_VALUES_MAX = 100_000
"""Of one state, and of all states of a policy: 40 MB."""
_HALF_LIFE_MIN_NS = 60 * 10**9
"""A shorter one would evaluate waiting pods more than once a second."""
_HALF_LIFE_MAX_NS = 365 * 24 * 3600 * 10**9


def declare_state(scope: Scope, node: s.StateDecl) -> None:
    type_ = resolve_type(scope, node.type, ("float", "ratio"))
    value = _check_state(scope, node, type_)
    declared = declare_name(scope, "state", node.name)
    if declared is not None:
        declared.definition = value


def check_state_values(scope: Scope) -> None:
    """The values of all states of a policy are kept in memory."""
    states = list(scope.states().values())
    values = sum(state.entries_max for state in states)
    if values > _VALUES_MAX:
        scope.report(
            "PS208",
            f"the {len(states)} states of the policy keep up to {values:,} values, the limit is {_VALUES_MAX:,}",
            states[-1].span,
            help="lower their `most`, which is 10,000 for a state without one",
        )


def _check_state(scope: Scope, node: s.StateDecl, type_: Type | None) -> StateSpec | None:
    errors = scope.error_count()
    params = check_block_params(scope, f"the state `{node.name.text}`", node.name.span, node.params, _PARAMS)
    key: e.Expr | None = e.Const("", STRING, node.name.span)  # one value for all pods
    if params.get("key") is not None:
        key = _expression(scope, params, "key", "", STATE_KEY, STRING)
    per = params.choice("per", ("node", "cluster"), "node")
    on = params.choice("on", ("started", "terminated", "either", "failed", "any"), "terminated")
    when = None
    if params.get("when") is not None:
        when = _expression(scope, params, "when", "", STATE_UPDATE, BOOL)
    value = None
    if type_ is not None:
        value = _expression(
            scope, params, "value", "if container.exit_code == 0 then 1.0 else 0.0", STATE_UPDATE, type_
        )
    keep = _number(scope, params.required("keep", "90%"), RATIO)
    start = None if type_ is None else _number(scope, params.required("start", "1.0"), type_)
    half_life = None
    if params.get("half_life") is not None:
        half_life = _number(scope, params.get("half_life"), DURATION)
    most = _number(scope, params.get("most"), INT) if params.get("most") is not None else _VALUES_DEFAULT
    if keep is not None and not 0 <= keep < 1:
        _report_out_of_range(
            scope,
            params,
            "keep",
            "`keep` must be at least 0% and less than 100%",
        )
    if half_life is not None and not _HALF_LIFE_MIN_NS <= half_life <= _HALF_LIFE_MAX_NS:
        _report_out_of_range(scope, params, "half_life", "`half_life` must be between 1 minute and 365 days")
    if most is not None and not 1 <= most <= _VALUES_MAX:
        _report_out_of_range(scope, params, "most", f"`most` must be between 1 and {_VALUES_MAX:,}")
    if type_ is None or key is None or value is None or keep is None or start is None or most is None:
        return None
    if scope.error_count() > errors:
        return None
    return StateSpec(
        name=node.name.text,
        type=type_,
        scope=cast(Literal["node", "cluster"], per),
        key=fold_constants(key),
        trigger=cast(StateTrigger, on),
        when=None if when is None else fold_constants(when),
        value=fold_constants(value),
        keep=float(keep),
        start=float(start),
        decay=None if half_life is None else Decay(float(start), int(half_life)),
        entries_max=int(most),
        span=node.name.span,
    )


def _expression(
    scope: Scope, params: BlockParams, name: str, example: str, context: ExpressionContext, type_: Type
) -> e.Expr | None:
    node = params.required(name, example)
    if node is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"`{name}` must be a single value", node.span)
        return None
    expr = check_expression_as(scope, node, context, type_)
    return None if expr is None or not check_always_present(scope, expr) else expr


def _number(scope: Scope, node: s.Expression | s.MapLit | None, type_: Type) -> int | float | None:
    if node is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", "expected a number", node.span)
        return None
    expr = check_constant(scope, node, type_)
    return expr.value if expr is not None and isinstance(expr.value, int | float) else None


def _report_out_of_range(scope: Scope, params: BlockParams, name: str, message: str) -> None:
    node = params.get(name)
    assert node is not None, f"{name} is out of range but not written"
    scope.report("PS208", message, node.span, label="out of range")
