"""What decides beside the rules, as a reader would write it: metrics, what an outage does, the queue, gangs, whom pods may evict.

The clauses are those of the expanded text, so what came from a library stands there too; a constant that one of them mentions
stands before it. What nobody wrote is said as it then is, for a policy has an order and a preemption in any case.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policysched.lang.format.layout import layout_lines, statement_layout
from policysched.lang.ir.program import Program
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source

_DEFAULT_STATEMENTS: tuple[tuple[type[s.Statement], str], ...] = (
    (s.QueueDecl, "queue by pod.priority desc, pod.queued"),
    (s.PreemptionDecl, "preemption { victims = own }"),
)
"""What a policy without such a statement does, in the language's words (`lang.check` has the values)."""

_OUTAGE_EFFECTS = {
    "disable": "the rules that read it do not apply",
    "wait": "pods to which a rule applies that reads it wait",
}


@dataclass(frozen=True, slots=True)
class RenderedClause:
    """One statement, laid out. Not `is_explicit`: nobody said so, and it is the default."""

    text: str
    is_explicit: bool = True


def render_clauses(program: Program) -> tuple[RenderedClause, ...]:
    """In the order of the text, defaults at the end."""
    document, found = parse(Source(program.name, program.text))
    assert not found, f"the expanded text of {program.name} does not parse: {found[0].message}"
    lets = {one.name.text: one for one in document.statements if isinstance(one, s.LetDecl)}
    shown: dict[str, None] = {}
    for one in document.statements:
        match one:
            case (
                s.InputDecl()
                | s.MetricDecl()
                | s.StateDecl()
                | s.ResourceDecl()
                | s.QueueDecl()
                | s.GangDecl()
                | s.OutageDecl()
                | s.PreemptionDecl()
            ):
                shown.update(dict.fromkeys(_with_referenced_constants(one, lets)))
    stand = {type(one) for one in document.statements}
    defaults = (
        RenderedClause(text, is_explicit=False) for kind, text in _DEFAULT_STATEMENTS if kind not in stand
    )
    return (*map(RenderedClause, shown), *defaults)


def _with_referenced_constants(statement: s.Statement, lets: Mapping[str, s.LetDecl]) -> Iterator[str]:
    """The names that it mentions first, with the names that those mention."""
    text = "\n".join(layout_lines(statement_layout(statement), ""))
    for word in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)):
        if word in lets and lets[word] is not statement:
            yield from _with_referenced_constants(lets[word], lets)
    yield text


def describe_outage(program: Program) -> str | None:
    """What happens while samples are lacking, with the numbers that count; None of a policy without metrics."""
    if not program.metrics:
        return None
    if program.outage is None:
        return "a node without a sample is as each rule says (`missing`, `else`), however many there are"
    if program.outage.missing_ratio_max >= 1:
        return "`above` is 100%, so a node without a sample is as each rule says (`missing`, `else`), however many there are"
    above = f"{program.outage.missing_ratio_max * 100:g}%"
    return (
        f"while more than {above} of a pod's candidates have no fresh sample of a metric, "
        f"{_OUTAGE_EFFECTS[program.outage.action]}"
    )
