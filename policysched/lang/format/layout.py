"""How a statement is broken into lines. For `printer`, which knows where the comments go."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from policysched.lang.format.expression_text import (
    SUM,
    condition_lines,
    expression_text,
    number_text,
    string_text,
)
from policysched.lang.syntax import tree as s
from policysched.text import Span

WIDTH = 100
_TO_THE_BRACE = re.compile(r"(?:\s|#[^\n]*\n)*\}")
INDENT = "  "


@dataclass(slots=True)
class Segment:
    """A part of a statement. `lines` is how it is broken where `text` is too long, each with its own further indent.

    `start` and `end` are offsets in the source: where its comments are looked for.
    """

    text: str
    lines: list[str]
    start: int
    end: int
    hangs: bool = False  # begins with a `{` that stays on the line before
    before: list[str] = field(default_factory=list)  # comments on lines of their own
    behind: list[str] = field(default_factory=list)  # comments at the end of its line

    @property
    def commented(self) -> bool:
        return bool(self.before or self.behind)


@dataclass(slots=True)
class Shape:
    """`head seg seg`, or `head a, b` (separator), or `head { params }` (block)."""

    head: Segment
    segments: list[Segment]
    separator: str = ""
    block: bool = False
    tall: bool = False  # a block with a line for each parameter even where one line would do
    last: list[str] = field(default_factory=list)  # comments behind the last parameter


def laid_out(shape: Shape, indent: str) -> list[str]:
    """The lines of a statement."""
    commented = shape.last or shape.head.commented or any(segment.commented for segment in shape.segments)
    if not commented and not (shape.tall and shape.segments):
        line = indent + _one_line(shape)
        if len(line) <= WIDTH:
            return [line]
    return list(_block(shape, indent) if shape.block else _filled(shape, indent, one_each=bool(commented)))


def _one_line(shape: Shape) -> str:
    texts = [segment.text for segment in shape.segments]
    if shape.block:
        return f"{shape.head.text} {_in_braces(texts)}"
    return " ".join((shape.head.text, f"{shape.separator} ".join(texts))) if texts else shape.head.text


def _in_braces(texts: Sequence[str]) -> str:
    return f"{{ {', '.join(texts)} }}" if texts else "{}"


def _block(shape: Shape, indent: str) -> Iterator[str]:
    inner = indent + INDENT
    yield f"{indent}{shape.head.text} {{{_behind(shape.head)}"
    for segment in shape.segments:
        yield from (inner + comment for comment in segment.before)
        lines = _broken(segment, inner)
        lines[-1] += _behind(segment)
        yield from lines
    yield from (inner + comment for comment in shape.last)
    yield f"{indent}}}"


def _filled(shape: Shape, indent: str, *, one_each: bool) -> Iterator[str]:
    """Segments on the line of the head as far as they fit, then on lines further right."""
    inner = indent + INDENT
    line: str | None = indent + shape.head.text + _behind(shape.head)
    closed = bool(shape.head.behind) or one_each
    for segment in shape.segments:
        comma = shape.separator if segment is not shape.segments[-1] else ""
        if line is not None and not closed and len(line) + len(segment.text) + len(comma) < WIDTH:
            line += f" {segment.text}{comma}"
            continue
        if segment.hangs and line is not None and not segment.commented and "  #" not in line[len(indent) :]:
            if len(line) + len(segment.text) < WIDTH:
                line += f" {segment.text}"
                continue
            yield f"{line} {segment.lines[0]}"
            yield from (indent + rest for rest in segment.lines[1:-1])
            line = indent + segment.lines[-1]
            continue
        if line is not None:
            yield line
        yield from (inner + comment for comment in segment.before)
        *lines, line = _broken(segment, inner)
        yield from lines
        line += comma + _behind(segment)
        closed = bool(segment.behind) or one_each or bool(lines)
    if line is not None:
        yield line
    yield from (inner + comment for comment in shape.last)


def _broken(segment: Segment, indent: str) -> list[str]:
    if len(indent) + len(segment.text) <= WIDTH:
        return [indent + segment.text]
    return [indent + line for line in segment.lines]


def _behind(segment: Segment) -> str:
    return f"  {' '.join(segment.behind)}" if segment.behind else ""


# ── statements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def shape_of(statement: s.Statement) -> Shape:
    """Head and segments of any statement but a layer. A flat table, a few lines for each kind of statement."""
    span = statement.span
    match statement:
        case s.Header():
            version = number_text(statement.version)
            return _words(span, f"{statement.kind} {statement.name.text} version {version}")
        case s.Include():
            return _words(span, _include_text(statement))
        case s.Parameter():
            return _parameter(statement)
        case s.Let(name=name, type=type_, value=value):
            head = _part(f"let {name.text}: {type_text(type_)} =", span, end=type_.span.end)
            return Shape(head, [_valued("", value, value.span)])
        case s.Record(name=name, fields=fields):
            head = _part(f"record {name.text}", span, end=name.span.end)
            parts = [_part(_field_text(field), field.span) for field in fields]
            return Shape(head, parts, block=True, tall=True)
        case s.Input():
            return _input(statement)
        case s.Metric(name=name, type=type_, params=params):
            return _braced(f"metric {name.text}: {type_text(type_)}", span, type_.span.end, params, tall=True)
        case s.State(name=name, type=type_, params=params):
            return _braced(f"state {name.text}: {type_text(type_)}", span, type_.span.end, params, tall=True)
        case s.Resource(name=name, params=params):
            return _braced(f"resource {name.text}", span, name.span.end, params)
        case s.Outage(params=params):
            return _braced("outage", span, span.start + len("outage"), params)
        case s.Preemption(params=params):
            if params is None:
                return _words(span, "preemption never")
            return _braced("preemption", span, span.start + len("preemption"), params)
        case s.Gang(by=by, params=params):
            if not params:
                return _words(span, f"gang by {expression_text(by)}")
            return _braced(f"gang by {expression_text(by)}", span, by.span.end, params, tall=True)
        case s.Queue(keys=keys):
            head = _part("queue by", span, end=span.start + len("queue"))
            return Shape(head, [_order_key(key) for key in keys], separator=",")
        case s.Extender(name=name, clauses=clauses):
            return _with_clauses(f"extender {name.text}", span, name, clauses, None)
        case s.Filter() | s.Score():
            return _rule("", statement, span)
        case s.Replace(rule=rule):
            return _rule("replace ", rule, span)
        case s.Amend(name=name, clauses=clauses, params=params):
            return _with_clauses(f"amend {name.text}", span, name, clauses, params)
        case s.Reweight(name=name, weight=weight):
            return _words(span, f"reweight {name.text} {expression_text(weight)}")
        case s.Drop(kind=kind, name=name):
            return _words(span, f"drop {name.text}" if kind is None else f"drop {kind.text} {name.text}")
        case _:
            raise AssertionError(f"a layer is laid out by the printer: {statement!r}")


def _include_text(statement: s.Include) -> str:
    match statement.target:
        case s.StringLit(value=value):
            return f"include {string_text(value)}"
        case s.Name(text=name):
            version = statement.version
            return f"include {name}" + (f" {string_text(version.value)}" if version else "")


def _parameter(statement: s.Parameter) -> Shape:
    type_, default, limits = statement.type, statement.default, statement.limits
    head = _part(f"param {statement.name.text}: {type_text(type_)} =", statement.span, end=type_.span.end)
    parts = [_part(expression_text(default, SUM), default.span)]
    if limits is not None:
        parts.append(_part(_limits_text(limits), limits.span))
    return Shape(head, parts)


def _field_text(field: s.RecordField) -> str:
    parts = [f"{field.name.text}: {type_text(field.type)}"]
    if field.key is not None:
        parts.append(f"= {string_text(field.key.value)}")
    if field.unit is not None:
        parts.append(f"unit {string_text(field.unit.value)}")
    if field.absent is not None:
        value = "" if field.absent.value is None else f" {expression_text(field.absent.value)}"
        parts.append(f"{field.absent.kind}{value}")
    return " ".join(parts)


def _limits_text(limits: s.Bounds | s.Choices) -> str:
    if isinstance(limits, s.Choices):
        return f"in [{', '.join(expression_text(item) for item in limits.items)}]"
    return f"range {expression_text(limits.low, SUM)}..{expression_text(limits.high, SUM)}"


def type_text(type_: s.TypeRef) -> str:
    return type_.name.text if type_.argument is None else f"{type_.name.text}<{type_text(type_.argument)}>"


def _words(span: Span, text: str) -> Shape:
    return Shape(_part(text, span), [])


def _part(text: str, span: Span, *, end: int | None = None) -> Segment:
    return Segment(text, [text], span.start, span.end if end is None else end)


def _valued(word: str, value: s.Expression, span: Span) -> Segment:
    """`require E`, which can be broken at the `and`s and `or`s of E."""
    first, *rest = condition_lines(value)
    before = f"{word} " if word else ""
    return Segment(
        before + expression_text(value),
        [before + first, *(INDENT + line for line in rest)],
        span.start,
        span.end,
    )


def _input(statement: s.Input) -> Shape:
    name, source = statement.name.text, statement.source
    head = f"input {name}: {type_text(statement.type)} = {expression_text(source)}"
    segments = []
    if statement.at is not None:
        segments.append(_part(f"at {string_text(statement.at.value)}", statement.at.span))
    if statement.unit is not None:
        segments.append(_part(f"unit {string_text(statement.unit.value)}", statement.unit.span))
    absent = statement.absent
    if absent is not None:
        value = "" if absent.value is None else f" {expression_text(absent.value)}"
        segments.append(_part(f"{absent.kind}{value}", absent.span))
    invalid = statement.invalid
    if invalid is not None:
        text = "" if invalid.text is None else f" {string_text(invalid.text.value)}"
        segments.append(_part(f"invalid {invalid.kind}{text}", invalid.span))
    return Shape(_part(head, statement.span, end=source.span.end), segments)


def _order_key(key: s.OrderKey) -> Segment:
    return _part(expression_text(key.value) + (" desc" if key.descending else ""), key.span)


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rule(before: str, rule: s.Filter | s.Score, span: Span) -> Shape:
    word = "filter" if isinstance(rule, s.Filter) else "score"
    head = f"{before}{'locked ' if rule.locked else ''}{word} {rule.name.text}"
    return _with_clauses(head, span, rule.name, rule.clauses, rule.params)


def _with_clauses(
    head: str,
    span: Span,
    name: s.Name,
    clauses: tuple[s.Clause, ...],
    params: tuple[s.Param | s.ParamBlock, ...] | None,
) -> Shape:
    segments = [_clause(clause) for clause in clauses]
    if params is not None:
        parts = [_param(param) for param in params]
        start = parts[0].start if parts else span.end
        end = _closing_brace(span, parts[-1].end) if parts else span.end
        lines = ["{", *(INDENT + line for part in parts for line in _broken(part, "")), "}"]
        segments.append(Segment(_in_braces([part.text for part in parts]), lines, start, end, hangs=True))
    return Shape(_part(head, span, end=name.span.end), segments)


def _closing_brace(span: Span, last_end: int) -> int:
    """Where the braces around parameters end, of which the last ended there: for the comments in between."""
    match = _TO_THE_BRACE.match(span.source.text, last_end, span.end)
    return span.end if match is None else match.end()


def _clause(clause: s.Clause) -> Segment:
    match clause:
        case s.WhenClause(condition=condition):
            return _valued("when", condition, clause.span)
        case s.RequireClause(rejects=rejects, condition=condition, recover=recover):
            segment = _valued("reject" if rejects else "require", condition, clause.span)
            return segment if recover is None else _recovering(segment, recover)
        case s.ValueClause(direction=direction, value=value):
            return _valued(direction, value, clause.span)
        case s.MissingClause(choice=choice):
            return _part(f"missing {_choice(choice)}", clause.span)
        case s.ScaleupClause(choice=choice):
            return _part(f"scaleup {choice.text}", clause.span)
        case s.TextClause(text=text):
            return _part(f"else {string_text(text.value)}", clause.span)
        case s.WeightClause(weight=weight):
            return _part(f"weight {expression_text(weight)}", clause.span)
        case s.NormalizeClause(method=method, args=args):
            listed = f"({', '.join(expression_text(arg) for arg in args)})" if args else ""
            return _part(f"normalize {method.text}{listed}", clause.span)


def _recovering(segment: Segment, recover: s.Recover) -> Segment:
    behind = f" recover {expression_text(recover.mark, SUM)} for {expression_text(recover.duration, SUM)}"
    *first, last = segment.lines
    return Segment(segment.text + behind, [*first, last + behind], segment.start, segment.end)


def _choice(choice: s.Name | s.NumberLit) -> str:
    return choice.text if isinstance(choice, s.Name) else number_text(choice)


# ── parameters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _braced(
    head: str, span: Span, head_end: int, params: tuple[s.Param | s.ParamBlock, ...], *, tall: bool = False
) -> Shape:
    return Shape(_part(head, span, end=head_end), [_param(param) for param in params], block=True, tall=tall)


def _param(param: s.Param | s.ParamBlock) -> Segment:
    name, span = param.name.text, param.span
    if isinstance(param, s.ParamBlock):
        parts = [_param(inner) for inner in param.params]
        lines = [f"{name} {{", *(INDENT + line for part in parts for line in _broken(part, "")), "}"]
        return Segment(f"{name} {_in_braces([part.text for part in parts])}", lines, span.start, span.end)
    if isinstance(param.value, s.MapLit):
        entries = [
            f"{string_text(key.value)} = {expression_text(value)}" for key, value in param.value.entries
        ]
        lines = [
            f"{name} = {{",
            *(f"{INDENT}{entry}," for entry in entries[:-1]),
            *(INDENT + e for e in entries[-1:]),
            "}",
        ]
        return Segment(f"{name} = {{{', '.join(entries)}}}", lines, span.start, span.end)
    return _valued(f"{name} =", param.value, span)
