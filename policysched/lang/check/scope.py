"""The scope of one policy while it is checked, and the contexts of expressions.

The passes fill `Scope` in order; diagnostics are collected in it, never raised. A declaration with an
error is kept without a definition: using it reports nothing more.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from policysched.lang.check.parameter_values import EMPTY_PARAMETER_VALUES, ParameterValues
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.declarations import (
    CONTAINER_RECORD,
    Input,
    Metric,
    Parameter,
    ResourceSpec,
    StateSpec,
)
from policysched.lang.ir.expr import Const, Expr
from policysched.lang.ir.quotas import QuotaSpec
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import RecordType, Type
from policysched.text import Diagnostic, Label, Severity, Source, Span
from policysched.text.suggestions import nearest_match

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ExpressionContext:
    """Where an expression occurs, and what it can read there. `description` names it in messages."""

    description: str
    pod: bool = True
    node: bool = False
    metrics: bool = False
    traffic: bool = False  # traffic between the pod and its gang
    time: bool = False
    victim: bool = False
    other: bool = False
    other_node: bool = False  # `other.node`: the counted pod is on a node
    node_pods: bool = False
    cluster_pods: bool = True  # `count(pods where ...)`
    all_candidates: bool = False  # aggregates over the candidates
    after_placement: bool = False  # the pod is placed on a candidate
    queue_values: bool = True  # `pod.queued`, `pod.waited`, `pod.attempts`
    element_record: RecordType | None = None  # of the enclosing list expression
    namespace_shares: bool = True  # `namespace.share`
    quota_shares: bool = False  # `pod.quota_share`


CONSTANT = ExpressionContext("a constant", pod=False, cluster_pods=False)
WHEN_CONDITION = ExpressionContext("a `when`", node=True, time=True, node_pods=True)
FILTER_CONDITION = ExpressionContext(
    "a condition", node=True, metrics=True, traffic=True, time=True, node_pods=True
)
SCORE_VALUE = ExpressionContext(
    "a score value", node=True, metrics=True, traffic=True, time=True, node_pods=True, all_candidates=True
)
LAYER_CONDITION = ExpressionContext("the `when` of a layer", time=True)
QUEUE_KEY = ExpressionContext("a queue key", time=True, cluster_pods=False, quota_shares=True)
GANG_TERM = ExpressionContext(
    "a `gang` parameter", queue_values=False, namespace_shares=False, cluster_pods=False
)
CANARY_KEY = ExpressionContext(
    "the `by` or `when` of a canary", queue_values=False, namespace_shares=False, cluster_pods=False
)
ASSUMED_METRIC = ExpressionContext(
    "the `assume` of a metric", queue_values=False, namespace_shares=False, cluster_pods=False
)
VICTIM_CONDITION = ExpressionContext("a `victims` condition", victim=True, time=True, cluster_pods=False)
VICTIM_ORDER = ExpressionContext("the `order` of victims", victim=True, time=True, cluster_pods=False)
CAPACITY = ExpressionContext(
    "the capacity of a resource", pod=False, node=True, metrics=True, cluster_pods=False
)
SERIES_POD_KEY = ExpressionContext(
    "the `key` of a metric", queue_values=False, namespace_shares=False, cluster_pods=False
)
REQUEST = ExpressionContext(
    "the request of a resource", queue_values=False, namespace_shares=False, cluster_pods=False
)
QUOTA_KEY = ExpressionContext(
    "the key of a quota", queue_values=False, namespace_shares=False, cluster_pods=False
)
STATE_KEY = ExpressionContext(
    "the key of a state", queue_values=False, namespace_shares=False, cluster_pods=False
)
STATE_UPDATE = ExpressionContext(
    "the `value` or `when` of a state",
    queue_values=False,
    namespace_shares=False,
    element_record=CONTAINER_RECORD,
    cluster_pods=False,
)
COUNTED_ON_NODE = ExpressionContext("a `count` condition", other=True, time=True, cluster_pods=False)
COUNTED_IN_CLUSTER = ExpressionContext(
    "a `count` condition",
    other=True,
    time=True,
    queue_values=False,
    namespace_shares=False,
    cluster_pods=False,
)
COUNTED_ON_NODES = replace(COUNTED_IN_CLUSTER, other_node=True)
LET_VALUE = replace(SCORE_VALUE, description="a `let`")
LET_OF_STATE_UPDATE = replace(STATE_UPDATE, description="a `let` that reads `container`")
REASON_TEMPLATE = ExpressionContext("a message", node=True, metrics=True, time=True, node_pods=True)


@dataclass(frozen=True, slots=True)
class LetExpression:
    """A `let` that is not constant: its expression is checked again in each context.

    `node_count` and `depth` include the expansion of the names in it.
    """

    node: s.Expression
    type: Type
    node_count: int
    depth: int
    reads_container: bool  # only usable in a state update


@dataclass(slots=True)
class DeclaredName:
    """A parameter, `let`, record, input, metric or state. `definition` is None after a reported error."""

    kind: Literal["param", "let", "record", "input", "metric", "state"]
    name: str
    span: Span
    definition: Const | LetExpression | Parameter | RecordType | Input | Metric | StateSpec | None
    used: bool = False


@dataclass(slots=True)
class DeclaredResource:
    """A resource of the policy. `definition` is None after a reported error."""

    span: Span
    definition: ResourceSpec | None
    used: bool = False


@dataclass(slots=True)
class DeclaredQuota:
    """A `quota` statement. `definition` is None after a reported error."""

    span: Span
    definition: QuotaSpec | None


@dataclass(slots=True)
class DeclaredGang:
    """The `gang by` statement. `key` is None before it is checked, and after a reported error (`checked`)."""

    key: Expr | None = None
    checked: bool = False


@dataclass(slots=True)
class Scope:
    """The declarations of one policy and its diagnostics.

    `broken_names` are declared in statements with syntax errors, `parameter_values` are set outside the
    policy, and `gang` is None without a `gang by` statement. `team_source` is the text itself if a team owns it:
    what it includes is the operator's. `library_for_teams` is the text itself if teams can include it, and `settable_names`
    are the constants that they can then set, and the inputs whose keys they can set.
    """

    names: dict[str, DeclaredName] = field(default_factory=dict)
    broken_names: frozenset[str] = frozenset()
    team_source: Source | None = None
    library_for_teams: Source | None = None
    settable_names: set[str] = field(default_factory=set)
    resources: dict[str, DeclaredResource] = field(default_factory=dict)
    quotas: dict[str, DeclaredQuota] = field(default_factory=dict)
    gang: DeclaredGang | None = None
    let_cache: dict[tuple[str, ExpressionContext], Expr | None] = field(
        default_factory=dict
    )  # the expanded expression of a `let`
    linted: dict[int, Expr] = field(default_factory=dict)  # by `id`: every use of a `let` is the same object
    parameter_values: ParameterValues = EMPTY_PARAMETER_VALUES
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _reported: set[tuple[str, str, int, int, int]] = field(default_factory=set)
    _error_count: int = 0

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        label: str = "",
        help: str = "",  # noqa: A002 (the label in the output)
        related: tuple[Label, ...] = (),
    ) -> None:
        """Add a diagnostic, once per message and span: a rule can be checked in several versions."""
        key = (code, message, id(span.source), span.start, span.end)
        if key not in self._reported:
            self._reported.add(key)
            diagnostic = make_diagnostic(code, message, span, label=label, help=help, related=related)
            self.add_diagnostic(diagnostic)

    def add_diagnostic(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)
        self._error_count += diagnostic.severity is Severity.ERROR

    def error_count(self) -> int:
        """The number of errors so far; if it does not change during a check, the part is valid."""
        return self._error_count

    def use_constant(self, name: str) -> Const | None:
        """The value of a constant `let` or parameter, marked as used; None if there is no valid one."""
        declared = self.names.get(name)
        match None if declared is None else declared.definition:
            case Const() as const:
                value = const
            case Parameter(value=const):
                value = const
            case _:
                return None
        assert declared is not None
        declared.used = True
        return value

    def names_parameter(self, span: Span) -> bool:
        """Whether the text refers to a parameter: lints on constants do not apply, since its value can change."""
        pending, visited = _WORD.findall(span.text), set[str]()
        while pending:
            word = pending.pop()
            if word in visited or word not in self.names:
                continue
            visited.add(word)
            match self.names[word].definition:
                case Parameter():
                    return True
                case LetExpression(node=node):
                    pending += _WORD.findall(node.span.text)
                case _:
                    pass
        return False

    def parameters(self) -> dict[str, Parameter]:
        return {
            name: declared.definition
            for name, declared in self.names.items()
            if isinstance(declared.definition, Parameter)
        }

    def inputs(self) -> dict[str, Input]:
        return {
            name: declared.definition
            for name, declared in self.names.items()
            if isinstance(declared.definition, Input)
        }

    def valid_resources(self) -> dict[str, ResourceSpec]:
        return {
            name: declared.definition
            for name, declared in self.resources.items()
            if declared.definition is not None
        }

    def valid_quotas(self) -> dict[str, QuotaSpec]:
        return {
            name: declared.definition
            for name, declared in self.quotas.items()
            if declared.definition is not None
        }

    def states(self) -> dict[str, StateSpec]:
        return {
            name: declared.definition
            for name, declared in self.names.items()
            if isinstance(declared.definition, StateSpec)
        }

    def metrics(self) -> dict[str, Metric]:
        return {
            name: declared.definition
            for name, declared in self.names.items()
            if isinstance(declared.definition, Metric)
        }


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A help line with the most similar word; empty if there is none."""
    match = nearest_match(word, known)
    return f"did you mean `{match}`?" if match else ""


def join_alternatives(words: Iterable[str]) -> str:
    """Join words in a sentence: "`reject` or `pass`"."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def declared_here(span: Span) -> Label:
    return Label(span, "declared here")
