"""The syntax tree of a policy: a table of node types, each with its span, with no names resolved.

`lang.parse` builds it, `lang.format.printer` prints it, `lang.check` checks it. Comments are stored separately
(`SyntaxTree.comments`), since they have no meaning.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.text import Span

BinaryOp = Literal["or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class Identifier:
    """An identifier: the name of a rule or input, an enum value."""

    text: str
    span: Span


# ── expressions ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NumberLit:
    """`100m` has digits `100` and suffix `m`; the meaning of a suffix depends on the expected type."""

    digits: str
    suffix: str
    span: Span


@dataclass(frozen=True, slots=True)
class StringLit:
    """`value` is unescaped."""

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
class NameExpr:
    """A declared name or an enum value."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class AttributeExpr:
    """`pod.requests["nvidia.com/gpu"]`: owner `pod`, path of names and, where `is_quoted_key`, quoted keys."""

    owner: str
    path: tuple["PathPart", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PathPart:
    text: str
    is_quoted_key: bool  # written as ["text"]
    span: Span
    is_constant_key: bool = False  # written as [NAME]: the key is the value of that constant


@dataclass(frozen=True, slots=True)
class UnaryExpr:
    op: Literal["not", "-"]
    operand: "Expression"
    span: Span


@dataclass(frozen=True, slots=True)
class BinaryExpr:
    op: BinaryOp
    left: "Expression"
    right: "Expression"
    op_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class ElseExpr:
    """`value else fallback`: the fallback applies where the value is missing or undefined."""

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
    function: Identifier
    args: tuple["Expression", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CountedPods:
    """The pods that a total is over. `word` is what precedes `pods` (None: nothing), `node` for `pods on node`,
    `in` for `pods in KEY`; then `key` is the key of a node label, as a string or the name of a constant."""

    word: Literal["all", "placed", "node", "in"] | None
    key: "StringLit | NameExpr | None"
    span: Span


@dataclass(frozen=True, slots=True)
class PodTotalExpr:
    """`count(pods where E)`, `sum(VALUE over placed pods where E)`. In E and VALUE the counted pod is `other`."""

    function: Identifier
    value: "Expression | None"
    pods: CountedPods
    where: "Expression | None"
    span: Span


@dataclass(frozen=True, slots=True)
class ListFoldExpr:
    """`sum(card.memory over cards where E)`; without a value `any(cards where E)` and `count(cards where E)`. An element is
    referred to by the name of its record."""

    function: Identifier
    value: "Expression | None"
    items: Identifier
    where: "Expression | None"
    span: Span


@dataclass(frozen=True, slots=True)
class AggregateExpr:
    """`mean of E over nodes`; with `after placing` each candidate is evaluated with the pod placed on it."""

    function: Identifier
    value: "Expression"
    after_placement: bool
    span: Span


Expression = (
    NumberLit
    | StringLit
    | BoolLit
    | ListLit
    | NameExpr
    | AttributeExpr
    | UnaryExpr
    | BinaryExpr
    | ElseExpr
    | IfExpr
    | HasExpr
    | CallExpr
    | PodTotalExpr
    | ListFoldExpr
    | AggregateExpr
)


# ── parameters in braces ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MapLit:
    """`{"cpu" = 1, "nvidia.com/gpu" = 5}`. With `levels`: `["zone" required, "rack" preferred]`; the values are words.
    With `order` (and without entries): `[victim.priority, victim.created desc]`."""

    entries: tuple[tuple[StringLit, "Expression"], ...]
    span: Span
    levels: bool = False
    order: tuple["OrderKeyDecl", ...] = ()


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """A nested block of parameters, such as `outage { above = 50%  then = disable }`."""

    name: Identifier
    params: tuple["Param", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Param:
    name: Identifier
    value: "Expression | MapLit"
    span: Span


# ── clauses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WhenClause:
    condition: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class RecoverClause:
    """`recover MARK for DURATION`."""

    recover_at: Expression
    duration: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class RequireClause:
    """`require E`, or `reject E` where `rejects`."""

    rejects: bool
    condition: Expression
    recover: RecoverClause | None
    span: Span


@dataclass(frozen=True, slots=True)
class MissingClause:
    """`missing reject | pass | worst | neutral | best | NUMBER`."""

    choice: Identifier | NumberLit
    span: Span


@dataclass(frozen=True, slots=True)
class ScaleupClause:
    """`scaleup no` (or `yes`)."""

    choice: Identifier
    span: Span


@dataclass(frozen=True, slots=True)
class MessageClause:
    """`says "text with {placeholders}"`; its older form is `else "..."`."""

    text: StringLit
    span: Span

    @property
    def is_older_form(self) -> bool:
        return self.span.text.startswith("else")


@dataclass(frozen=True, slots=True)
class WeightClause:
    """`weight 5`, or by the name of a constant."""

    weight: NumberLit | NameExpr
    span: Span


@dataclass(frozen=True, slots=True)
class ScoreValueClause:
    """`lower E`, `higher E` or `prefer E`."""

    direction: Literal["lower", "higher", "prefer"]
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class NormalizeClause:
    """`normalize range(lo, hi) | max | minmax`."""

    method: Identifier
    args: tuple[Expression, ...]
    span: Span


Clause = (
    WhenClause
    | RequireClause
    | MissingClause
    | ScaleupClause
    | MessageClause
    | WeightClause
    | ScoreValueClause
    | NormalizeClause
)


# ── statements ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HeaderDecl:
    """`policy network-aware version 1` or `library base version 1`."""

    kind: Literal["policy", "library"]
    name: Identifier
    version: NumberLit
    span: Span


@dataclass(frozen=True, slots=True)
class IncludeDecl:
    """`include kube_default`, `include kube_default "1.34"` or `include "base.policy"`."""

    target: Identifier | StringLit
    version: StringLit | None
    span: Span


@dataclass(frozen=True, slots=True)
class TypeRef:
    """`list<string>`: name `list` with an argument."""

    name: Identifier
    argument: "TypeRef | None"
    span: Span


@dataclass(frozen=True, slots=True)
class RangeLimit:
    """`range LOW..HIGH`, both included."""

    low: Expression
    high: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class ChoiceLimit:
    """`in [A, B]`: the allowed values of a parameter."""

    items: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ParameterDecl:
    """`locked param NAME: TYPE = DEFAULT range LOW..HIGH`."""

    name: Identifier
    type: TypeRef
    default: Expression
    limits: RangeLimit | ChoiceLimit | None
    locked: bool
    span: Span


@dataclass(frozen=True, slots=True)
class LetDecl:
    name: Identifier
    type: TypeRef
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class AbsentClause:
    """The handling of an absent source: `default E`, `optional` or `required "text"`."""

    kind: Literal["default", "optional", "required"]
    value: Expression | None  # the default, or the text of `required`
    span: Span


@dataclass(frozen=True, slots=True)
class InvalidClause:
    """The handling of a text that is not of the type: `invalid reject "text"` or `invalid default`."""

    kind: Literal["reject", "default"]
    text: StringLit | None
    span: Span


@dataclass(frozen=True, slots=True)
class RecordFieldDecl:
    """`memory: bytes = "freeMemory" unit "MiB" default 0`; `key` is the JSON key, if it differs from the name."""

    name: Identifier
    type: TypeRef
    key: StringLit | None
    unit: StringLit | None
    absent: AbsentClause | None
    misplaced: tuple[InvalidClause | StringLit, ...]  # clauses that a field cannot have
    span: Span


@dataclass(frozen=True, slots=True)
class RecordDecl:
    """`record card { health: string  memory: bytes }`: the type of a list's elements."""

    name: Identifier
    fields: tuple[RecordFieldDecl, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class InputDecl:
    """With `json_path` the source is JSON and the path selects a part of it."""

    name: Identifier
    type: TypeRef
    source: Expression
    json_path: StringLit | None
    unit: StringLit | None
    absent: AbsentClause | None
    invalid: InvalidClause | None
    span: Span


@dataclass(frozen=True, slots=True)
class MetricDecl:
    name: Identifier
    type: TypeRef
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OrderKeyDecl:
    value: Expression
    descending: bool
    span: Span


@dataclass(frozen=True, slots=True)
class QueueDecl:
    keys: tuple[OrderKeyDecl, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class GangDecl:
    key: Expression
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class QuotaAmountDecl:
    """`cpu = 40 borrow 20`. `resource` is a name, or a quoted resource such as `"nvidia.com/gpu"`."""

    resource: Identifier | StringLit
    amount: Expression
    borrow: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class QuotaRowDecl:
    """`"vision" in "research" { ... }`: `path` is innermost first, and empty for `others`. `amounts` None: `unlimited`."""

    path: tuple[StringLit, ...]
    amounts: tuple[QuotaAmountDecl, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class QuotaDecl:
    """`quota NAME by E within PARENT { rows }`."""

    name: Identifier
    key: Expression
    parent: Identifier | None
    rows: tuple[QuotaRowDecl, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OutageDecl:
    """`outage { above = 50%  then = disable }`, for the whole policy."""

    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class StateDecl:
    """`state NAME: TYPE { key = E  on = terminated  value = E  keep = 90%  start = 1.0  half_life = 30m  most = 10000 }`."""

    name: Identifier
    type: TypeRef
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ResourceDecl:
    """`resource NAME { capacity = E, request = E }`."""

    name: Identifier
    params: tuple[Param | ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExtenderDecl:
    """`extender NAME weight 5 missing neutral`: a service from the settings, called after the filters."""

    name: Identifier
    clauses: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PreemptionDecl:
    """`preemption never` (params None) or `preemption { victims = own | any | E  order = [E desc, ...] }`."""

    params: tuple[Param | ParamBlock, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class FilterDecl:
    """A rule (clauses), or a built-in by name (no `require`, parameters in braces)."""

    name: Identifier
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    locked: bool
    span: Span


@dataclass(frozen=True, slots=True)
class ScoreDecl:
    name: Identifier
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    locked: bool
    span: Span


@dataclass(frozen=True, slots=True)
class ShadowDecl:
    """`shadow filter NAME ...`, `shadow score NAME ...`: evaluated and counted, never used."""

    rule: FilterDecl | ScoreDecl
    span: Span


@dataclass(frozen=True, slots=True)
class AmendStatement:
    """`amend [filter|score] NAME CLAUSE...`: replaces only these clauses. `kind` is the word before the name."""

    kind: Identifier | None
    name: Identifier
    clauses: tuple[Clause, ...]
    params: tuple[Param | ParamBlock, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class ReplaceStatement:
    """`replace filter NAME ...`."""

    rule: FilterDecl | ScoreDecl
    span: Span


@dataclass(frozen=True, slots=True)
class ReweightStatement:
    name: Identifier
    weight: NumberLit | NameExpr
    span: Span


@dataclass(frozen=True, slots=True)
class DropStatement:
    """`drop NAME`, or with `kind` only the filter or score of that name: `drop score NAME`."""

    kind: Identifier | None
    name: Identifier
    span: Span


LayerStatement = (
    FilterDecl | ScoreDecl | AmendStatement | ReplaceStatement | ReweightStatement | DropStatement
)


@dataclass(frozen=True, slots=True)
class LayerDecl:
    """`layer NAME when E { statements }`."""

    name: Identifier
    condition: Expression
    body: tuple[LayerStatement, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CanaryGuard:
    """`guard pending < 2% for 1m`."""

    measure: Identifier
    limit: Expression
    duration: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class CanaryDecl:
    """`canary NAME 10% by E when E guard pending < 2% for 1m else rollback { statements }`."""

    name: Identifier
    share: Expression
    key: Expression
    when: WhenClause | None
    guard: CanaryGuard
    body: tuple[LayerStatement, ...]
    span: Span


Statement = (
    HeaderDecl
    | IncludeDecl
    | ParameterDecl
    | LetDecl
    | RecordDecl
    | InputDecl
    | MetricDecl
    | StateDecl
    | QueueDecl
    | GangDecl
    | OutageDecl
    | ResourceDecl
    | QuotaDecl
    | ExtenderDecl
    | PreemptionDecl
    | FilterDecl
    | ScoreDecl
    | ShadowDecl
    | AmendStatement
    | ReplaceStatement
    | ReweightStatement
    | DropStatement
    | LayerDecl
    | CanaryDecl
)


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` includes the `#`; `is_own_line` if nothing precedes it on its line."""

    text: str
    is_own_line: bool
    span: Span


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """The statements that parsed and all comments, in source order.

    `unparsed_names` are the names declared by statements that did not parse; they are not reported as unknown.
    """

    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...]
    span: Span
    unparsed_names: tuple[str, ...] = ()
