"""What names mean while one policy is checked, and where an expression stands.

`Scope` is filled in the order of the passes and only read by later ones; findings are collected in it, never raised. A
declaration that has a mistake of its own is kept as *broken*: using it says nothing more, since one cause is one error.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal

from policysched.lang.check.parameter_values import NOTHING_GIVEN, GivenParameters
from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.ir import program as p
from policysched.lang.ir.expr import Const, Expr
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Record, Type
from policysched.text import Diagnostic, Label, Severity, Span

_COMPARED_MAX = 300
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression stands, and so what it may read. `word` names it in a message."""

    word: str
    pod: bool = True
    node: bool = False
    metrics: bool = False
    traffic: bool = False  # what flows between the pod and others
    time: bool = False
    victim: bool = False
    other: bool = False
    count: bool = False
    anywhere: bool = True  # the pods of the whole cluster
    candidates: bool = False  # all at once
    placed: bool = False  # the pod is thought to be on one of them
    queue: bool = True  # what the queue knows of the pod
    element: Record | None = None  # of the list that is being looked through
    shares: bool = True  # what the pod's namespace holds


CONSTANT = Place("a constant", pod=False, anywhere=False)
WHEN = Place("a `when`", node=True, time=True, count=True)
CONDITION = Place("a condition", node=True, metrics=True, traffic=True, time=True, count=True)
VALUE = Place(
    "a score's value", node=True, metrics=True, traffic=True, time=True, count=True, candidates=True
)
LAYER = Place("a layer's `when`", time=True)
QUEUE_KEY = Place("a key of the queue", time=True, anywhere=False)
GANG = Place("a gang's terms", queue=False, shares=False, anywhere=False)
ASSUME = Place("what a metric assumes of a pod", queue=False, shares=False, anywhere=False)
VICTIMS = Place("what is said of victims", victim=True, shares=False, anywhere=False)
CAPACITY = Place("what a node has of a resource", pod=False, node=True, metrics=True, anywhere=False)
PAIR_KEY = Place("what the series call a pod", queue=False, shares=False, anywhere=False)
REQUEST = Place("what a pod requests of a resource", queue=False, shares=False, anywhere=False)
KEY = Place("the key of a state", queue=False, shares=False, anywhere=False)
FED = Place("what feeds a state", queue=False, shares=False, element=p.CONTAINER, anywhere=False)
COUNTED = Place("what is said of counted pods", other=True, anywhere=False)
COUNTED_ANYWHERE = Place(
    "what is said of counted pods", other=True, queue=False, shares=False, anywhere=False
)
NAMED = replace(VALUE, word="a `let`")
NAMED_FED = replace(FED, word="a `let` of what feeds a state")
TEXT = Place("a text", node=True, metrics=True, time=True, count=True)


@dataclass(frozen=True, slots=True)
class Named:
    """A `let` that depends on something: what it stands for, read anew wherever its name is. `parts` and `depth` are those
    of the whole, with the names in it put in their place."""

    node: s.Expression
    type: Type
    parts: int
    depth: int
    of_container: bool  # of what feeds a state: known in the midst of one only


@dataclass(slots=True)
class Declared:
    """A parameter, a `let`, a record, an input, a metric or a state. `value` None: it has a mistake that was reported."""

    kind: Literal["param", "let", "record", "input", "metric", "state"]
    name: str
    span: Span
    value: Const | Named | p.Parameter | Record | p.Input | p.Metric | p.State | None
    used: bool = False


@dataclass(slots=True)
class DeclaredResource:
    """`value` None: it has a mistake that was reported."""

    span: Span
    value: p.Resource | None
    used: bool = False


@dataclass(slots=True)
class DeclaredGang:
    """`by` None: not read yet, or it has a mistake that was reported (`read`)."""

    by: Expr | None = None
    read: bool = False


@dataclass(slots=True)
class Scope:
    """The declarations of one policy, and what was found wrong with it. `broken` are names whose declarations did not
    parse, `given` what was set for its parameters, `gang` whether the policy says what a gang is."""

    declared: dict[str, Declared] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    resources: dict[str, DeclaredResource] = field(default_factory=dict)
    gang: DeclaredGang | None = None
    meant: dict[tuple[str, Place], Expr | None] = field(
        default_factory=dict
    )  # what a `let` stands for in a place
    given: GivenParameters = NOTHING_GIVEN
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _seen: set[tuple[str, str, int, int, int]] = field(default_factory=set)
    _errors: int = 0

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
        if key not in self._seen:
            self._seen.add(key)
            found = diagnostic(code, message, span, label=label, help=help, related=related)
            self.diagnostics.append(found)
            self._errors += found.severity is Severity.ERROR

    def take(self, found: Diagnostic) -> None:
        """Note a finding of somebody else."""
        self.diagnostics.append(found)
        self._errors += found.severity is Severity.ERROR

    def error_count(self) -> int:
        """How many errors there are so far: equal before and after, a part is sound."""
        return self._errors

    def constant(self, name: str) -> Const | None:
        """What a `let` or a parameter of that name is, and mark it as used; None where there is no sound one."""
        declared = self.declared.get(name)
        match None if declared is None else declared.value:
            case Const() as const:
                found = const
            case p.Parameter(value=const):
                found = const
            case _:
                return None
        assert declared is not None
        declared.used = True
        return found

    def set_elsewhere(self, span: Span) -> bool:
        """Whether the text there names a parameter: what it amounts to today says nothing about the policy."""
        pending, looked_at = _WORD.findall(span.text), set[str]()
        while pending:
            word = pending.pop()
            if word in looked_at or word not in self.declared:
                continue
            looked_at.add(word)
            match self.declared[word].value:
                case p.Parameter():
                    return True
                case Named(node=node):
                    pending += _WORD.findall(node.span.text)
                case _:
                    pass
        return False

    def parameters(self) -> dict[str, p.Parameter]:
        return {name: one.value for name, one in self.declared.items() if isinstance(one.value, p.Parameter)}

    def inputs(self) -> dict[str, p.Input]:
        return {name: one.value for name, one in self.declared.items() if isinstance(one.value, p.Input)}

    def known_resources(self) -> dict[str, p.Resource]:
        return {name: one.value for name, one in self.resources.items() if one.value is not None}

    def states(self) -> dict[str, p.State]:
        return {name: one.value for name, one in self.declared.items() if isinstance(one.value, p.State)}

    def metrics(self) -> dict[str, p.Metric]:
        return {name: one.value for name, one in self.declared.items() if isinstance(one.value, p.Metric)}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one probably means; nothing where there are too many to compare with each."""
    words = list(known)
    matches = get_close_matches(word, words, n=1, cutoff=0.6) if len(words) <= _COMPARED_MAX else []
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A help text, empty where nothing is near."""
    match = nearest(word, known)
    return f"did you mean `{match}`?" if match else ""


def one_of(words: Iterable[str]) -> str:
    """`reject` or `pass`, as words in a sentence."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def declared_at(span: Span) -> Label:
    return Label(span, "declared here")
