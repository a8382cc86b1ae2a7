"""What decides beside the rules, as a reader would write it: metrics, what an outage does, the queue, gangs, whom pods may evict.

The clauses are those of the expanded text, so what came from a library stands there too; a constant that one of them mentions
stands before it. What nobody wrote is said as it then is, for a policy has an order and a preemption in any case.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policysched.lang.format.layout import laid_out, shape_of
from policysched.lang.ir.program import Program
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source

_DEFAULTS: tuple[tuple[type[s.Statement], str], ...] = (
    (s.Queue, "queue by pod.priority desc, pod.queued"),
    (s.Preemption, "preemption { victims = own }"),
)
"""What a policy without such a statement does, in the language's words (`lang.check` has the values)."""

_IN_AN_OUTAGE = {
    "disable": "the rules that read it do not apply",
    "wait": "pods to which a rule applies that reads it wait",
}


@dataclass(frozen=True, slots=True)
class Clause:
    """One statement, laid out. Not `written`: nobody said so, and it is the default."""

    text: str
    written: bool = True


def clauses(program: Program) -> tuple[Clause, ...]:
    """In the order of the text, defaults at the end."""
    document, found = parse(Source(program.name, program.text))
    assert not found, f"the expanded text of {program.name} does not parse: {found[0].message}"
    lets = {one.name.text: one for one in document.statements if isinstance(one, s.Let)}
    shown: dict[str, None] = {}
    for one in document.statements:
        match one:
            case (
                s.Input()
                | s.Metric()
                | s.State()
                | s.Resource()
                | s.Queue()
                | s.Gang()
                | s.Outage()
                | s.Preemption()
            ):
                shown.update(dict.fromkeys(_with_constants(one, lets)))
    stand = {type(one) for one in document.statements}
    defaults = (Clause(text, written=False) for kind, text in _DEFAULTS if kind not in stand)
    return (*map(Clause, shown), *defaults)


def _with_constants(statement: s.Statement, lets: Mapping[str, s.Let]) -> Iterator[str]:
    """The names that it mentions first, with the names that those mention."""
    text = "\n".join(laid_out(shape_of(statement), ""))
    for word in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)):
        if word in lets and lets[word] is not statement:
            yield from _with_constants(lets[word], lets)
    yield text


def outage_sentence(program: Program) -> str | None:
    """What happens while samples are lacking, with the numbers that count; None of a policy without metrics."""
    if not program.metrics:
        return None
    if program.outage is None:
        return "a node without a sample is as each rule says (`missing`, `else`), however many there are"
    if program.outage.above >= 1:
        return "`above` is 100%, so a node without a sample is as each rule says (`missing`, `else`), however many there are"
    above = f"{program.outage.above * 100:g}%"
    return (
        f"while more than {above} of a pod's candidates have no fresh sample of a metric, "
        f"{_IN_AN_OUTAGE[program.outage.then]}"
    )
