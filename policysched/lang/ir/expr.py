"""Typed expressions: the output of the checker and the input of `evaluate` and the reference implementation.

**Missing.** An expression has a value or is *missing*, such as an absent optional label or a metric without a fresh
sample. A strict operation is missing when an operand is. `And`, `Or` and `Not` follow Kleene's three-valued logic
(`False and missing` is False, `True or missing` is True), `Has` is never missing, and `Else` supplies a fallback. A
rule states what it does when its condition is missing; the checker guarantees that nothing else can be missing.

**Numbers.** Integers are int64 and saturate. Where an operand of an operation or comparison is float64 (`is_floating`),
all operands are converted to float64 first and the result is clamped to the finite range. Division by zero, `log` of a
number that is not positive and `sqrt` of a negative number are missing; the checker demands an `else`. Dividing two
values of one dimension gives a float64 ratio; `T / int` rounds toward minus infinity.

Expressions compare by value without their spans, so equal sub-expressions of different rules are evaluated once.
"""

from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Literal

from policysched.lang.ir.cached_hash import CachedHash, cache_hash
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.lang.types.kinds import Type
from policysched.text import Span


class Stage(Flag):
    """When a value can be computed: what it depends on, as a set. The plan computes a POD value once for each pod, a NODE
    value as a column. No flag is a constant."""

    CONSTANT = 0
    POD = auto()  # the pod and its namespace
    NODE = auto()  # the node: changes with the node or a sample
    CANDIDATES = auto()  # the set of feasible nodes
    TIME = auto()  # the clock
    NAMESPACE_SHARES = auto()  # resources held by namespaces: changes with every placement
    CLUSTER_PODS = auto()  # the pods of the cluster: changes with every pod event


VOLATILE_STAGES = Stage.NAMESPACE_SHARES | Stage.CLUSTER_PODS
"""Stages that change although neither the pod nor a node does; their values are the same for all nodes."""

Owner = Literal["pod", "node", "namespace", "victim", "other"]
"""`other` is the counted pod in `count(pods ... where ...)` and `sum(... over pods ...)`, `victim` the pod that preemption would evict."""


@dataclass(frozen=True, slots=True)
class Const:
    """A literal or a folded `let`. `value` is in the unit of `type`; a list is a tuple."""

    value: bool | int | float | str | tuple[int | float | str, ...]
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Attr:
    """A built-in attribute by owner and path, such as `("requests", "nvidia.com/gpu")` of a pod."""

    owner: Owner
    path: tuple[str, ...]
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class InputRef:
    """`owner` is `other` or `victim` where the input of the pod is read from another pod. `is_long_json`: as of the input."""

    name: str
    type: Type
    stage: Stage  # POD, or NODE for an input of the node; CONSTANT for one of another pod
    span: Span = field(compare=False)
    owner: Owner = "pod"
    is_long_json: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class MetricRef:
    name: str
    type: Type
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class GangTraffic(CachedHash):
    """The sum of the pair metric `name` between the pod and the members of its gang on the node, or with `topology_key`
    on all nodes with the same value of that label. 0 where the pod is in no gang.

    A member is a placed pod of the same policy and namespace that is not terminating and has the same `gang_key`.
    `pod_key` identifies a pod in the samples. The value of two pods is the sum of both directions. It is 0 where the
    samples know both pods but have no series of the two. Where they lack one of the pods it is `assume`; without
    `assume` it is 0 for a member and missing for the pod itself. Also missing: without a fresh poll, where the samples
    of a pair are invalid, and on nodes without the label. Floats are summed independently of the order
    (`lang.ir.arithmetic.exact_total`), since members are unordered.

    `gang_key` is None only while a `let` is checked, before the `gang` statement is known.
    """

    name: str
    pod_key: "Expr"
    gang_key: "Expr | None"
    assume: "Expr | None"
    topology_key: str | None
    type: Type
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class StateRef(CachedHash):
    """The value of a `state` for this pod's key on this node; `start` before the first observation. Missing where the
    key is. `is_cluster_wide`: the same on all nodes. `decays`: it returns to `start` as time passes
    (`lang.ir.decay`)."""

    name: str
    key: "Expr"
    start: float
    is_cluster_wide: bool
    decays: bool
    type: Type
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Has(CachedHash):
    """True where the target (an optional input, a label, a metric) is not missing."""

    target: "Expr"
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Not(CachedHash):
    operand: "Expr"
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class And(CachedHash):
    items: tuple["Expr", ...]
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Or(CachedHash):
    items: tuple["Expr", ...]
    span: Span = field(compare=False)


CompareOp = Literal["==", "!=", "<", "<=", ">", ">="]


@cache_hash
@dataclass(frozen=True, slots=True)
class Compare(CachedHash):
    """Both sides have one dimension. Strings and booleans are compared only by `==` and `!=`."""

    op: CompareOp
    left: "Expr"
    right: "Expr"
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class In(CachedHash):
    """Whether the item is one of the constants (`options.value` is a tuple) or in a list attribute."""

    item: "Expr"
    options: "Expr"
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Arith(CachedHash):
    """`type` is the dimension of the result; `floating`: the result is float64, whatever the type (`cpu * ratio` is a
    cpu in float64)."""

    op: Literal["+", "-", "*", "/"]
    left: "Expr"
    right: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Negate(CachedHash):
    operand: "Expr"
    span: Span = field(compare=False)


Function = Literal[
    "min", "max", "clamp", "abs",
    "floor", "ceil", "round", "round_half_up", "round_half_away", "trunc",
    "sqrt", "log", "exp", "normal_cdf", "beta_cdf",
]  # fmt: skip


@cache_hash
@dataclass(frozen=True, slots=True)
class Call(CachedHash):
    """`floor`, `ceil`, `trunc`, `round` (half to even), `round_half_up` (toward plus infinity) and `round_half_away`
    (from zero) return a saturated int64; `sqrt`, `log`, `exp` and the distributions float64."""

    function: Function
    args: tuple["Expr", ...]
    type: Type
    floating: bool
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Rank(CachedHash):
    """`rank(item, [order])`: the index (from 0) of a string in a list; `len(order)` for a string that is not in it."""

    item: "Expr"
    order: tuple[str, ...]
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class StartsWith(CachedHash):
    """Whether a string begins with `prefix`."""

    text: "Expr"
    prefix: str
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Bucket(CachedHash):
    """`bucket(text, count)`: a number from 0 to `count - 1` that depends on the string alone, evenly spread (`bucket_of`
    in `lang.ir.text_functions`)."""

    text: "Expr"
    count: int
    span: Span = field(compare=False)
    salt: str = ""


@cache_hash
@dataclass(frozen=True, slots=True)
class Split(CachedHash):
    """`split(text, separator)`: the list of the parts of a string (`parts_of` in `lang.ir.text_functions`). Only the
    options of an `In`."""

    text: "Expr"
    separator: str
    type: Type
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Else(CachedHash):
    """`value else fallback`: the fallback where the value is missing. The other branch of an `if` is `If.otherwise`."""

    value: "Expr"
    fallback: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class If(CachedHash):
    """`then` where the condition is True, `otherwise` where it is False, missing where the condition is. The branch
    that is not chosen has no effect."""

    condition: "Expr"
    then: "Expr"
    otherwise: "Expr"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class CountPodsOnNode(CachedHash):
    """The number of pods placed on the node for which `where` (owner `other`) is True."""

    where: "Expr | None"
    span: Span = field(compare=False)


PodScope = Literal["placed", "active", "all"]
"""`placed`: pods on a node of the cluster, as the ledger has them, decided ones included. `active`: pods that have not
finished and are not terminating, placed or not, and the pod being scheduled. `all`: also finished and terminating pods,
until they are deleted from the API server."""


@cache_hash
@dataclass(frozen=True, slots=True)
class PodTotal(CachedHash):
    """The number of pods of any scheduler for which `where` (owner `other`, None: all) is True, or with `value` the sum
    of that value over them, skipping pods where it is missing. Sums do not depend on the order
    (`lang.ir.arithmetic.weighted_total`).

    `topology_key` (scope `placed` only): only the pods on nodes with the same value of that label; missing where the
    node lacks the label. Without it the total is the same for all nodes and never missing.
    """

    scope: PodScope
    topology_key: str | None
    value: "Expr | None"
    where: "Expr | None"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class SumPodsOnNode(CachedHash):
    """The sum of `value` (owner `other`) over the pods placed on the node, such as their requests of a `resource`. Each
    pod counts in whole units of the type, rounded up, at least 0; a missing value counts 0. Saturates."""

    value: "Expr"
    type: Type
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ElementField:
    """A field of the current element of a `ListFold`, by its index in the record."""

    index: int
    name: str
    type: Type
    span: Span = field(compare=False)


ListFoldFunction = Literal["count", "any", "sum", "min", "max"]


@cache_hash
@dataclass(frozen=True, slots=True)
class ListFold(CachedHash):
    """Folds the elements of a list for which `where` is True (None: all). Missing where the list is.

    `count` is their number, `any` whether there is one. The other functions fold `value` and skip elements where it is
    missing. `sum` adds in the order of the list (integers exactly, then saturated; float64 starting at 0, then clamped
    to the finite range) and is 0 for no element; `min` and `max` of no element are missing.
    """

    function: ListFoldFunction
    items: "InputRef"
    value: "Expr | None"
    where: "Expr | None"
    type: Type
    floating: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class NotRecovered:
    """Whether the node has crossed the limit of the condition and has not recovered yet; missing where the metric is.
    The state comes with the samples (`MetricSamples.recovering_until_ns`)."""

    condition: RecoveryCondition
    span: Span = field(compare=False)


@cache_hash
@dataclass(frozen=True, slots=True)
class Aggregate(CachedHash):
    """Aggregates the body over all candidates (the feasible nodes). A candidate where the body is missing is skipped;
    without any value the aggregate is missing. `stddev` is that of the whole population.

    `body_after_placement` None: one number for all candidates. Otherwise each candidate has its own number: the
    aggregate with the pod placed on that candidate. The body is then replaced by `body_after_placement` (see
    `lang.ir.after_placement`) on that node and unchanged on all others.

    An aggregate nested in a plain one is evaluated for the candidate whose body is evaluated. Nested in one with
    `body_after_placement` it is the same number at all nodes: the number of the candidate that the pod is placed on,
    rounded to the steps of `lang.ir.aggregates` where candidates have many different ones. The checker allows at most
    one such nested number to depend on the candidate.

    `mean`, `stddev` and float64 values are rounded as described in `lang.ir.aggregates`; a sum of integers is exact and
    saturates.
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
    """Whether the current time is inside a weekly window. Minutes count from Monday 00:00 local time; `minute_ranges`
    are half open and sorted. `time_zone` is a name for `zoneinfo`."""

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
    | StartsWith
    | Bucket
    | Split
    | Else
    | If
    | CountPodsOnNode
    | PodTotal
    | SumPodsOnNode
    | ElementField
    | ListFold
    | Aggregate
    | NotRecovered
    | Now
    | WeeklyWindow
)
