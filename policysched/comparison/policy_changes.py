"""The statements that differ between two policies, and the policies in between.

Compared is the canonical text of each program: includes are expanded, rules have their final form, and comments are gone.
`mixed_program` takes some of the changes over into the old policy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import location_of
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source, Span

StatementKey = tuple[str, str]
"""The keyword and the name (empty for a statement that occurs once)."""

ChangeKind = Literal["added", "removed", "changed", "moved"]

_ORDER: StatementKey = ("layer", "")
"""The order of the layers, as one change of its own: later layers apply to what earlier ones left."""

_COST_UNLIMITED = 2**62
"""The limit on the cost holds for the two policies; what is in between never runs in a cluster."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One statement that differs. `location` is in the text that has it: the new one (`in_new`), or the old one for a
    statement that was removed. The texts are canonical; None: the policy has no such statement."""

    number: int
    key: StatementKey
    kind: ChangeKind
    location: str
    in_new: bool
    old_text: str | None
    new_text: str | None

    @property
    def statement(self) -> str:
        """`filter link_cool`."""
        return " ".join(part for part in self.key if part) if self.key != _ORDER else "order of layers"

    def record(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "statement": self.statement,
            "change": self.kind,
            "location": self.location,
            "in": "new" if self.in_new else "old",
            "old": self.old_text,
            "new": self.new_text,
        }


def policy_changes(old: Program, new: Program) -> tuple[PolicyChange, ...]:
    """In the order of the new policy; removed statements come last. Numbered from 1. The name of the policy is no change."""
    before, after = _statements(old.text), _statements(new.text)
    changed_keys: list[tuple[StatementKey, ChangeKind]] = []
    for key, text in after.items():
        if key not in before:
            changed_keys.append((key, "added"))
        elif before[key] != text:
            changed_keys.append((key, "changed"))
    changed_keys += [(key, "removed") for key in before if key not in after]
    if _common_layers(before, after) != _common_layers(after, before):
        changed_keys.append((_ORDER, "moved"))
    old_locations, new_locations = _StatementLocations(old), _StatementLocations(new)
    return tuple(
        PolicyChange(
            number, key, kind, *_location(key, old_locations, new_locations), before.get(key), after.get(key)
        )
        for number, (key, kind) in enumerate(changed_keys, start=1)
    )


def _location(key: StatementKey, old: "_StatementLocations", new: "_StatementLocations") -> tuple[str, bool]:
    """Where the change is written: the text of a policy before the libraries that it includes, the new one first."""
    for find in (_StatementLocations.own, _StatementLocations.included):
        for locations, in_new in ((new, True), (old, False)):
            span = find(locations, key)
            if span is not None:
                return location_of(span), in_new
    return location_of(new.program.name_span), True


def mixed_program(
    old: Program, new: Program, changes: Iterable[PolicyChange], taken: Collection[int]
) -> Program | None:
    """The old policy with the changes of these numbers, under the old name. None: it would have errors, as a rule has
    without the declaration that it reads."""
    before, after = _statements(old.text), _statements(new.text)
    keys = {change.key for change in changes if change.number in taken}
    for first, second in ((after, before), (before, after)):
        if _ORDER in keys or _common_layers(before, after) == _common_layers(after, before):
            order = _merged_order(first, second)
        else:
            order = _merged_order(before, after)
        texts = [after.get(key) if key in keys else before.get(key) for key in order]
        lines = [_header_line(old.text), *(text for text in texts if text is not None)]
        checked = check_text("\n".join(lines) + "\n", f"{old.name}.policy", cost_max=_COST_UNLIMITED)
        if checked.program is not None:
            return checked.program
    return None


def under_name(program: Program, name: str) -> Program:
    """The same policy with another name, so that two policies place the same pods."""
    if program.name == name:
        return program
    header, _, rest = program.text.partition("\n")
    renamed = header.replace(f"policy {program.name} ", f"policy {name} ", 1)
    checked = check_text(f"{renamed}\n{rest}", f"{name}.policy", cost_max=_COST_UNLIMITED)
    assert checked.program is not None, checked.diagnostics
    return checked.program


def _header_line(text: str) -> str:
    return text.partition("\n")[0]


def _statements(text: str) -> Mapping[StatementKey, str]:
    """The statements of a canonical text in its order, without the header."""
    document, _ = parse(Source("", text))
    return {_key(statement): statement.span.text for statement in document.statements[1:]}


def _common_layers(
    texts: Mapping[StatementKey, str], other: Mapping[StatementKey, str]
) -> list[StatementKey]:
    return [key for key in texts if key[0] == "layer" and key in other]


def _merged_order(first: Iterable[StatementKey], second: Iterable[StatementKey]) -> list[StatementKey]:
    """The order of the first; what only the second has follows its predecessor there."""
    order = list(first)
    at = 0
    for key in second:
        if key in order:
            at = order.index(key) + 1
        else:
            order.insert(at, key)
            at += 1
    return order


def _key(statement: s.Statement) -> StatementKey:
    match statement:
        case s.ReplaceStatement(rule=rule):
            return _key(rule)
        case s.FilterDecl(name=name):
            return "filter", name.text
        case s.ScoreDecl(name=name):
            return "score", name.text
        case s.ShadowDecl(rule=rule):
            kind, shadowed = _key(rule)
            return f"shadow {kind}", shadowed
        case s.LayerDecl(name=name):
            return "layer", name.text
    keyword = statement.span.text.removeprefix("locked").split(maxsplit=1)[0]
    declared: s.Identifier | None = getattr(statement, "name", None)
    return keyword, "" if declared is None else declared.text


class _StatementLocations:
    """Where the statements of a policy are written."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._own = dict(self._written(program.name_span.source))
        rules = program.rules
        self._included = {
            **{("filter", rule.name): rule.span for rule in rules.filters},
            **{("score", rule.name): rule.span for rule in rules.scores},
            **{("input", name): declared.span for name, declared in program.inputs.items()},
            **{("metric", name): declared.span for name, declared in program.metrics.items()},
            **{("resource", name): declared.span for name, declared in program.resources.items()},
            **{("state", name): declared.span for name, declared in program.states.items()},
        }

    def own(self, key: StatementKey) -> Span | None:
        """In the policy's own text: the statement that declares it, or the last one that changes it."""
        return self._own.get(key)

    def included(self, key: StatementKey) -> Span | None:
        """In a library, or at the include of a built-in set."""
        return self._included.get(key)

    @staticmethod
    def _written(source: Source) -> Iterator[tuple[StatementKey, Span]]:
        document, _ = parse(source)
        for statement in document.statements[1:]:
            match statement:
                case s.ReweightStatement(name=name):
                    yield ("score", name.text), statement.span
                case s.AmendStatement(kind=kind, name=name) | s.DropStatement(kind=kind, name=name):
                    for keyword in ("filter", "score") if kind is None else (kind.text,):
                        yield (keyword, name.text), statement.span
                case _:
                    yield _key(statement), statement.span
