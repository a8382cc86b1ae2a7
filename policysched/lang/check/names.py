"""Bare names in expressions: what was declared (`let`, `input`, `metric`; of a `let` that depends on something what it stands
for), QoS classes, and `now`."""

from policysched.lang.check.attributes import like_attribute
from policysched.lang.check.reading import Reader, conform
from policysched.lang.check.scope import Declared, Named, declared_at, did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import CONTAINER, Between, Input, Metric, Parameter, State
from policysched.lang.ir.transform import placed_at
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Record, Type
from policysched.text import Label


def bare_name(reader: Reader, node: s.Bare, expected: Type | None) -> e.Expr | None:
    declared = reader.scope.declared.get(node.name)
    if declared is not None:
        declared.used = True
        return _declared(reader, node, declared)
    if node.name in t.QOS_CLASSES:
        return e.Const(t.QOS_CLASSES.index(node.name), t.QOS, node.span)
    if node.name == "now":
        return _now(reader, node)
    if node.name in reader.scope.broken:
        return None
    near = did_you_mean(node.name, [*reader.scope.declared, *(t.QOS_CLASSES if expected == t.QOS else ())])
    related: tuple[Label, ...] = ()
    for name, one in reader.scope.declared.items():
        if near == f"did you mean `{name}`?":
            related = (declared_at(one.span),)
    reader.scope.report(
        "PS210",
        f"unknown name `{node.name}`",
        node.span,
        label="not declared",
        help=near
        or like_attribute(node.name)
        or f'declare it with `let` or `input`, or write `"{node.name}"` if a string is meant',
        related=related,
    )
    return None


def _declared(reader: Reader, node: s.Bare, declared: Declared) -> e.Expr | None:
    match declared.value:
        case None:
            return None
        case e.Const(value=value, type=type_) | Parameter(value=e.Const(value=value, type=type_)):
            return e.Const(value, type_, node.span)
        case Named(of_container=True) if reader.place.element is not CONTAINER:
            return reader.misplaced(node.span, f"`{node.name}`, which is of what feeds a state,", declared)
        case Named() as named:
            return _meant(reader, declared.name, named)
        case Input() as one:
            if one.owner == "node" and not reader.place.node:
                return reader.misplaced(node.span, f"`{node.name}`, an input of the node,", declared)
            if one.owner != "node" and not reader.place.pod:
                return reader.misplaced(node.span, f"`{node.name}`, an input of the {one.owner},", declared)
            type_ = one.type if one.default is None else one.type.present()
            return e.InputRef(one.name, type_, one.stage, node.span)
        case Record():
            reader.scope.report(
                "PS202",
                f"`{node.name}` is a record, and has no value of its own",
                node.span,
                help=f"its fields have, where a list of it is looked through: `any(LIST where {node.name}.FIELD ...)`",
            )
            return None
        case Metric() as one:
            if not reader.place.metrics:
                return reader.misplaced(node.span, f"the metric `{node.name}`", declared)
            if isinstance(one.join, Between):
                return of_two_pods(reader, node, declared)
            return e.MetricRef(one.name, one.type, node.span)
        case State() as one:
            if not (reader.place.metrics and reader.place.pod):
                return reader.misplaced(node.span, f"the state `{node.name}`", declared)
            return e.StateRef(
                one.name, placed_at(one.key, node.span), one.start, one.per == "cluster", one.type, node.span
            )


def _meant(reader: Reader, name: str, named: Named) -> e.Expr | None:
    """What the name stands for, read once for each place in which it stands: an expression of names that are made of names would be
    read a thousand times over, and be as many objects."""
    known = reader.scope.meant
    if (name, reader.place) not in known:
        found = reader.read(named.node, named.type)
        known[name, reader.place] = None if found is None else conform(reader.scope, found, named.type)
    return known[name, reader.place]


def of_two_pods(reader: Reader, node: s.Bare, declared: Declared) -> e.Expr | None:
    """Report it; there is no value."""
    reader.scope.report(
        "PS247",
        f"`{node.name}` is of two pods, and has no value of its own",
        node.span,
        label="between which?",
        help=f"write `traffic_to(gang, {node.name})`: what it has between the pod and the members of its gang on the node",
        related=(declared_at(declared.span),),
    )
    return None


def _now(reader: Reader, node: s.Bare) -> e.Expr | None:
    if not reader.place.time:
        return reader.misplaced(node.span, "the clock")
    return e.Now(node.span)
