"""One text, from statements to a `Program`: the passes in their order.

Each pass reads what those before it left in `Work` and adds its part; findings are collected, and a program comes out
only where none of them is an error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from policysched.lang.check import lints
from policysched.lang.check.declarations import declare_input, declare_let, declare_metric, declare_record
from policysched.lang.check.declared_parameters import declare_parameter, given_for_nothing, with_its_value
from policysched.lang.check.extenders import extenders, without_whole_gang
from policysched.lang.check.include import Expansion, Find, expand
from policysched.lang.check.layers import Layers
from policysched.lang.check.limits import RULES_MAX
from policysched.lang.check.metrics import outage
from policysched.lang.check.parameter_values import NOBODY_GIVEN, Given, given_to
from policysched.lang.check.queue import default_queue, gang, preemption, queue
from policysched.lang.check.resources import declare_resource
from policysched.lang.check.rules import rule
from policysched.lang.check.scope import DeclaredGang, Scope, declared_at
from policysched.lang.check.states import declare_state
from policysched.lang.check.table import Kind, Table, Written, kind_of
from policysched.lang.format.printer import print_document
from policysched.lang.ir import program as p
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Severity, Source, Span

_HEADER = re.compile(r"^\s*(policy|library)\b", re.MULTILINE)

_Once = s.Queue | s.Gang | s.Outage | s.Preemption


@dataclass(slots=True)
class Work:
    """What the passes have made of a text so far."""

    key: str
    document: s.Document
    find: Find
    keys: tuple[str, ...]
    given: Given
    scope: Scope
    header: s.Header | None = None
    expansion: Expansion = field(default_factory=Expansion)
    once: dict[type, _Once] = field(default_factory=dict)
    queue: tuple[p.OrderKey, ...] | None = None
    gang: p.Gang | None = None
    outage: p.Outage | None = None
    preemption: p.Preemption | None = None
    extenders: tuple[p.Extender, ...] = ()
    table: Table = field(init=False)
    forms: list[Written] = field(default_factory=list)
    rules: p.Rules = field(default_factory=lambda: p.Rules((), ()))
    layers: list[p.Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = Table(self.scope, broken=frozenset(self.document.broken))

    @property
    def library(self) -> bool:
        return self.header is not None and self.header.kind == "library"

    @property
    def source(self) -> Source:
        return self.document.span.source


def check_document(
    key: str, document: s.Document, find: Find, keys: tuple[str, ...], given: Given = NOBODY_GIVEN
) -> tuple[Work, tuple[Diagnostic, ...]]:
    """All passes over one text. The findings are in the order of the text."""
    work = Work(key, document, find, keys, given, Scope(broken=frozenset(document.broken)))
    for one_pass in PASSES:
        one_pass(work)
    found = sorted(_at_home(work), key=lambda one: (one.span.start if one.span else 0, one.code))
    return work, tuple(found)


def program_of(work: Work) -> p.Program:
    """The program of a text without errors."""
    header = work.header
    assert header is not None, work.key
    text = canonical_text(work, header)
    return p.Program(
        name=header.name.text,
        version=int(header.version.digits),
        sha256=sha256(text.encode()).hexdigest(),
        text=text,
        inputs=work.scope.inputs(),
        metrics=work.scope.metrics(),
        outage=work.outage,
        queue=work.queue or default_queue(header.span),
        gang=work.gang,
        rules=work.rules,
        layers=tuple(work.layers),
        preemption=work.preemption or p.Preemption("own", None),
        parameters=work.scope.parameters(),
        resources=work.scope.known_resources(),
        extenders=work.extenders,
        states=work.scope.states(),
    )


def canonical_text(work: Work, header: s.Header) -> str:
    """The policy without includes, changes and comments: everything in its final form, formatted."""
    values = work.scope.parameters()
    kept = [
        with_its_value(one, values[one.name.text]) if isinstance(one, s.Parameter) else one
        for one in work.expansion.statements
        if isinstance(one, s.Parameter | s.Let | s.Record | s.Input | s.Metric | s.State | s.Resource)
    ]
    layers = [one for one in work.expansion.statements if isinstance(one, s.Layer)]
    asked = [one for one in work.expansion.statements if isinstance(one, s.Extender)]
    statements = (header, *kept, *work.once.values(), *work.table.rules.values(), *asked, *layers)
    return print_document(s.Document(statements, (), work.document.span))


# ── passes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_header(work: Work) -> None:
    """One header, before everything else."""
    document, scope = work.document, work.scope
    for statement in document.statements:
        if not isinstance(statement, s.Header):
            continue
        if work.header is not None:
            scope.report(
                "PS213",
                "a second header",
                statement.span,
                label="one is enough",
                related=(declared_at(work.header.span),),
                help="a text is one policy or one library",
            )
            continue
        work.header = statement
        if statement is not document.statements[0]:
            scope.report(
                "PS232",
                f"`{statement.kind}` must be the first statement",
                statement.span,
                help="move it to the top",
            )
    if work.header is None and not _HEADER.search(work.source.text):
        start = document.statements[0].span if document.statements else Span(work.source, 0, 0)
        scope.report(
            "PS232",
            "nothing says what this is",
            start,
            label="the header is missing",
            help="let the first line be `policy NAME version 1`; pods choose it with `schedulerName: NAME`",
        )


def expand_includes(work: Work) -> None:
    work.expansion = expand(work.scope, work.key, work.document, work.find, work.keys)


def declare_names(work: Work) -> None:
    """In the order of the text: a declaration may use those above it."""
    if work.header is not None and not work.library:
        names = [one.name.text for one in work.expansion.statements if isinstance(one, s.Parameter)]
        work.scope.given = given_to(work.header.name.text, work.given, frozenset(names))
    if any(isinstance(one, s.Gang) for one in work.expansion.statements):
        work.scope.gang = DeclaredGang()
    for statement in work.expansion.statements:
        match statement:
            case s.Parameter():
                declare_parameter(work.scope, statement)
            case s.Let():
                declare_let(work.scope, statement)
            case s.Record():
                declare_record(work.scope, statement)
            case s.Input():
                declare_input(work.scope, statement)
            case s.Metric():
                declare_metric(work.scope, statement)
            case s.State():
                declare_state(work.scope, statement)
            case s.Resource():
                declare_resource(work.scope, statement)


def look_at_what_was_given(work: Work) -> None:
    """Values for parameters that are not there, and what could not be read where values are given."""
    given_for_nothing(work.scope)


def read_once(work: Work) -> None:
    """The statements that stand once: queue, gang, outage, preemption."""
    for statement in work.expansion.statements:
        if not isinstance(statement, _Once):
            continue
        first = work.once.setdefault(type(statement), statement)
        if first is not statement:
            word = type(statement).__name__.lower()
            work.scope.report(
                "PS213",
                f"a second `{word}`",
                statement.span,
                label="one is enough",
                related=(declared_at(first.span),),
            )
    for statement in work.once.values():
        match statement:
            case s.Queue():
                work.queue = queue(work.scope, statement)
            case s.Gang():
                work.gang = gang(work.scope, statement)
                by = None if work.gang is None else work.gang.by
                work.scope.gang = DeclaredGang(by, read=True)
                work.scope.meant.clear()  # what reads the gang was read without it
            case s.Outage():
                work.outage = outage(work.scope, statement)
            case s.Preemption():
                work.preemption = preemption(work.scope, statement)


def read_extenders(work: Work) -> None:
    asked = [one for one in work.expansion.statements if isinstance(one, s.Extender)]
    work.extenders = extenders(work.scope, asked)
    without_whole_gang(work.scope, work.gang, work.extenders)


def apply_changes(work: Work) -> None:
    """Rules and their changes outside layers, on the syntax."""
    table = work.table
    for statement in work.expansion.statements:
        form: Written | None = None
        match statement:
            case s.Filter() | s.Score():
                table.add(statement)
                form = statement
            case s.Replace(rule=written):
                table.replace(written)
                form = written
            case s.Amend():
                form = table.amend(statement)
            case s.Reweight():
                form = table.reweight(statement)
            case s.Drop():
                table.drop(statement)
        if form is not None and id(statement) not in work.expansion.via:
            work.forms.append(form)


def check_rules(work: Work) -> None:
    """Each rule in its last form; earlier forms of this text too, for their mistakes."""
    filters: list[p.FilterRule | p.BuiltinFilter] = []
    scores: list[p.ScoreRule | p.BuiltinScore] = []
    last = {id(written) for written in work.table.rules.values()}
    for form in work.forms:
        if id(form) not in last:
            rule(work.scope, form, frozenset())
    for written in work.table.rules.values():
        match rule(work.scope, written, frozenset()):
            case p.FilterRule() | p.BuiltinFilter() as one:
                filters.append(one)
            case p.ScoreRule() | p.BuiltinScore() as one:
                scores.append(one)
            case None:
                pass
    work.rules = p.Rules(tuple(filters), tuple(scores))


def check_layers(work: Work) -> None:
    table = Table(work.scope, dict(work.table.rules), work.table.broken)
    forms: dict[tuple[Kind, str], list[Written]] = {
        (kind_of(one), one.name.text): [one] for one in work.table.rules.values()
    }
    layers = Layers(work.scope, table, forms)
    for statement in work.expansion.statements:
        if isinstance(statement, s.Layer):
            checked = layers.check(statement)
            if checked is not None:
                work.layers.append(checked)


def count_rules(work: Work) -> None:
    """The limit on rules, at the first one over it."""
    rules = [one for one in work.table.rules.values() if one.span.source is work.source]
    in_layers = [
        one
        for layer in work.expansion.statements
        if isinstance(layer, s.Layer)
        for one in layer.body
        if isinstance(one, s.Filter | s.Score | s.Replace)
    ]
    total = len(work.table.rules) + len(in_layers)
    if total > RULES_MAX:
        place = [*rules, *in_layers]
        span = place[-1].span if place else work.document.span
        work.scope.report(
            "PS239",
            f"the policy has {total} rules, and {RULES_MAX} is the most",
            span,
            help='join rules that differ in one value: `x in ["a", "b"]`',
        )


def look_for_doubts(work: Work) -> None:
    """Lints over the whole, where it has no errors: a half-read policy would draw false ones."""
    if work.scope.error_count() == 0 and work.header is not None:
        lints.unused(work.scope, work.source, library=work.library)
        if not work.library:
            lints.whole_policy(work.scope, work.header, work.rules)


PASSES: tuple[Callable[[Work], None], ...] = (
    read_header,
    expand_includes,  # first of all: the others see one list of statements
    declare_names,
    look_at_what_was_given,
    read_once,
    read_extenders,
    apply_changes,  # before checking: an amended rule is checked as if it had been written so
    check_rules,
    check_layers,  # after the rules that they change
    count_rules,
    look_for_doubts,  # last: they know what was used
)


def _at_home(work: Work) -> list[Diagnostic]:
    """The findings with places in this text: an error inside something included is said at the `include`."""
    via = {
        id(statement.span.source): work.expansion.via[id(statement)]
        for statement in work.expansion.statements
        if id(statement) in work.expansion.via
    }
    given = {id(source) for source in work.scope.given.sources()}
    kept: list[Diagnostic] = []
    for one in work.scope.diagnostics:
        if one.span is None or one.span.source is work.source or id(one.span.source) in given:
            kept.append(one)
        elif one.severity is Severity.ERROR:
            place = via.get(id(one.span.source), work.document.span)
            where = f"in `{one.span.source.name}`, line {one.span.source.position(one.span.start).line}"
            kept.append(replace(one, span=place, notes=(*one.notes, where)))
    return kept
