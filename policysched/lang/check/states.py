"""`state NAME: TYPE { key = E  per = node  on = terminated  when = E  value = E  keep = 90%  start = 1.0  most = 10000 }`."""

from typing import Literal, cast

from policysched.lang.check.declarations import constant, declare, type_named
from policysched.lang.check.expressions import read_as
from policysched.lang.check.flow import no_holes
from policysched.lang.check.params import Params, params_of
from policysched.lang.check.scope import FED, KEY, Place, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir import program as p
from policysched.lang.ir.constant_folding import fold
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import BOOL, INT, RATIO, STRING, Type

_PARAMS = ("key", "per", "on", "when", "value", "keep", "start", "most")
_MOST = 10_000
_MOST_MAX = 100_000


def declare_state(scope: Scope, node: s.State) -> None:
    type_ = type_named(scope, node.type, ("float", "ratio"))
    value = _state(scope, node, type_)
    declared = declare(scope, "state", node.name)
    if declared is not None:
        declared.value = value


def _state(scope: Scope, node: s.State, type_: Type | None) -> p.State | None:
    errors = scope.error_count()
    params = params_of(scope, f"the state `{node.name.text}`", node.name.span, node.params, _PARAMS)
    key: e.Expr | None = e.Const("", STRING, node.name.span)  # one for all pods
    if params.get("key") is not None:
        key = _expression(scope, params, "key", "", KEY, STRING)
    per = params.word("per", ("node", "cluster"), "node")
    on = params.word("on", ("started", "terminated", "either", "failed", "any"), "terminated")
    when = None
    if params.get("when") is not None:
        when = _expression(scope, params, "when", "", FED, BOOL)
    value = None
    if type_ is not None:
        value = _expression(
            scope, params, "value", "if container.exit_code == 0 then 1.0 else 0.0", FED, type_
        )
    keep = _number(scope, params.required("keep", "90%"), RATIO)
    start = None if type_ is None else _number(scope, params.required("start", "1.0"), type_)
    most = _number(scope, params.get("most"), INT) if params.get("most") is not None else _MOST
    if keep is not None and not 0 <= keep < 1:
        _out_of_range(
            scope,
            params,
            "keep",
            "`keep` is what stays of the value when it is fed: at least 0%, less than 100%",
        )
    if most is not None and not 1 <= most <= _MOST_MAX:
        _out_of_range(scope, params, "most", f"`most` is how many values are held: 1 to {_MOST_MAX:,}")
    if type_ is None or key is None or value is None or keep is None or start is None or most is None:
        return None
    if scope.error_count() > errors:
        return None
    return p.State(
        name=node.name.text,
        type=type_,
        per=cast(Literal["node", "cluster"], per),
        key=fold(key),
        on=cast(p.Feeding, on),
        when=None if when is None else fold(when),
        value=fold(value),
        keep=float(keep),
        start=float(start),
        most=int(most),
        span=node.name.span,
    )


def _expression(
    scope: Scope, params: Params, name: str, example: str, place: Place, type_: Type
) -> e.Expr | None:
    node = params.required(name, example)
    if node is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"`{name}` is one value", node.span)
        return None
    found = read_as(scope, node, place, type_)
    return None if found is None or not no_holes(scope, found) else found


def _number(scope: Scope, node: s.Expression | s.MapLit | None, type_: Type) -> int | float | None:
    if node is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", "this is one number", node.span)
        return None
    found = constant(scope, node, type_)
    return found.value if found is not None and isinstance(found.value, int | float) else None


def _out_of_range(scope: Scope, params: Params, name: str, message: str) -> None:
    node = params.get(name)
    assert node is not None, f"{name} is out of range and was not written"
    scope.report("PS208", message, node.span, label="out of range")
