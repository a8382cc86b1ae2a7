"""Expressions as Python functions of one pod (and, where one is looked at by itself, one node).

What depends on the pod only is worked out once a pod and never becomes an array: order, gangs, layers, most `when`s, the
right-hand side of most comparisons. The words of an explanation are filled in with these, too. A missing value is None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from operator import attrgetter
from typing import Protocol, assert_never
from zoneinfo import ZoneInfo

from policysched.cluster.objects import EVERYWHERE, Namespace, Node, Pod, PodFacts, Samples, StateRow
from policysched.cluster.shares import ShareOf, Shares
from policysched.cluster.usage import Usage
from policysched.lang import expr as e
from policysched.lang.arithmetic import (
    Number,
    arithmetic,
    call,
    compare,
    finite,
    negate,
    saturate,
    whole_total,
)
from policysched.lang.program import Input, Metric
from policysched.lang.records import NoValue, RecordValue, held_value
from policysched.text import Span

Held = bool | int | float | str | tuple[int | float | str, ...] | tuple[RecordValue, ...]
Value = Held | None

NOTHING_SEEN = StateRow({})
_NO_FACTS = PodFacts(queued_ns=0, attempts=0)
_NOBODY_HOLDS = Shares()


@dataclass(slots=True)
class Seen:
    """What a function may look at. Without a node only what depends on the pod can be asked. `other` is the pod that is
    being counted, or the victim that preemption considers, `element` that of the list which is being looked through."""

    pod: Pod
    namespace: Namespace
    facts: PodFacts = _NO_FACTS
    now_ns: int = 0
    samples: Samples = field(default_factory=dict)
    node: Node | None = None
    usage: Usage | None = None
    other: Pod | None = None
    shares: ShareOf = _NOBODY_HOLDS
    element: RecordValue | None = None
    everybody: "Everybody | None" = None

    def on(self, node: Node, usage: Usage) -> "Seen":
        return replace(self, node=node, usage=usage)

    def counting(self, other: Pod) -> "Seen":
        return Seen(
            self.pod,
            self.namespace,
            self.facts,
            self.now_ns,
            self.samples,
            self.node,
            self.usage,
            other,
            self.shares,
        )


Function = Callable[[Seen], Value]


class Everybody(Protocol):
    """The pods of the cluster, as far as they are counted."""

    def count(self, expr: e.CountAnywhere, program: "Declarations", seen: Seen) -> int:
        """How many there are for which the condition holds."""
        ...


class Declarations(Protocol):
    """What names in expressions stand for."""

    @property
    def inputs(self) -> Mapping[str, Input]: ...

    @property
    def metrics(self) -> Mapping[str, Metric]: ...


def compiled(expr: e.Expr, program: Declarations) -> Function:
    """The function that gives the expression's value."""

    def function(one: e.Expr) -> Function:
        return compiled(one, program)

    match expr:
        case e.Const(value=value):
            return lambda seen: value
        case e.Attr(owner=owner, path=path):
            return attribute(owner, path)
        case e.InputRef(name=name, of=of):
            return input_value(program.inputs[name], of)
        case e.MetricRef(name=name):
            return _metric(program.metrics[name])
        case e.Has(target=target):
            found = function(target)
            return lambda seen: found(seen) is not None
        case e.Not(operand=operand):
            return _not(function(operand))
        case e.And(items=items):
            return _junction([function(item) for item in items], decisive=False)
        case e.Or(items=items):
            return _junction([function(item) for item in items], decisive=True)
        case e.Compare():
            return _compare(expr, function(expr.left), function(expr.right))
        case e.In():
            return _in(expr, function(expr.item), function(expr.options))
        case e.Arith():
            return _arith(expr, function(expr.left), function(expr.right))
        case e.Negate(operand=operand):
            return _negate(function(operand))
        case e.Call():
            return _call(expr, [function(arg) for arg in expr.args])
        case e.Rank(item=item, order=order):
            return _rank(function(item), order)
        case e.Else():
            return _else(expr, function(expr.value), function(expr.fallback))
        case e.If():
            return _if(expr, function(expr.condition), function(expr.then), function(expr.otherwise))
        case e.CountPods(where=where):
            return _count(None if where is None else function(where))
        case e.CountAnywhere():
            return _count_anywhere(expr, program)
        case e.SumPods():
            return _sum(expr, function(expr.value))
        case e.Element(index=index):
            return _field(index)
        case e.Fold():
            return _fold(
                expr,
                function(expr.items),
                None if expr.where is None else function(expr.where),
                None if expr.value is None else function(expr.value),
            )
        case e.StateRef():
            return _state(expr, state_row(expr, program))
        case e.Held(watch=watch):
            return _held(watch, function(_watched(watch, program, expr.span)))
        case e.TrafficTo():
            raise AssertionError(f"`{expr.span.text}` is asked of one node, and the members may be on any")
        case e.Aggregate():
            raise AssertionError(f"`{expr.span.text}` is asked of a pod alone")
        case e.Now():
            return lambda seen: seen.now_ns
        case e.Window(spans=spans, zone=zone):
            return _window(spans, zone)
        case _:
            assert_never(expr)


def state_row(expr: e.StateRef, program: Declarations) -> Callable[[Seen], StateRow | None]:
    """What the state has for the pod's key, on whichever node; None where the key is missing."""
    key_of, name = compiled(expr.key, program), expr.name

    def row(seen: Seen) -> StateRow | None:
        key = key_of(seen)
        if key is None:
            return None
        table = seen.samples.get(name)
        return NOTHING_SEEN if table is None else table.rows.get(str(key), NOTHING_SEEN)

    return row


def _state(expr: e.StateRef, row_of: Callable[[Seen], StateRow | None]) -> Function:
    def value(seen: Seen) -> Value:
        row = row_of(seen)
        assert seen.node is not None, f"{expr.name} is read of a node"
        node = EVERYWHERE if expr.everywhere else seen.node.name
        return row.values.get(node, expr.start) if row is not None else None

    return value


# ── leaves ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def attribute(owner: e.Owner, path: tuple[str, ...]) -> Function:
    match owner:
        case "pod":
            return _of_pod(path, lambda seen: seen.pod)
        case "other" | "victim":
            return _of_pod(path, _counted)
        case "node":
            return _of_node(path)
        case "namespace":
            return _of_namespace(path)


def _counted(seen: Seen) -> Pod:
    assert seen.other is not None, "no other pod is being looked at"
    return seen.other


_POD_FIELDS: Mapping[str, str] = {
    "name": "name",
    "namespace": "namespace",
    "uid": "uid",
    "priority": "priority",
    "qos": "qos",
    "created": "created_ns",
    "deadline": "deadline_ns",
    "scheduler": "scheduler",
    "service_account": "service_account",
    "images": "images",
}


def _of_pod(path: tuple[str, ...], whose: Callable[[Seen], Pod]) -> Function:
    match path:
        case ("labels" | "annotations" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(whose(seen)).get(key)
        case ("requests", "pods"):
            return lambda seen: 1
        case ("requests" | "limits" as name, resource):
            amounts = attrgetter(name)
            return lambda seen: amounts(whose(seen)).get(resource, 0)
        case ("owner", "kind" | "name" as part):
            owner = attrgetter(f"owner_{part}")
            return lambda seen: owner(whose(seen))
        case ("queued",):
            return lambda seen: seen.facts.queued_ns
        case ("attempts",):
            return lambda seen: seen.facts.attempts
        case ("waited",):
            return lambda seen: saturate(seen.now_ns - seen.facts.queued_ns)
        case ("tolerations",):
            return lambda seen: tuple(one.key for one in whose(seen).tolerations)
        case (name,):
            plain = attrgetter(_POD_FIELDS[name])
            return lambda seen: plain(whose(seen))
        case _:
            raise AssertionError(f"a pod has no attribute {path}")


def _of_node(path: tuple[str, ...]) -> Function:
    def node(seen: Seen) -> Node:
        assert seen.node is not None, f"node.{'.'.join(path)} is asked where there is no node"
        return seen.node

    def usage(seen: Seen) -> Usage:
        assert seen.usage is not None, f"node.{'.'.join(path)} is asked where there is no node"
        return seen.usage

    match path:
        case ("labels" | "annotations" | "conditions" | "objects" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(node(seen)).get(key)
        case ("allocatable", resource):
            return lambda seen: node(seen).allocatable.get(resource, 0)
        case ("pods",) | ("requested", "pods"):
            return lambda seen: len(usage(seen).pods)
        case ("requested", resource):
            return lambda seen: usage(seen).requested.get(resource, 0)
        case ("free", resource):
            requested = _of_node(("requested", resource))
            return lambda seen: saturate(
                node(seen).allocatable.get(resource, 0) - int(_number(requested(seen)))
            )
        case ("taints",):
            return lambda seen: tuple(taint.key for taint in node(seen).taints)
        case ("images",):
            return lambda seen: tuple(node(seen).images)
        case ("created",):
            return lambda seen: node(seen).created_ns
        case ("name",):
            return lambda seen: node(seen).name
        case ("ready",):
            return lambda seen: node(seen).ready
        case _:
            raise AssertionError(f"a node has no attribute {path}")


def _of_namespace(path: tuple[str, ...]) -> Function:
    match path:
        case ("labels" | "annotations" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(seen.namespace).get(key)
        case ("name",):
            return lambda seen: seen.namespace.name
        case ("share", resource):
            part = attrgetter(resource)
            return lambda seen: float(part(seen.shares.of(seen.namespace.name)))
        case _:
            raise AssertionError(f"a namespace has no attribute {path}")


def input_text(declared: Input, of: e.Owner = "pod") -> Callable[[Seen], str | None]:
    """The text that an input reads, None where there is none. An input of the pod can be read of another one."""
    owner = attrgetter(f"{declared.owner if of == 'pod' else 'other'}.{declared.source_map}")
    key = declared.source_key
    return (lambda seen: str(owner(seen))) if key is None else (lambda seen: owner(seen).get(key))


def input_value(declared: Input, of: e.Owner = "pod") -> Function:
    """The value for expressions. Where the input refuses its pod or node there is none."""
    text_of, default = input_text(declared, of), None if declared.default is None else declared.default.value

    def value(seen: Seen) -> Value:
        text = text_of(seen)
        if text is not None:
            found = held_value(text, declared.type, declared.unit, declared.at)
            if not isinstance(found, NoValue):
                return found
            if found is NoValue.INVALID and declared.invalid_text is not None:
                return None
        return default

    return value


def _metric(metric: Metric) -> Function:
    name, stale_ns, floating = metric.name, metric.stale_ns, metric.type.held_as_float

    def value(seen: Seen) -> Value:
        assert seen.node is not None, f"metric {name} is asked where there is no node"
        polled = seen.samples.get(name)
        sample = None if polled is None else polled.values.get(seen.node.name)
        if polled is None or sample is None:
            return None
        if seen.now_ns - min(sample.at_ns, polled.polled_ns) > stale_ns:
            return None
        held = sample.value if floating else int(sample.value)
        return arithmetic("+", held, polled.assumed.get(seen.node.name, 0), floating=floating)

    return value


def _field(index: int) -> Function:
    def value(seen: Seen) -> Value:
        assert seen.element is not None, "no list is being looked through"
        return seen.element[index]

    return value


def _watched(watch: e.Watch, program: Declarations, span: Span) -> e.MetricRef:
    return e.MetricRef(watch.metric, program.metrics[watch.metric].type, span)


def _held(watch: e.Watch, metric: Function) -> Function:
    def value(seen: Seen) -> Value:
        if metric(seen) is None:
            return None
        assert seen.node is not None, f"metric {watch.metric} is asked where there is no node"
        until_ns = seen.samples[watch.metric].held.get(watch, {}).get(seen.node.name)
        return until_ns is not None and seen.now_ns < until_ns

    return value


# ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _not(operand: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = operand(seen)
        return None if found is None else not found

    return value


def _junction(items: list[Function], *, decisive: bool) -> Function:
    """Kleene: one decisive item settles it, whatever else is missing."""

    def value(seen: Seen) -> Value:
        missing = False
        for item in items:
            found = item(seen)
            if found is None:
                missing = True
            elif found is decisive:
                return decisive
        return None if missing else not decisive

    return value


def _compare(expr: e.Compare, left: Function, right: Function) -> Function:
    floating = e.is_floating(expr.left) or e.is_floating(expr.right)

    def value(seen: Seen) -> Value:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        assert not isinstance(one, tuple) and not isinstance(two, tuple), f"{one!r} {expr.op} {two!r}"
        return compare(expr.op, float(one) if floating else one, two)

    return value


def _in(expr: e.In, item: Function, options: Function) -> Function:
    element = e.type_of(expr.options).element
    floating = e.is_floating(expr.item) or (element is not None and element.held_as_float)

    def value(seen: Seen) -> Value:
        one, among = item(seen), options(seen)
        if one is None or among is None:
            return None
        assert isinstance(among, tuple) and not isinstance(one, tuple), f"{one!r} in {among!r}"
        return (
            float(one) in [float(option) for option in among if isinstance(option, int | float)]
            if floating
            else one in among
        )

    return value


def _arith(expr: e.Arith, left: Function, right: Function) -> Function:
    def value(seen: Seen) -> Value:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        return arithmetic(expr.op, _number(one), _number(two), floating=expr.floating)

    return value


def _negate(operand: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = operand(seen)
        return None if found is None else negate(_number(found))

    return value


def _call(expr: e.Call, args: list[Function]) -> Function:
    def value(seen: Seen) -> Value:
        numbers = []
        for arg in args:
            found = arg(seen)
            if found is None:
                return None
            numbers.append(_number(found))
        return call(expr.function, numbers, floating=expr.floating)

    return value


def _rank(item: Function, order: tuple[str, ...]) -> Function:
    places = {text: place for place, text in reversed(list(enumerate(order)))}

    def value(seen: Seen) -> Value:
        found = item(seen)
        return None if found is None else places.get(str(found), len(order))

    return value


def _else(expr: e.Else, wanted: Function, fallback: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = wanted(seen)
        if found is None:
            found = fallback(seen)
        return float(_number(found)) if expr.floating and found is not None else found

    return value


def _if(expr: e.If, condition: Function, then: Function, otherwise: Function) -> Function:
    def value(seen: Seen) -> Value:
        chosen = condition(seen)
        if chosen is None:
            return None
        found = then(seen) if chosen else otherwise(seen)
        return float(_number(found)) if expr.floating and found is not None else found

    return value


def _count(where: Function | None) -> Function:
    def value(seen: Seen) -> Value:
        assert seen.usage is not None, "pods are counted where there is no node"
        if where is None:
            return len(seen.usage.pods)
        return sum(where(seen.counting(other)) is True for other in seen.usage.pods.values())

    return value


def _sum(expr: e.SumPods, amount: Function) -> Function:
    floating = expr.type.held_as_float

    def value(seen: Seen) -> Value:
        assert seen.usage is not None, "requests are summed where there is no node"
        others = seen.usage.pods.values()
        return whole_total((promised(amount, seen.counting(other)) for other in others), floating=floating)

    return value


def promised(amount: Function, seen: Seen) -> int:
    """What the pod that is being counted was promised, in whole units of the amount, never less than 0."""
    found = amount(seen)
    return 0 if found is None else max(0, ceil(_number(found)))


def _count_anywhere(expr: e.CountAnywhere, program: Declarations) -> Function:
    def value(seen: Seen) -> Value:
        assert seen.everybody is not None, f"`{expr.span.text}` is asked where no pods are known"
        return seen.everybody.count(expr, program, seen)

    return value


def _window(spans: tuple[tuple[int, int], ...], zone: str) -> Function:
    place = ZoneInfo(zone)

    def value(seen: Seen) -> Value:
        minute = minute_of_week(seen.now_ns, place)
        return any(start <= minute < end for start, end in spans)

    return value


def minute_of_week(now_ns: int, zone: ZoneInfo) -> int:
    """Minutes since Monday 00:00 of the zone's local time."""
    local = datetime.fromtimestamp(now_ns // 10**9, tz=UTC).astimezone(zone)
    return local.weekday() * 24 * 60 + local.hour * 60 + local.minute


def _number(found: Value) -> int | float:
    assert isinstance(found, int | float), f"{found!r} is not a number"
    return found


# ── lists of records ───────────────────────────────────────────────────────────────────────────────────────────────


def _fold(expr: e.Fold, items: Function, where: Function | None, of_element: Function | None) -> Function:
    def value(seen: Seen) -> Value:
        listed = items(seen)
        if listed is None:
            return None
        assert isinstance(listed, tuple), f"{expr.items.name} is {listed!r}, and no list"
        count, found = 0, list[Number]()
        for element in listed:
            assert isinstance(element, tuple), f"{element!r} is no record"
            inside = replace(seen, element=element)
            if where is not None and where(inside) is not True:
                continue
            count += 1
            one = None if of_element is None else of_element(inside)
            if one is not None:
                assert isinstance(one, int | float), f"{one!r} is no number"
                found.append(one)
        match expr.function:
            case "count":
                return count
            case "any":
                return count > 0
            case "min":
                return min(found, default=None)
            case "max":
                return max(found, default=None)
            case "sum":
                return total(found, floating=expr.floating)

    return value


def total(numbers: Sequence[Number], *, floating: bool) -> Number:
    """As `lang.expr.Fold` says: whole numbers exactly, floats in their order."""
    if not floating:
        return saturate(sum(int(number) for number in numbers))
    added = 0.0
    for number in numbers:
        added += float(number)
    return finite(added)
