"""The syntax tree: what the user wrote, with a span on everything, nothing resolved.

Made by `lang.parse`, printed by `lang.format.printer`, read by `lang.check`. Comments are beside the tree
(`Comment` in `Document`), since no statement means anything different for them.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.text import Span

BinaryOp = Literal["or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier as written: a rule, an input, an enum value."""

    text: str
    span: Span


# ── expressions ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NumberLit:
    """`100m` is digits `100` and suffix `m`; what the suffix means depends on the expected type."""

    digits: str
    suffix: str
    span: Span


@dataclass(frozen=True, slots=True)
class StringLit:
    """`value` has its escapes replaced."""

    value: str
    span: Span


@dataclass(frozen=True, slots=True)
class BoolLit:
    value: bool
    span: Span


@dataclass(frozen=True, slots=True)
class ListLit:
    items: tuple["Expression", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Bare:
    """A declared name or an enum value."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Attribute:
    """`pod.requests["nvidia.com/gpu"]`: owner `pod`, path of names and, where `keyed`, quoted keys."""

    owner: str
    path: tuple["PathPart", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PathPart:
    text: str
    keyed: bool  # written as ["text"]
    span: Span
    named: bool = False  # written as [NAME]: the key is what the constant of that name says


@dataclass(frozen=True, slots=True)
class Unary:
    op: Literal["not", "-"]
    operand: "Expression"
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: "Expression"
    right: "Expression"
    op_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class ElseExpr:
    """`value else fallback`: the fallback stands where the value is missing or outside its domain."""

    value: "Expression"
    fallback: "Expression"
    span: Span


@dataclass(frozen=True, slots=True)
class IfExpr:
    """`if condition then then else otherwise`."""

    condition: "Expression"
    then: "Expression"
    otherwise: "Expression"
    span: Span


@dataclass(frozen=True, slots=True)
class HasExpr:
    target: "Expression"
    span: Span


@dataclass(frozen=True, slots=True)
class CallExpr:
    function: Name
    args: tuple["Expression", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CountExpr:
    """`count(pods on node where E)`, and without `on node` of the whole cluster, with `all` of those that are done as well; inside
    E the counted pod is `other`."""

    where: "Expression | None"
    on_node: bool
    span: Span
    ended: bool = False


@dataclass(frozen=True, slots=True)
class FoldExpr:
    """`sum(card.memory over cards where E)`; without a value `any(cards where E)` and `count(cards where E)`. An element of
    the list is called by the name of its record."""

    function: Name
    value: "Expression | None"
    over: Name
    where: "Expression | None"
    span: Span


@dataclass(frozen=True, slots=True)
class AggregateExpr:
    """`mean of E over nodes`, with `after placing` where the pod is put on each candidate in turn."""

    function: Name
    value: "Expression"
    placing: bool
    span: Span


Expression = (
    NumberLit
    | StringLit
    | BoolLit
    | ListLit
    | Bare
    | Attribute
    | Unary
    | Binary
    | ElseExpr
    | IfExpr
    | HasExpr
    | CallExpr
    | CountExpr
    | FoldExpr
    | AggregateExpr
)


# ── parameters in braces ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MapLit:
    """`{"cpu" = 1, "nvidia.com/gpu" = 5}`."""

    entries: tuple[tuple[StringLit, "Expression"], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """A nested block of parameters, such as `outage { above = 50%  then = disable }`."""

    name: Name
    params: tuple["Param", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Param:
    name: Name
    value: "Expression | MapLit"
    span: Span


# ── clauses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WhenClause:
    condition: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Recover:
    """`recover MARK for DURATION`."""

    mark: Expression
    duration: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class RequireClause:
    """`require E`, or `reject E` where `rejects`."""

    rejects: bool
    condition: Expression
    recover: Recover | None
    span: Span


@dataclass(frozen=True, slots=True)
class MissingClause:
    """`missing reject | pass | worst | neutral | best | NUMBER`."""

    choice: Name | NumberLit
    span: Span


@dataclass(frozen=True, slots=True)
class ScaleupClause:
    """`scaleup no` (or `yes`)."""

    choice: Name
    span: Span


@dataclass(frozen=True, slots=True)
class TextClause:
    """`else "text with {placeholders}"`."""

    text: StringLit
    span: Span


@dataclass(frozen=True, slots=True)
class WeightClause:
    """`weight 5`, or by the name of a constant."""

    weight: NumberLit | Bare
    span: Span


@dataclass(frozen=True, slots=True)
class ValueClause:
    """`lower E`, `higher E` or `prefer E`."""

    direction: Literal["lower", "higher", "prefer"]
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class NormalizeClause:
    """`normalize range(lo, hi) | max | minmax`."""

    method: Name
    args: tuple[Expression, ...]
    span: Span


Clause = (
    WhenClause
    | RequireClause
    | MissingClause
    | ScaleupClause
    | TextClause
    | WeightClause
    | ValueClause
    | NormalizeClause
)


# ── statements ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Header:
    """`policy network-aware version 1` or `library base version 1`."""

    kind: Literal["policy", "library"]
    name: Name
    version: NumberLit
    span: Span


@dataclass(frozen=True, slots=True)
class Include:
    """`include kube_default`, `include kube_default "1.34"` or `include "base.policy"`."""

    target: Name | StringLit
    version: StringLit | None
    span: Span


@dataclass(frozen=True, slots=True)
class TypeRef:
    """`list<string>`: name `list` with an argument."""

    name: Name
    argument: "TypeRef | None"
    span: Span


@dataclass(frozen=True, slots=True)
class Bounds:
    """`range LOW..HIGH`, both included."""

    low: Expression
    high: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Choices:
    """`in [A, B]`: the values that a parameter may have."""

    items: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Parameter:
    """`param NAME: TYPE = DEFAULT range LOW..HIGH`."""

    name: Name
    type: TypeRef
    default: Expression
    limits: Bounds | Choices | None
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    name: Name
    type: TypeRef
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Absent:
    """What an input is where its source is absent: `default E`, `optional` or `required "text"`."""

    kind: Literal["default", "optional", "required"]
    value: Expression | None  # the default, or the text of `required`
    span: Span


@dataclass(frozen=True, slots=True)
class Invalid:
    """What happens where the text is not of the type: `invalid reject "text"` or `invalid default`."""

    kind: Literal["reject", "default"]
    text: StringLit | None
    span: Span


@dataclass(frozen=True, slots=True)
class RecordField:
    """`memory: bytes = "freeMemory" unit "MiB" default 0`; `key` is what JSON calls it, where not by its name."""

    name: Name
    type: TypeRef
    key: StringLit | None
    unit: StringLit | None
    absent: Absent | None
    misplaced: tuple[Invalid | StringLit, ...]  # clauses that a field does not have
    span: Span


@dataclass(frozen=True, slots=True)
class Record:
    """`record card { health: string  memory: bytes }`: of what the elements of a list consist."""

    name: Name
    fields: tuple[RecordField, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Input:
    """`at` is a path into the source, which is then JSON."""

    name: Name
    type: TypeRef
    source: Expression
    at: StringLit | None
    unit: StringLit | None
    absent: Absent | None
    invalid: Invalid | None
    span: Span


@dataclass(frozen=True, slots=True)
class Metric:
    name: Name
    type: TypeRef
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OrderKey:
    value: Expression
    descending: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Queue:
    keys: tuple[OrderKey, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Gang:
    by: Expression
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Outage:
    """`outage { above = 50%  then = disable }`, on its own line for the whole policy."""

    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class State:
    """`state NAME: TYPE { key = E  on = terminated  value = E  keep = 90%  start = 1.0  most = 10000 }`."""

    name: Name
    type: TypeRef
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Resource:
    """`resource NAME { capacity = E, request = E }`."""

    name: Name
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Extender:
    """`extender NAME weight 5 missing neutral`: a service that the settings name is asked after the filters."""

    name: Name
    clauses: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Preemption:
    """`preemption never` (params None) or `preemption { victims = own | any | E }`."""

    params: tuple[Param | ParamBlock, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule of one's own (clauses) or a built-in by its name (no `require`, parameters in braces)."""

    name: Name
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    locked: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Score:
    name: Name
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    locked: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Amend:
    """`amend NAME CLAUSE...`: replaces just those clauses."""

    name: Name
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class Replace:
    """`replace filter NAME ...`."""

    rule: Filter | Score
    span: Span


@dataclass(frozen=True, slots=True)
class Reweight:
    name: Name
    weight: NumberLit | Bare
    span: Span


@dataclass(frozen=True, slots=True)
class Drop:
    """`drop NAME`, or one rule of that name alone: `drop score NAME` (`kind`)."""

    kind: Name | None
    name: Name
    span: Span


LayerStatement = Filter | Score | Amend | Replace | Reweight | Drop


@dataclass(frozen=True, slots=True)
class Layer:
    """`layer NAME when E { statements }`."""

    name: Name
    condition: Expression
    body: tuple[LayerStatement, ...]
    span: Span


Statement = (
    Header
    | Include
    | Parameter
    | Let
    | Record
    | Input
    | Metric
    | State
    | Queue
    | Gang
    | Outage
    | Resource
    | Extender
    | Preemption
    | Filter
    | Score
    | Amend
    | Replace
    | Reweight
    | Drop
    | Layer
)


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` begins with `#`; `alone` where nothing stands before it on its line."""

    text: str
    alone: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Document:
    """A policy file that was read: the statements that parsed, and every comment, in the order of the text.

    `broken` are the names that statements which did not parse would have declared: not to be reported as unknown.
    """

    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...]
    span: Span
    broken: tuple[str, ...] = ()
