"""Renders the statements of a policy other than its rules: inputs, metrics, outage, queue, gangs and preemption.

They come from the expanded text, so statements of included libraries are shown; a constant is shown before the statement
that uses it. Statements that the policy omits are shown with their defaults.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policysched.lang.format.layout import layout_lines, statement_layout
from policysched.lang.ir.program import Program
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Severity, Source

_DEFAULT_STATEMENTS: tuple[tuple[type[s.Statement], str], ...] = (
    (s.QueueDecl, "queue by pod.priority desc, pod.queued"),
    (s.PreemptionDecl, "preemption { victims = own }"),
)
"""The default statements as policy text; `lang.check` has the values."""

_OUTAGE_EFFECTS = {
    "disable": "the rules that read it do not apply",
    "wait": "pods wait if a rule that reads it applies to them",
}


@dataclass(frozen=True, slots=True)
class RenderedClause:
    """A formatted statement. `is_explicit` False: not in the policy; the default applies."""

    text: str
    is_explicit: bool = True


def render_clauses(program: Program) -> tuple[RenderedClause, ...]:
    """In source order, defaults at the end."""
    document, diagnostics = parse(Source(program.name, program.text))
    errors = [diagnostic.message for diagnostic in diagnostics if diagnostic.severity is Severity.ERROR]
    assert not errors, f"the expanded text of {program.name} does not parse: {errors[0]}"
    lets = {
        statement.name.text: statement
        for statement in document.statements
        if isinstance(statement, s.LetDecl)
    }
    texts: dict[str, None] = {}
    for statement in document.statements:
        match statement:
            case (
                s.InputDecl()
                | s.MetricDecl()
                | s.StateDecl()
                | s.ResourceDecl()
                | s.QuotaDecl()
                | s.QueueDecl()
                | s.GangDecl()
                | s.OutageDecl()
                | s.PreemptionDecl()
            ):
                texts.update(dict.fromkeys(_with_referenced_constants(statement, lets)))
    present = {type(statement) for statement in document.statements}
    defaults = (
        RenderedClause(text, is_explicit=False) for kind, text in _DEFAULT_STATEMENTS if kind not in present
    )
    return (*map(RenderedClause, texts), *defaults)


def _with_referenced_constants(statement: s.Statement, lets: Mapping[str, s.LetDecl]) -> Iterator[str]:
    """The constants that it uses, directly or through other constants, then the statement."""
    text = "\n".join(layout_lines(statement_layout(statement), ""))
    for word in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)):
        if word in lets and lets[word] is not statement:
            yield from _with_referenced_constants(lets[word], lets)
    yield text


def describe_outage(program: Program) -> str | None:
    """The behaviour of the policy while samples are missing; None for a policy without metrics."""
    if not program.metrics:
        return None
    if program.outage is None:
        return "no outage handling: each rule decides on nodes without a sample (`missing`, `else`)"
    if program.outage.missing_ratio_max >= 1:
        return "`above` is 100%: each rule decides on nodes without a sample (`missing`, `else`)"
    above = f"{program.outage.missing_ratio_max * 100:g}%"
    return (
        f"while more than {above} of a pod's candidates have no fresh sample of a metric, "
        f"{_OUTAGE_EFFECTS[program.outage.action]}"
    )
