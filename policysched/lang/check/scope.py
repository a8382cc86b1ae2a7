"""What names mean while one policy is checked, and where an expression stands.

`NamespaceScope` is filled in the order of the passes and only read by later ones; findings are collected in it, never raised. A
declaration that has a mistake of its own is kept as *broken*: using it says nothing more, since one cause is one error.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
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
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import RecordType, Type
from policysched.text import Diagnostic, Label, Severity, Span

_SUGGESTION_CANDIDATES_MAX = 300
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ExpressionContext:
    """Where an expression stands, and so what it may read. `description` names it in a message."""

    description: str
    pod: bool = True
    node: bool = False
    metrics: bool = False
    traffic: bool = False  # what flows between the pod and others
    time: bool = False
    victim: bool = False
    other: bool = False
    node_pods: bool = False
    cluster_pods: bool = True  # the pods of the whole cluster
    all_candidates: bool = False  # all at once
    after_placement: bool = False  # the pod is thought to be on one of them
    queue_values: bool = True  # what the queue knows of the pod
    element_record: RecordType | None = None  # of the list that is being looked through
    namespace_shares: bool = True  # what the pod's namespace holds


CONSTANT = ExpressionContext("a constant", pod=False, cluster_pods=False)
WHEN_CONDITION = ExpressionContext("a `when`", node=True, time=True, node_pods=True)
FILTER_CONDITION = ExpressionContext(
    "a condition", node=True, metrics=True, traffic=True, time=True, node_pods=True
)
SCORE_VALUE = ExpressionContext(
    "a score's value", node=True, metrics=True, traffic=True, time=True, node_pods=True, all_candidates=True
)
LAYER_CONDITION = ExpressionContext("a layer's `when`", time=True)
QUEUE_KEY = ExpressionContext("a key of the queue", time=True, cluster_pods=False)
GANG_TERM = ExpressionContext(
    "a gang's terms", queue_values=False, namespace_shares=False, cluster_pods=False
)
ASSUMED_METRIC = ExpressionContext(
    "what a metric assumes of a pod", queue_values=False, namespace_shares=False, cluster_pods=False
)
VICTIM_CONDITION = ExpressionContext(
    "what is said of victims", victim=True, namespace_shares=False, cluster_pods=False
)
CAPACITY = ExpressionContext(
    "what a node has of a resource", pod=False, node=True, metrics=True, cluster_pods=False
)
SERIES_POD_KEY = ExpressionContext(
    "what the series call a pod", queue_values=False, namespace_shares=False, cluster_pods=False
)
REQUEST = ExpressionContext(
    "what a pod requests of a resource", queue_values=False, namespace_shares=False, cluster_pods=False
)
STATE_KEY = ExpressionContext(
    "the key of a state", queue_values=False, namespace_shares=False, cluster_pods=False
)
STATE_UPDATE = ExpressionContext(
    "what feeds a state",
    queue_values=False,
    namespace_shares=False,
    element_record=CONTAINER_RECORD,
    cluster_pods=False,
)
COUNTED_ON_NODE = ExpressionContext("what is said of counted pods", other=True, cluster_pods=False)
COUNTED_IN_CLUSTER = ExpressionContext(
    "what is said of counted pods", other=True, queue_values=False, namespace_shares=False, cluster_pods=False
)
LET_VALUE = replace(SCORE_VALUE, description="a `let`")
LET_OF_STATE_UPDATE = replace(STATE_UPDATE, description="a `let` of what feeds a state")
REASON_TEMPLATE = ExpressionContext("a text", node=True, metrics=True, time=True, node_pods=True)


@dataclass(frozen=True, slots=True)
class LetExpression:
    """A `let` that depends on something: what it stands for, read anew wherever its name is. `node_count` and `depth` are those
    of the whole, with the names in it put in their place."""

    node: s.Expression
    type: Type
    node_count: int
    depth: int
    reads_container: bool  # of what feeds a state: known in the midst of one only


@dataclass(slots=True)
class DeclaredName:
    """A parameter, a `let`, a record, an input, a metric or a state. `definition` None: it has a mistake that was reported."""

    kind: Literal["param", "let", "record", "input", "metric", "state"]
    name: str
    span: Span
    definition: Const | LetExpression | Parameter | RecordType | Input | Metric | StateSpec | None
    used: bool = False


@dataclass(slots=True)
class DeclaredResource:
    """`definition` None: it has a mistake that was reported."""

    span: Span
    definition: ResourceSpec | None
    used: bool = False


@dataclass(slots=True)
class DeclaredGang:
    """`key` None: not read yet, or it has a mistake that was reported (`checked`)."""

    key: Expr | None = None
    checked: bool = False


@dataclass(slots=True)
class Scope:
    """The declarations of one policy, and what was found wrong with it. `broken_names` are names whose declarations did not
    parse, `parameter_values` what was set for its parameters, `gang` whether the policy says what a gang is."""

    names: dict[str, DeclaredName] = field(default_factory=dict)
    broken_names: frozenset[str] = frozenset()
    resources: dict[str, DeclaredResource] = field(default_factory=dict)
    gang: DeclaredGang | None = None
    let_cache: dict[tuple[str, ExpressionContext], Expr | None] = field(
        default_factory=dict
    )  # what a `let` stands for in a place
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
        help: str = "",  # noqa: A002 (the word that is printed)
        related: tuple[Label, ...] = (),
    ) -> None:
        """Note a finding; the same at the same place counts once (a rule may be checked in two versions)."""
        key = (code, message, id(span.source), span.start, span.end)
        if key not in self._reported:
            self._reported.add(key)
            found = make_diagnostic(code, message, span, label=label, help=help, related=related)
            self.diagnostics.append(found)
            self._error_count += found.severity is Severity.ERROR

    def add_diagnostic(self, found: Diagnostic) -> None:
        """Note a finding of somebody else."""
        self.diagnostics.append(found)
        self._error_count += found.severity is Severity.ERROR

    def error_count(self) -> int:
        """How many errors there are so far: equal before and after, a part is sound."""
        return self._error_count

    def use_constant(self, name: str) -> Const | None:
        """What a `let` or a parameter of that name is, and mark it as used; None where there is no sound one."""
        declared = self.names.get(name)
        match None if declared is None else declared.definition:
            case Const() as const:
                found = const
            case Parameter(value=const):
                found = const
            case _:
                return None
        assert declared is not None
        declared.used = True
        return found

    def names_parameter(self, span: Span) -> bool:
        """Whether the text there names a parameter: what it amounts to today says nothing about the policy."""
        pending, looked_at = _WORD.findall(span.text), set[str]()
        while pending:
            word = pending.pop()
            if word in looked_at or word not in self.names:
                continue
            looked_at.add(word)
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
            name: one.definition for name, one in self.names.items() if isinstance(one.definition, Parameter)
        }

    def inputs(self) -> dict[str, Input]:
        return {name: one.definition for name, one in self.names.items() if isinstance(one.definition, Input)}

    def valid_resources(self) -> dict[str, ResourceSpec]:
        return {name: one.definition for name, one in self.resources.items() if one.definition is not None}

    def states(self) -> dict[str, StateSpec]:
        return {
            name: one.definition for name, one in self.names.items() if isinstance(one.definition, StateSpec)
        }

    def metrics(self) -> dict[str, Metric]:
        return {
            name: one.definition for name, one in self.names.items() if isinstance(one.definition, Metric)
        }


def nearest_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one probably means; nothing where there are too many to compare with each."""
    words = list(known)
    matches = (
        get_close_matches(word, words, n=1, cutoff=0.6) if len(words) <= _SUGGESTION_CANDIDATES_MAX else []
    )
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A help text, empty where nothing is near."""
    match = nearest_match(word, known)
    return f"did you mean `{match}`?" if match else ""


def join_alternatives(words: Iterable[str]) -> str:
    """`reject` or `pass`, as words in a sentence."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def declared_here(span: Span) -> Label:
    return Label(span, "declared here")
