"""Typed expressions: what the checker makes of syntax, and what `plan` and `oracle` give a meaning to.

**Missing.** Besides its value an expression can be *missing*: an absent optional label, a metric without a fresh
sample. Everything strict is missing when an operand is; `And`, `Or` and `Not` follow Kleene's three-valued logic
(`False and missing` is False, `True or missing` is True); `Has` is never missing; `Else` replaces. What a rule does
with a condition that is missing stands in the rule. The checker sees to it that nothing else can be missing.

**Numbers.** Whole numbers are int64 and saturate at its ends instead of wrapping; where any operand of an operation or
a comparison is held as float64 (`Expr.floating`), all of them are converted to float64 first and the result is clamped
to the finite range. Division by zero, `log` of what is not positive and `sqrt` of what is negative are missing; the
checker demands an `else`. Division of whole numbers is only written as a ratio (`T / T`) and so is float64; `T / int`
rounds toward minus infinity.

All nodes compare by value, spans excepted, so equal sub-expressions of different rules can be evaluated once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Literal, TypeVar

from policysched.lang.types.kinds import Type
from policysched.text import Span


class Stage(Flag):
    """What a value depends on; the empty flag is a constant."""

    CONSTANT = 0
    POD = auto()  # the pod and its namespace
    NODE = auto()  # the node alone: changes with the node or a sample
    CANDIDATES = auto()  # the set of nodes that the filters left
    TIME = auto()  # the clock
    NAMESPACE_SHARES = auto()  # what namespaces hold: changes with every placement
    CLUSTER_PODS = auto()  # which pods there are: changes with every one that comes, goes or is edited


VOLATILE_STAGES = Stage.NAMESPACE_SHARES | Stage.CLUSTER_PODS
"""What changes although neither the pod nor a node does, and is the same for all nodes."""

Owner = Literal["pod", "node", "namespace", "victim", "other"]
"""`other` is the counted pod in `count(pods on node where ...)` and `count(pods where ...)`; `victim` the one that preemption would evict."""


class _CachedHash:
    """Knows its hash once it was asked: equal parts are looked up again and again, and a hash looks at everything inside."""

    __slots__ = ("_cached_hash",)
    _cached_hash: int


Node = TypeVar("Node", bound=_CachedHash)


def _cache_hash(made: type[Node]) -> type[Node]:
    worked_out = made.__hash__

    def remembered(self: Node) -> int:
        try:
            return self._cached_hash
        except AttributeError:
            found = worked_out(self)
            object.__setattr__(self, "_cached_hash", found)
            return found

    made.__hash__ = remembered  # type: ignore[assignment]
    return made


@dataclass(frozen=True, slots=True)
class Const:
    """A literal or a folded `let`. `value` is held as `type` says; a list is a tuple of held values."""

    value: bool | int | float | str | tuple[int | float | str, ...]
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Attr:
    """A built-in attribute by its owner and path, such as `("requests", "nvidia.com/gpu")` of a pod."""

    owner: Owner
    path: tuple[str, ...]
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class InputRef:
    """`owner` is `other` or `victim` where an input of the pod is asked of another pod."""

    name: str
    type: Type
    stage: Stage  # POD, or NODE for an input of the node; CONSTANT where it is of another pod
    span: Span = field(compare=False)
    owner: Owner = "pod"


@dataclass(frozen=True, slots=True)
class MetricRef:
    name: str
    type: Type
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class GangTraffic(_CachedHash):
    """What the metric `name` has between the pod and the members of its gang that are on the node; with `topology_key` on all
    nodes that have the same value under this label. 0 where the pod is in no gang.

    A member is a pod of the same policy and namespace that is placed and not terminating, and for which `gang_key` (the gang's) gives the same.
    `pod_key` is what the samples call a pod. Between two pods is what the samples have of them in both directions; where they know
    both and have no series of the two, 0; where they lack one of them, `assume`, and without it 0 for a member and missing
    for the pod itself. Missing as well: without a fresh poll, where the samples of one of the pairs cannot be used, and on nodes
    without the label. Floats are summed as if exactly (`lang.ir.arithmetic.exact_total`), for members have no order.

    `gang_key` is None only in a `let` that is being declared, before it is known what a gang is.
    """

    name: str
    pod_key: "Expr"
    gang_key: "Expr | None"
    assume: "Expr | None"
    topology_key: str | None
    type: Type
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class StateRef(_CachedHash):
    """What a `state` has for this pod's key on this node; `start` where nothing was seen. Missing where the key is.
    `is_cluster_wide`: it is the same on all nodes."""

    name: str
    key: "Expr"
    start: float
    is_cluster_wide: bool
    type: Type
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Has(_CachedHash):
    """True where the target (an optional input, a label, a metric) is there."""

    target: "Expr"
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Not(_CachedHash):
    operand: "Expr"
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class And(_CachedHash):
    items: tuple["Expr", ...]
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Or(_CachedHash):
    items: tuple["Expr", ...]
    span: Span = field(compare=False)


CompareOp = Literal["==", "!=", "<", "<=", ">", ">="]


@_cache_hash
@dataclass(frozen=True, slots=True)
class Compare(_CachedHash):
    """Both sides of one dimension. Strings and booleans only by `==` and `!=`."""

    op: CompareOp
    left: "Expr"
    right: "Expr"
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class In(_CachedHash):
    """Whether the item is one of the constants (`options.value` is a tuple), or in a list attribute."""

    item: "Expr"
    options: "Expr"
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Arith(_CachedHash):
    """`type` is the dimension of the result; `floating` says that the result is held as float64, whatever the type
    (`cpu * ratio` is a cpu in float64)."""

    op: Literal["+", "-", "*", "/"]
    left: "Expr"
    right: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Negate(_CachedHash):
    operand: "Expr"
    span: Span = field(compare=False)


Function = Literal[
    "min", "max", "clamp", "abs",
    "floor", "ceil", "round", "round_half_up", "round_half_away", "trunc",
    "sqrt", "log", "exp", "normal_cdf", "beta_cdf",
]  # fmt: skip


@_cache_hash
@dataclass(frozen=True, slots=True)
class Call(_CachedHash):
    """`floor`, `ceil`, `trunc`, `round` (half to even), `round_half_up` (toward plus infinity) and `round_half_away` (from
    zero) give an int64, saturating; `sqrt log exp` and the distributions float64."""

    function: Function
    args: tuple["Expr", ...]
    type: Type
    floating: bool
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Rank(_CachedHash):
    """The place (from 0) of a string in a list; what is not in it comes behind all: `len(order)`."""

    item: "Expr"
    order: tuple[str, ...]
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Else(_CachedHash):
    value: "Expr"
    fallback: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class If(_CachedHash):
    """`then` where the condition is True, `otherwise` where it is False; missing where the condition is. Of the two only
    the one that is chosen matters."""

    condition: "Expr"
    then: "Expr"
    otherwise: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class CountPodsOnNode(_CachedHash):
    """How many pods placed on the node satisfy `where` (owner `other`); a missing answer does not count."""

    where: "Expr | None"
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class CountPodsInCluster(_CachedHash):
    """How many pods of the cluster satisfy `where` (owner `other`), of whatever scheduler, on a node or on none: all that have
    not finished and are not terminating, or those as well (`include_finished`), as long as the API server has them. The pod that is being
    decided is one of them. A missing answer does not count."""

    where: "Expr"
    include_finished: bool
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class SumPodsOnNode(_CachedHash):
    """The sum of `value` (of owner `other`) over the pods placed on the node: what they were promised of a resource. Each
    pod counts in whole units of the type, rounded up, and never less than 0; a missing value counts 0. Saturates."""

    value: "Expr"
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ElementField:
    """A field of the list's element that is being looked at, by its place in the record."""

    index: int
    name: str
    type: Type
    span: Span = field(compare=False)


ListFoldFunction = Literal["count", "any", "sum", "min", "max"]


@_cache_hash
@dataclass(frozen=True, slots=True)
class ListFold(_CachedHash):
    """Over the elements of a list for which `where` is True (None: all of them). Missing where the list is.

    `count` is how many, `any` whether there is one. The others look at `value`, and pass over elements where it is
    missing: `sum` adds in the order of the list (whole numbers exactly, then held to int64; float64 from 0 on, then held
    to the finite), nothing is 0; `min` and `max` of nothing are missing.
    """

    function: ListFoldFunction
    items: "InputRef"
    value: "Expr | None"
    where: "Expr | None"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class RecoveryCondition:
    """`require METRIC op LIMIT recover MARK for DURATION`: the metric passes while `value op limit`; a node where it did not
    is held until `value op mark` was true for `recover_for_ns`. Limit and mark in the metric's held unit."""

    metric: str
    op: Literal["<", "<=", ">", ">="]
    limit: int | float
    recover_at: int | float
    recover_for_ns: int


@dataclass(frozen=True, slots=True)
class NotRecovered:
    """Whether the node has crossed the watch's limit and not recovered yet; missing where the metric is. What is known of
    it comes with the samples (`MetricSamples.recovering_until_ns`)."""

    condition: RecoveryCondition
    span: Span = field(compare=False)


@_cache_hash
@dataclass(frozen=True, slots=True)
class Aggregate(_CachedHash):
    """One number of the body's values at all candidates (the nodes that pass the filters). A candidate where the body is
    missing does not count; where none counts, the aggregate is missing. `stddev` is that of the whole population.

    `body_after_placement` None: the same for all. Else the value as seen from a candidate is that with the pod on it: the body there as if one
    more such pod were placed (`lang.ir.after_placement`), everywhere else as it is; `body_after_placement` says the same as an expression.

    An aggregate in the body of a plain one is as the candidate sees it whose value is taken. In the body of a placed one it is the same number
    at all nodes: that which the candidate sees with the pod on it, brought onto the steps of `lang.ir.aggregates` where candidates see
    many. At most one such number moves with the candidate (the checker sees to it).

    `mean`, `stddev` and what is held as float64 are rounded as `lang.ir.aggregates` says; a sum of whole numbers is exact
    and saturates.
    """

    function: Literal["sum", "mean", "max", "min", "stddev"]
    body: "Expr"
    body_after_placement: "Expr | None"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Now:
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class WeeklyWindow:
    """Whether the clock is inside a weekly window. Minutes count from Monday 00:00 local time; `minute_ranges` are half open
    and sorted. The zone's rules come from `zoneinfo`."""

    minute_ranges: tuple[tuple[int, int], ...]
    time_zone: str
    span: Span = field(compare=False)


Expr = (
    Const
    | Attr
    | InputRef
    | MetricRef
    | GangTraffic
    | StateRef
    | Has
    | Not
    | And
    | Or
    | Compare
    | In
    | Arith
    | Negate
    | Call
    | Rank
    | Else
    | If
    | CountPodsOnNode
    | CountPodsInCluster
    | SumPodsOnNode
    | ElementField
    | ListFold
    | Aggregate
    | NotRecovered
    | Now
    | WeeklyWindow
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands, in the order of the text."""
    match expr:
        case Has(target=one) | Not(operand=one) | Negate(operand=one) | Rank(item=one):
            return (one,)
        case And(items=items) | Or(items=items):
            return items
        case Compare(left=left, right=right) | Arith(left=left, right=right):
            return (left, right)
        case In(item=item, options=options):
            return (item, options)
        case Call(args=args):
            return args
        case Else(value=value, fallback=fallback):
            return (value, fallback)
        case If(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case Aggregate(body=body, body_after_placement=placed):
            return (body,) if placed is None else (body, placed)
        case CountPodsOnNode(where=where):
            return () if where is None else (where,)
        case CountPodsInCluster(where=where):
            return (where,)
        case SumPodsOnNode(value=value):
            return (value,)
        case StateRef(key=key):
            return (key,)
        case GangTraffic(pod_key=key, gang_key=by, assume=assume):
            return (key, *(part for part in (by, assume) if part is not None))
        case ListFold(items=items, value=value, where=where):
            return (items, *(part for part in (value, where) if part is not None))
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it, outermost first. What stands in several places as one object comes once, where it is first:
    what a name stands for is one, and a long expression of names of names would be walked a thousand times over."""
    pending, seen = [expr], {id(expr)}
    while pending:
        one = pending.pop()
        yield one
        for child in reversed(children(one)):
            if id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def depends_on_element(expr: Expr) -> bool:
    """Whether the value is another for each element of the list around it."""
    pending, seen = [expr], {id(expr)}
    while pending:
        one = pending.pop()
        if isinstance(one, ElementField):
            return True
        if not isinstance(one, ListFold):
            for child in children(one):
                if id(child) not in seen:
                    seen.add(id(child))
                    pending.append(child)
    return False


def type_of(expr: Expr) -> Type:
    """The type that the checker gave, for the nodes that do not carry one as well."""
    from policysched.lang.types import kinds

    match expr:
        case (
            Const()
            | Attr()
            | InputRef()
            | MetricRef()
            | GangTraffic()
            | StateRef()
            | Arith()
            | Call()
            | Else()
            | If()
            | ElementField()
            | ListFold()
            | SumPodsOnNode()
            | Aggregate()
        ):
            return expr.type
        case Negate(operand=operand):
            return type_of(operand)
        case Rank() | CountPodsOnNode() | CountPodsInCluster():
            return kinds.INT
        case Now():
            return kinds.TIMESTAMP
        case _:
            return kinds.BOOL


def is_floating(expr: Expr) -> bool:
    """Whether the value is held as float64."""
    match expr:
        case Arith() | Call() | Else() | If() | ListFold() | Aggregate():
            return expr.floating
        case Negate(operand=operand):
            return is_floating(operand)
        case _:
            return type_of(expr).is_float64


def depends_on_node(expr: Expr) -> bool:
    """Whether `Stage.NODE` is in its stage, found out as soon as can be."""
    for one in walk(expr):
        match one:
            case (
                Attr(owner="node")
                | MetricRef()
                | GangTraffic()
                | StateRef()
                | CountPodsOnNode()
                | SumPodsOnNode()
                | NotRecovered()
                | Aggregate()
            ):
                return True
            case InputRef(stage=stage) if Stage.NODE in stage:
                return True
            case _:
                pass
    return False


def stage_of(expr: Expr) -> Stage:
    """What the value depends on: the union over everything that it reads."""
    stage = Stage.CONSTANT
    for one in walk(expr):
        match one:
            case Attr(owner="namespace", path=("share", _)):
                stage |= Stage.POD | Stage.NAMESPACE_SHARES
            case Attr(owner="pod" | "namespace", path=path):
                stage |= Stage.POD | (Stage.TIME if path == ("waited",) else Stage.CONSTANT)
            case (
                Attr(owner="node")
                | MetricRef()
                | StateRef()
                | CountPodsOnNode()
                | SumPodsOnNode()
                | NotRecovered()
            ):
                stage |= Stage.NODE
            case GangTraffic():
                stage |= Stage.POD | Stage.NODE
            case CountPodsInCluster():
                stage |= Stage.POD | Stage.CLUSTER_PODS
            case InputRef():
                stage |= one.stage
            case Aggregate():
                stage |= Stage.NODE | Stage.CANDIDATES
            case Now() | WeeklyWindow():
                stage |= Stage.TIME
            case _:
                pass
    return stage
