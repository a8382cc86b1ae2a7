"""`queue by`, `gang by` and `preemption`: statements that stand once in a policy."""

from typing import cast

from policysched.lang.check.dimensions import describe
from policysched.lang.check.expressions import read, read_as, read_condition
from policysched.lang.check.flow import Known, holes, no_holes, report_hole
from policysched.lang.check.params import Params, params_of
from policysched.lang.check.scope import CONSTANT, GANG, QUEUE_KEY, VICTIMS, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir import program as p
from policysched.lang.ir.constant_folding import fold
from policysched.lang.ir.expr import Stage
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import INT, Kind, Type
from policysched.text import Span


def default_queue(span: Span) -> tuple[p.OrderKey, ...]:
    """kube-scheduler's order: priority, then who has waited longest."""
    priority = e.Attr("pod", ("priority",), INT, span)
    queued = e.Attr("pod", ("queued",), t.TIMESTAMP, span)
    return p.OrderKey(priority, True), p.OrderKey(queued, False)


def queue(scope: Scope, node: s.Queue) -> tuple[p.OrderKey, ...] | None:
    keys = [_key(scope, key) for key in node.keys]
    known = tuple(key for key in keys if key is not None)
    return known if len(known) == len(keys) else None


def _key(scope: Scope, node: s.OrderKey) -> p.OrderKey | None:
    found = read(scope, node.value, QUEUE_KEY)
    if found is None:
        return None
    kind = e.type_of(found)
    if kind.kind is Kind.LIST:
        scope.report(
            "PS202", f"the queue cannot be ordered by {describe(kind)}", found.span, label=describe(kind)
        )
        return None
    for hole in holes(found):
        if not isinstance(hole, e.Attr | e.InputRef):
            report_hole(scope, hole)  # an absent value comes last, a division without one is a mistake
    if Stage.SHARES in e.stage_of(found) and not _of_the_namespace_alone(scope, found):
        scope.report(
            "PS215",
            "what a namespace holds stands together with something else in one key",
            found.span,
            label="reads more than the namespace",
            help="make two keys of it: one of the namespace alone, one of the pod",
        )
        return None
    if isinstance(found, e.Const):
        scope.report("PS301", "this key is the same for every pod", found.span, label="orders nothing")
    return p.OrderKey(fold(found), node.descending)


def _of_the_namespace_alone(scope: Scope, key: e.Expr) -> bool:
    """Whether the key is the same for all pods of a namespace at any moment, and does not run with the clock."""
    inputs = scope.inputs()
    for one in e.walk(key):
        match one:
            case e.Attr(owner=owner) if owner != "namespace":
                return False
            case e.InputRef(name=name) if inputs[name].owner != "namespace":
                return False
            case e.Now() | e.Window():
                return False
            case _:
                pass
    return True


_GANG_PARAMS = ("min", "max", "timeout", "on_timeout", "mode", "topology")


def gang(scope: Scope, node: s.Gang) -> p.Gang | None:
    errors = scope.error_count()
    by = read(scope, node.by, GANG, t.STRING)
    known: Known = frozenset()
    if by is not None:
        kind = e.type_of(by)
        if kind.kind is not Kind.STRING:
            scope.report(
                "PS202",
                f"a gang is named by a string, and this is {describe(kind)}",
                by.span,
                label=describe(kind),
            )
        elif isinstance(by, e.Attr | e.InputRef):
            known = frozenset({by})  # the terms are only asked for where the pod is in a gang
        else:
            no_holes(scope, by)
    params = params_of(scope, "`gang`", node.span, node.params, _GANG_PARAMS)
    minimum_node = params.required("min", "2")
    minimum = None if minimum_node is None else _term(scope, minimum_node, "min", INT, known)
    maximum = _optional_term(scope, params, "max", INT, known)
    timeout = _optional_term(scope, params, "timeout", t.DURATION, known)
    on_timeout = params.word("on_timeout", [one.value for one in p.OnTimeout], "requeue")
    mode = params.word("mode", [one.value for one in p.GangMode], "whole")
    topology = _topology(scope, params, mode)
    if params.get("timeout") is None:
        scope.report(
            "PS404",
            "a gang that never becomes whole waits for ever",
            node.span,
            label="no `timeout`",
            help="add `timeout = 5m` and say what happens then: `on_timeout = requeue`",
        )
    if by is None or minimum is None or scope.error_count() > errors:
        return None
    return p.Gang(
        by=fold(by),
        minimum=minimum,
        maximum=maximum,
        timeout=timeout,
        on_timeout=p.OnTimeout(cast(str, on_timeout)),
        mode=p.GangMode(cast(str, mode)),
        topology=topology,
        span=node.span,
    )


def _topology(scope: Scope, params: Params, mode: str | None) -> str | None:
    """The key of a label, None where there is none or after a finding."""
    node = params.get("topology")
    if node is None:
        return None
    found = None if isinstance(node, s.MapLit) else read_as(scope, node, CONSTANT, t.STRING)
    if not isinstance(found, e.Const) or not isinstance(found.value, str) or not found.value:
        if found is not None or isinstance(node, s.MapLit):
            scope.report(
                "PS202",
                "`topology` is the key of a label of nodes",
                node.span,
                help='such as `"topology.kubernetes.io/zone"`',
            )
        return None
    if mode == p.GangMode.GATE.value:
        scope.report(
            "PS235",
            "members of a gang in mode `gate` go one by one, and cannot keep together",
            node.span,
            label="needs `mode = whole`",
            help="leave `mode` out: whole is the default",
        )
    return found.value


def _optional_term(scope: Scope, params: Params, name: str, wanted: Type, known: Known) -> e.Expr | None:
    value = params.get(name)
    return None if value is None else _term(scope, value, name, wanted, known)


def _term(
    scope: Scope, node: s.Expression | s.MapLit, name: str, wanted: Type, known: Known
) -> e.Expr | None:
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"`{name}` is {describe(wanted)}", node.span)
        return None
    found = read_as(scope, node, GANG, wanted)
    if found is None or not no_holes(scope, found, known):
        return None
    folded = fold(found)
    if isinstance(folded, e.Const) and cast(int, folded.value) < 1:
        scope.report("PS208", f"`{name}` must be greater than zero", found.span)
        return None
    return folded


def preemption(scope: Scope, node: s.Preemption) -> p.Preemption | None:
    if node.params is None:
        return p.Preemption("never", None)
    params = params_of(scope, "`preemption`", node.span, node.params, ("victims",))
    victims = params.required("victims", "own")
    match victims:
        case None:
            return None
        case s.Bare(name="own"):
            return p.Preemption("own", None)
        case s.Bare(name="any"):
            return p.Preemption("any", None)
        case s.MapLit():
            scope.report("PS202", "`victims` is `own`, `any` or a condition", victims.span)
            return None
    found = read_condition(scope, victims, VICTIMS)
    if found is None or not no_holes(scope, found):
        return None
    return p.Preemption("where", fold(found))
