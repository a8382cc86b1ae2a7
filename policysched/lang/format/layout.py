"""Layout of a statement: its segments and how they are broken into lines. `printer` attaches the comments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from policysched.lang.format.expression_text import (
    SUM_LEVEL,
    condition_lines,
    expression_text,
    number_text,
    string_text,
)
from policysched.lang.syntax import tree as s
from policysched.text import Span

LINE_WIDTH = 100
_UP_TO_BRACE = re.compile(r"(?:\s|#[^\n]*\n)*\}")
INDENT = "  "


@dataclass(slots=True)
class LayoutSegment:
    """A part of a statement. `lines` is used where `text` is too long; each line includes its extra indent.

    `start` and `end` are source offsets; they determine which comments belong to the segment.
    """

    text: str
    lines: list[str]
    start: int
    end: int
    opens_brace: bool = False  # begins with a `{` that stays on the line before
    leading_comments: list[str] = field(default_factory=list)  # comments on lines of their own
    trailing_comments: list[str] = field(default_factory=list)  # comments at the end of its line

    @property
    def has_comments(self) -> bool:
        return bool(self.leading_comments or self.trailing_comments)


@dataclass(slots=True)
class StatementLayout:
    """`head seg seg`, or `head a, b` (separator), or `head { params }` (block)."""

    head: LayoutSegment
    segments: list[LayoutSegment]
    separator: str = ""
    is_block: bool = False
    one_per_line: bool = False  # a block with a line for each parameter even where one line would do
    closing_comments: list[str] = field(default_factory=list)  # comments behind the last parameter


def layout_lines(shape: StatementLayout, indent: str) -> list[str]:
    """The lines of a statement."""
    commented = (
        shape.closing_comments
        or shape.head.has_comments
        or any(segment.has_comments for segment in shape.segments)
    )
    if not commented and not (shape.one_per_line and shape.segments):
        line = indent + _one_line(shape)
        if len(line) <= LINE_WIDTH:
            return [line]
    return list(
        _block_lines(shape, indent)
        if shape.is_block
        else _filled_lines(shape, indent, one_each=bool(commented))
    )


def _one_line(shape: StatementLayout) -> str:
    texts = [segment.text for segment in shape.segments]
    if shape.is_block:
        return f"{shape.head.text} {_in_braces(texts)}"
    return " ".join((shape.head.text, f"{shape.separator} ".join(texts))) if texts else shape.head.text


def _in_braces(texts: Sequence[str]) -> str:
    return f"{{ {', '.join(texts)} }}" if texts else "{}"


def _block_lines(shape: StatementLayout, indent: str) -> Iterator[str]:
    inner = indent + INDENT
    yield f"{indent}{shape.head.text} {{{_trailing_comment_text(shape.head)}"
    for segment in shape.segments:
        yield from (inner + comment for comment in segment.leading_comments)
        lines = _segment_lines(segment, inner)
        lines[-1] += _trailing_comment_text(segment)
        yield from lines
    yield from (inner + comment for comment in shape.closing_comments)
    yield f"{indent}}}"


def _filled_lines(shape: StatementLayout, indent: str, *, one_each: bool) -> Iterator[str]:
    """Segments on the line of the head as far as they fit, then on indented lines."""
    inner = indent + INDENT
    line: str | None = indent + shape.head.text + _trailing_comment_text(shape.head)
    closed = bool(shape.head.trailing_comments) or one_each
    for segment in shape.segments:
        comma = shape.separator if segment is not shape.segments[-1] else ""
        if line is not None and not closed and len(line) + len(segment.text) + len(comma) < LINE_WIDTH:
            line += f" {segment.text}{comma}"
            continue
        if (
            segment.opens_brace
            and line is not None
            and not segment.has_comments
            and "  #" not in line[len(indent) :]
        ):
            if len(line) + len(segment.text) < LINE_WIDTH:
                line += f" {segment.text}"
                continue
            yield f"{line} {segment.lines[0]}"
            yield from (indent + rest for rest in segment.lines[1:-1])
            line = indent + segment.lines[-1]
            continue
        if line is not None:
            yield line
        yield from (inner + comment for comment in segment.leading_comments)
        *lines, line = _segment_lines(segment, inner)
        yield from lines
        line += comma + _trailing_comment_text(segment)
        closed = bool(segment.trailing_comments) or one_each or bool(lines)
    if line is not None:
        yield line
    yield from (inner + comment for comment in shape.closing_comments)


def _segment_lines(segment: LayoutSegment, indent: str) -> list[str]:
    if len(indent) + len(segment.text) <= LINE_WIDTH:
        return [indent + segment.text]
    return [indent + line for line in segment.lines]


def _trailing_comment_text(segment: LayoutSegment) -> str:
    return f"  {' '.join(segment.trailing_comments)}" if segment.trailing_comments else ""


# ── statements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def statement_layout(statement: s.Statement) -> StatementLayout:
    """Head and segments of any statement but a layer. A flat table, a few lines for each kind of statement."""
    span = statement.span
    match statement:
        case s.HeaderDecl():
            version = number_text(statement.version)
            return _single_segment_layout(span, f"{statement.kind} {statement.name.text} version {version}")
        case s.IncludeDecl():
            return _single_segment_layout(span, _include_text(statement))
        case s.ParameterDecl():
            return _parameter_layout(statement)
        case s.LetDecl(name=name, type=type_, value=value):
            head = _segment(f"let {name.text}: {type_text(type_)} =", span, end=type_.span.end)
            return StatementLayout(head, [_expression_segment("", value, value.span)])
        case s.RecordDecl(name=name, fields=fields):
            head = _segment(f"record {name.text}", span, end=name.span.end)
            parts = [_segment(_field_text(field), field.span) for field in fields]
            return StatementLayout(head, parts, is_block=True, one_per_line=True)
        case s.InputDecl():
            return _input_layout(statement)
        case s.MetricDecl(name=name, type=type_, params=params):
            return _block_layout(
                f"metric {name.text}: {type_text(type_)}", span, type_.span.end, params, tall=True
            )
        case s.StateDecl(name=name, type=type_, params=params):
            return _block_layout(
                f"state {name.text}: {type_text(type_)}", span, type_.span.end, params, tall=True
            )
        case s.ResourceDecl(name=name, params=params):
            return _block_layout(f"resource {name.text}", span, name.span.end, params)
        case s.QuotaDecl():
            return _quota_layout(statement)
        case s.OutageDecl(params=params):
            return _block_layout("outage", span, span.start + len("outage"), params)
        case s.PreemptionDecl(params=params):
            if params is None:
                return _single_segment_layout(span, "preemption never")
            return _block_layout("preemption", span, span.start + len("preemption"), params)
        case s.GangDecl(key=by, params=params):
            if not params:
                return _single_segment_layout(span, f"gang by {expression_text(by)}")
            return _block_layout(f"gang by {expression_text(by)}", span, by.span.end, params, tall=True)
        case s.QueueDecl(keys=keys):
            head = _segment("queue by", span, end=span.start + len("queue"))
            return StatementLayout(head, [_order_key_segment(key) for key in keys], separator=",")
        case s.ExtenderDecl(name=name, clauses=clauses):
            return _clauses_layout(f"extender {name.text}", span, name, clauses, None)
        case s.FilterDecl() | s.ScoreDecl():
            return _rule_layout("", statement, span)
        case s.ShadowDecl(rule=rule):
            return _rule_layout("shadow ", rule, span)
        case s.ReplaceStatement(rule=rule):
            return _rule_layout("replace ", rule, span)
        case s.AmendStatement(kind=kind, name=name, clauses=clauses, params=params):
            written = f"amend {name.text}" if kind is None else f"amend {kind.text} {name.text}"
            return _clauses_layout(written, span, name, clauses, params)
        case s.ReweightStatement(name=name, weight=weight):
            return _single_segment_layout(span, f"reweight {name.text} {expression_text(weight)}")
        case s.DropStatement(kind=kind, name=name):
            return _single_segment_layout(
                span, f"drop {name.text}" if kind is None else f"drop {kind.text} {name.text}"
            )
        case _:
            raise AssertionError(f"layers are printed by the printer: {statement!r}")


def _quota_layout(statement: s.QuotaDecl) -> StatementLayout:
    parent = statement.parent
    head = f"quota {statement.name.text} by {expression_text(statement.key)}"
    if parent is not None:
        head += f" within {parent.text}"
    end = statement.key.span.end if parent is None else parent.span.end
    rows = [_quota_row_segment(row) for row in statement.rows]
    return StatementLayout(_segment(head, statement.span, end=end), rows, is_block=True, one_per_line=True)


def _quota_row_segment(row: s.QuotaRowDecl) -> LayoutSegment:
    name = " in ".join(string_text(part.value) for part in row.path) or "others"
    if row.amounts is None:
        return _segment(f"{name} unlimited", row.span)
    parts = [_quota_amount_text(amount) for amount in row.amounts]
    lines = [f"{name} {{", *(INDENT + part for part in parts), "}"]
    return LayoutSegment(f"{name} {_in_braces(parts)}", lines, row.span.start, row.span.end)


def _quota_amount_text(amount: s.QuotaAmountDecl) -> str:
    name = (
        string_text(amount.resource.value)
        if isinstance(amount.resource, s.StringLit)
        else amount.resource.text
    )
    borrow = "" if amount.borrow is None else f" borrow {expression_text(amount.borrow, SUM_LEVEL)}"
    return f"{name} = {expression_text(amount.amount, SUM_LEVEL)}{borrow}"


def _include_text(statement: s.IncludeDecl) -> str:
    match statement.target:
        case s.StringLit(value=value):
            return f"include {string_text(value)}"
        case s.Identifier(text=name):
            version = statement.version
            return f"include {name}" + (f" {string_text(version.value)}" if version else "")


def _parameter_layout(statement: s.ParameterDecl) -> StatementLayout:
    type_, default, limits = statement.type, statement.default, statement.limits
    head_text = f"{'locked ' if statement.locked else ''}param {statement.name.text}: {type_text(type_)} ="
    head = _segment(head_text, statement.span, end=type_.span.end)
    parts = [_segment(expression_text(default, SUM_LEVEL), default.span)]
    if limits is not None:
        parts.append(_segment(_limits_text(limits), limits.span))
    return StatementLayout(head, parts)


def _field_text(field: s.RecordFieldDecl) -> str:
    parts = [f"{field.name.text}: {type_text(field.type)}"]
    if field.key is not None:
        parts.append(f"= {string_text(field.key.value)}")
    if field.unit is not None:
        parts.append(f"unit {string_text(field.unit.value)}")
    if field.absent is not None:
        value = "" if field.absent.value is None else f" {expression_text(field.absent.value)}"
        parts.append(f"{field.absent.kind}{value}")
    return " ".join(parts)


def _limits_text(limits: s.RangeLimit | s.ChoiceLimit) -> str:
    if isinstance(limits, s.ChoiceLimit):
        return f"in [{', '.join(expression_text(item) for item in limits.items)}]"
    return f"range {expression_text(limits.low, SUM_LEVEL)}..{expression_text(limits.high, SUM_LEVEL)}"


def type_text(type_: s.TypeRef) -> str:
    """In a loop: no limit on the levels is checked before."""
    names, argument = [type_.name.text], type_.argument
    while argument is not None:
        names.append(argument.name.text)
        argument = argument.argument
    return "<".join(names) + ">" * (len(names) - 1)


def _single_segment_layout(span: Span, text: str) -> StatementLayout:
    return StatementLayout(_segment(text, span), [])


def _segment(text: str, span: Span, *, end: int | None = None) -> LayoutSegment:
    return LayoutSegment(text, [text], span.start, span.end if end is None else end)


def _expression_segment(word: str, value: s.Expression, span: Span) -> LayoutSegment:
    """`require E`, which can be broken before the `and`s and `or`s of E."""
    first, *rest = condition_lines(value)
    before = f"{word} " if word else ""
    return LayoutSegment(
        before + expression_text(value),
        [before + first, *(INDENT + line for line in rest)],
        span.start,
        span.end,
    )


def _input_layout(statement: s.InputDecl) -> StatementLayout:
    name, source = statement.name.text, statement.source
    head = f"input {name}: {type_text(statement.type)} = {expression_text(source)}"
    segments = []
    if statement.json_path is not None:
        segments.append(_segment(f"at {string_text(statement.json_path.value)}", statement.json_path.span))
    if statement.unit is not None:
        segments.append(_segment(f"unit {string_text(statement.unit.value)}", statement.unit.span))
    absent = statement.absent
    if absent is not None:
        value = "" if absent.value is None else f" {expression_text(absent.value)}"
        segments.append(_segment(f"{absent.kind}{value}", absent.span))
    invalid = statement.invalid
    if invalid is not None:
        text = "" if invalid.text is None else f" {string_text(invalid.text.value)}"
        segments.append(_segment(f"invalid {invalid.kind}{text}", invalid.span))
    return StatementLayout(_segment(head, statement.span, end=source.span.end), segments)


def _order_key_segment(key: s.OrderKeyDecl) -> LayoutSegment:
    return _segment(expression_text(key.value) + (" desc" if key.descending else ""), key.span)


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rule_layout(before: str, rule: s.FilterDecl | s.ScoreDecl, span: Span) -> StatementLayout:
    word = "filter" if isinstance(rule, s.FilterDecl) else "score"
    head = f"{before}{'locked ' if rule.locked else ''}{word} {rule.name.text}"
    return _clauses_layout(head, span, rule.name, rule.clauses, rule.params)


def _clauses_layout(
    head: str,
    span: Span,
    name: s.Identifier,
    clauses: tuple[s.Clause, ...],
    params: tuple[s.Param | s.ParamBlock, ...] | None,
) -> StatementLayout:
    segments = [_clause_segment(clause) for clause in clauses]
    if params is not None:
        parts = [_param_segment(param) for param in params]
        start = parts[0].start if parts else span.end
        end = _closing_brace_offset(span, parts[-1].end) if parts else span.end
        lines = ["{", *(INDENT + line for part in parts for line in _segment_lines(part, "")), "}"]
        segments.append(
            LayoutSegment(_in_braces([part.text for part in parts]), lines, start, end, opens_brace=True)
        )
    return StatementLayout(_segment(head, span, end=name.span.end), segments)


def _closing_brace_offset(span: Span, last_end: int) -> int:
    """The offset after the closing brace; comments before it belong to the last parameter."""
    match = _UP_TO_BRACE.match(span.source.text, last_end, span.end)
    return span.end if match is None else match.end()


def _clause_segment(clause: s.Clause) -> LayoutSegment:
    match clause:
        case s.WhenClause(condition=condition):
            return _expression_segment("when", condition, clause.span)
        case s.RequireClause(rejects=rejects, condition=condition, recover=recover):
            segment = _expression_segment("reject" if rejects else "require", condition, clause.span)
            return segment if recover is None else _with_recover_clause(segment, recover)
        case s.ScoreValueClause(direction=direction, value=value):
            return _expression_segment(direction, value, clause.span)
        case s.MissingClause(choice=choice):
            return _segment(f"missing {_choice_text(choice)}", clause.span)
        case s.ScaleupClause(choice=choice):
            return _segment(f"scaleup {choice.text}", clause.span)
        case s.MessageClause(text=text):
            return _segment(f"says {string_text(text.value)}", clause.span)
        case s.WeightClause(weight=weight):
            return _segment(f"weight {expression_text(weight)}", clause.span)
        case s.NormalizeClause(method=method, args=args):
            listed = f"({', '.join(expression_text(arg) for arg in args)})" if args else ""
            return _segment(f"normalize {method.text}{listed}", clause.span)


def _with_recover_clause(segment: LayoutSegment, recover: s.RecoverClause) -> LayoutSegment:
    behind = f" recover {expression_text(recover.recover_at, SUM_LEVEL)} for {expression_text(recover.duration, SUM_LEVEL)}"
    *first, last = segment.lines
    return LayoutSegment(segment.text + behind, [*first, last + behind], segment.start, segment.end)


def _choice_text(choice: s.Identifier | s.NumberLit) -> str:
    return choice.text if isinstance(choice, s.Identifier) else number_text(choice)


# ── parameters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _block_layout(
    head: str, span: Span, head_end: int, params: tuple[s.Param | s.ParamBlock, ...], *, tall: bool = False
) -> StatementLayout:
    return StatementLayout(
        _segment(head, span, end=head_end),
        [_param_segment(param) for param in params],
        is_block=True,
        one_per_line=tall,
    )


def _param_segment(param: s.Param | s.ParamBlock) -> LayoutSegment:
    name, span = param.name.text, param.span
    if isinstance(param, s.ParamBlock):
        parts = [_param_segment(inner) for inner in param.params]
        lines = [f"{name} {{", *(INDENT + line for part in parts for line in _segment_lines(part, "")), "}"]
        return LayoutSegment(
            f"{name} {_in_braces([part.text for part in parts])}", lines, span.start, span.end
        )
    if isinstance(param.value, s.MapLit) and param.value.order:
        keys = [_order_key_segment(key).text for key in param.value.order]
        if len(keys) == 1:
            return _segment(f"{name} = {keys[0]}", span)
        lines = [f"{name} = [", *(f"{INDENT}{key}," for key in keys[:-1]), INDENT + keys[-1], "]"]
        return LayoutSegment(f"{name} = [{', '.join(keys)}]", lines, span.start, span.end)
    if isinstance(param.value, s.MapLit):
        sign, first, last = (" ", "[", "]") if param.value.levels else (" = ", "{", "}")
        entries = [
            f"{string_text(key.value)}{sign}{expression_text(value)}" for key, value in param.value.entries
        ]
        lines = [
            f"{name} = {first}",
            *(f"{INDENT}{entry}," for entry in entries[:-1]),
            *(INDENT + e for e in entries[-1:]),
            last,
        ]
        return LayoutSegment(f"{name} = {first}{', '.join(entries)}{last}", lines, span.start, span.end)
    return _expression_segment(f"{name} =", param.value, span)
