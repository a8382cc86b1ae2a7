"""Builds the syntax tree while the grammar parses a statement.

There is one method per rule of `policy.lark`, which the parser calls as soon as the rule is complete.
No Lark tree is built, and nothing recurses however deep an expression is. The source being parsed is
in `parse_context`, because the parser is shared by the whole process.
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lark import Token, Transformer

from policysched.lang.syntax import tree as s
from policysched.text import Source, Span


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The part of a source that is being parsed: one statement, without trailing comments."""

    source: Source
    start: int
    end: int
    is_rule: bool  # a filter or score, where `else "text"` can end it

    @property
    def span(self) -> Span:
        return Span(self.source, self.start, self.end)


parse_context: ContextVar[ParseContext] = ContextVar("parse_context")

T = TypeVar("T")
Children = list[Any]
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_NUMBER = re.compile(r"([0-9.]+)(.*)")


def _first_of_type(children: Children, kind: type[T]) -> T | None:
    return next((child for child in children if isinstance(child, kind)), None)


def _start(child: Any) -> int:
    start = child.start_pos if isinstance(child, Token) else child.span.start
    assert isinstance(start, int)
    return start


def _end(child: Any) -> int:
    end = child.end_pos if isinstance(child, Token) else child.span.end
    assert isinstance(end, int)
    return end


def _span(children: Children) -> Span:
    """From the first child to the last; each is a token or a syntax node."""
    return Span(parse_context.get().source, _start(children[0]), _end(children[-1]))


def _name(token: Token) -> s.Identifier:
    return s.Identifier(str(token), _span([token]))


def _names(children: Children) -> list[s.Identifier]:
    return [
        _name(child)
        for child in children
        if isinstance(child, Token) and child.type in ("NAME", "POLICY_NAME")
    ]


def _number(token: Token) -> s.NumberLit:
    match = _NUMBER.match(token)
    assert match is not None, f"the grammar's NUMBER reads {token!r}"
    return s.NumberLit(match.group(1), match.group(2), _span([token]))


def _weight(token: Token) -> s.NumberLit | s.NameExpr:
    return _number(token) if token.type == "NUMBER" else s.NameExpr(str(token), _span([token]))


def _string(token: Token) -> s.StringLit:
    return s.StringLit(
        _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group()), token[1:-1]), _span([token])
    )


@dataclass(frozen=True, slots=True)
class _UnitClause:
    text: s.StringLit
    span: Span


@dataclass(frozen=True, slots=True)
class _PathClause:
    path: s.StringLit
    span: Span


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    params: tuple[s.Param | s.ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class LayerHead:
    name: s.Identifier
    condition: s.Expression


class TreeBuilder(Transformer[Token, Any]):
    """Children are tokens (only those named in the grammar) and the results of the methods below."""

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def statement(self, children: Children) -> s.Statement:
        return children[0]  # type: ignore[no-any-return]

    rule_statement = statement

    def header(self, children: Children) -> s.HeaderDecl:
        kind, name, version = children
        return s.HeaderDecl(
            "policy" if kind.type == "POLICY" else "library",
            _name(name),
            _number(version),
            self._statement_span(),
        )

    def include(self, children: Children) -> s.IncludeDecl:
        return s.IncludeDecl(
            _name(children[0]), _string(children[1]) if len(children) > 1 else None, self._statement_span()
        )

    def include_file(self, children: Children) -> s.IncludeDecl:
        return s.IncludeDecl(_string(children[0]), None, self._statement_span())

    def parameter(self, children: Children) -> s.ParameterDecl:
        locked = isinstance(children[0], Token) and children[0].type == "LOCKED"
        name, kind, _equal, default, *limits = children[1:] if locked else children
        return s.ParameterDecl(
            _name(name), kind, default, limits[0] if limits else None, locked, self._statement_span()
        )

    def parameter_range(self, children: Children) -> s.RangeLimit:
        _range, low, _dots, high = children
        return s.RangeLimit(low, high, _span(children))

    def parameter_choices(self, children: Children) -> s.ChoiceLimit:
        return s.ChoiceLimit(children[1].items, _span(children))

    def let(self, children: Children) -> s.LetDecl:
        name, kind, _equal, value = children
        return s.LetDecl(_name(name), kind, value, self._statement_span())

    def input(self, children: Children) -> s.InputDecl:
        name, kind, _equal, source, *clauses = children
        unit, at = _first_of_type(clauses, _UnitClause), _first_of_type(clauses, _PathClause)
        return s.InputDecl(
            _name(name),
            kind,
            source,
            None if at is None else at.path,
            None if unit is None else unit.text,
            _first_of_type(clauses, s.AbsentClause),
            _first_of_type(clauses, s.InvalidClause),
            self._statement_span(),
        )

    def input_unit(self, children: Children) -> _UnitClause:
        return _UnitClause(_string(children[1]), _span(children))

    def input_at(self, children: Children) -> _PathClause:
        return _PathClause(_string(children[1]), _span(children))

    def record(self, children: Children) -> s.RecordDecl:
        fields = tuple(child for child in children if isinstance(child, s.RecordFieldDecl))
        return s.RecordDecl(_name(children[0]), fields, self._statement_span())

    def record_field(self, children: Children) -> s.RecordFieldDecl:
        name, kind, *rest = children
        key = next(
            (_string(child) for child in rest if isinstance(child, Token) and child.type == "STRING"), None
        )
        unit, at, invalid = (
            _first_of_type(rest, _UnitClause),
            _first_of_type(rest, _PathClause),
            _first_of_type(rest, s.InvalidClause),
        )
        misplaced = tuple(node for node in (invalid, None if at is None else at.path) if node is not None)
        return s.RecordFieldDecl(
            _name(name),
            kind,
            key,
            None if unit is None else unit.text,
            _first_of_type(rest, s.AbsentClause),
            misplaced,
            _span(children),
        )

    def input_default(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("default", children[1], _span(children))

    def input_optional(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("optional", None, _span(children))

    def input_required(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("required", _string(children[1]), _span(children))

    def input_invalid_reject(self, children: Children) -> s.InvalidClause:
        return s.InvalidClause("reject", _string(children[2]), _span(children))

    def input_invalid_default(self, children: Children) -> s.InvalidClause:
        return s.InvalidClause("default", None, _span(children))

    def metric(self, children: Children) -> s.MetricDecl:
        name, kind, block = children
        return s.MetricDecl(_name(name), kind, block.params, self._statement_span())

    def state(self, children: Children) -> s.StateDecl:
        name, kind, block = children
        return s.StateDecl(_name(name), kind, block.params, self._statement_span())

    def resource(self, children: Children) -> s.ResourceDecl:
        return s.ResourceDecl(_name(children[0]), children[1].params, self._statement_span())

    def type_ref(self, children: Children) -> s.TypeRef:
        return s.TypeRef(_name(children[0]), None, _span(children))

    def type_of(self, children: Children) -> s.TypeRef:
        return s.TypeRef(_name(children[0]), children[2], _span(children))

    def queue(self, children: Children) -> s.QueueDecl:
        return s.QueueDecl(tuple(children), self._statement_span())

    def order_key(self, children: Children) -> s.OrderKeyDecl:
        descending = len(children) > 1 and children[1].type == "DESC"
        return s.OrderKeyDecl(children[0], descending, _span(children))

    def gang(self, children: Children) -> s.GangDecl:
        return s.GangDecl(
            children[0], children[1].params if len(children) > 1 else (), self._statement_span()
        )

    def outage(self, children: Children) -> s.OutageDecl:
        return s.OutageDecl(children[0].params, self._statement_span())

    def extender(self, children: Children) -> s.ExtenderDecl:
        name, *clauses = children
        return s.ExtenderDecl(_name(name), tuple(clauses), self._statement_span())

    def preemption(self, children: Children) -> s.PreemptionDecl:
        return s.PreemptionDecl(children[0].params, self._statement_span())

    def preemption_never(self, _children: Children) -> s.PreemptionDecl:
        return s.PreemptionDecl(None, self._statement_span())

    # ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def filter(self, children: Children) -> s.FilterDecl:
        return s.FilterDecl(*self._rule_parts(children))

    def score(self, children: Children) -> s.ScoreDecl:
        return s.ScoreDecl(*self._rule_parts(children))

    def amend(self, children: Children) -> s.AmendStatement:
        name, clauses, params, _locked, _ = self._rule_parts(children)
        return s.AmendStatement(name, clauses, params, self._statement_span())

    def replace(self, children: Children) -> s.ReplaceStatement:
        return s.ReplaceStatement(children[0], self._statement_span())

    def reweight(self, children: Children) -> s.ReweightStatement:
        return s.ReweightStatement(_name(children[0]), _weight(children[1]), self._statement_span())

    def drop(self, children: Children) -> s.DropStatement:
        kinds = [_name(child) for child in children[:-1] if child is not None]
        return s.DropStatement(kinds[0] if kinds else None, _name(children[-1]), self._statement_span())

    def layer_head(self, children: Children) -> LayerHead:
        return LayerHead(_name(children[0]), children[1])

    def when(self, children: Children) -> s.WhenClause:
        return s.WhenClause(children[1], _span(children))

    def require(self, children: Children) -> s.RequireClause:
        return s.RequireClause(False, children[1], self._recover(children), _span(children))

    def reject(self, children: Children) -> s.RequireClause:
        return s.RequireClause(True, children[1], self._recover(children), _span(children))

    @staticmethod
    def _recover(children: Children) -> s.RecoverClause | None:
        match children:
            case [_, _, _recover, mark, _for, duration]:
                return s.RecoverClause(mark, duration, _span(children[2:]))
            case _:
                return None

    def missing(self, children: Children) -> s.MissingClause:
        choice = children[1]
        return s.MissingClause(_number(choice) if choice.type == "NUMBER" else _name(choice), _span(children))

    def scaleup(self, children: Children) -> s.ScaleupClause:
        return s.ScaleupClause(_name(children[1]), _span(children))

    def text(self, children: Children) -> s.MessageClause:
        return s.MessageClause(_string(children[1]), _span(children))

    def weight(self, children: Children) -> s.WeightClause:
        return s.WeightClause(_weight(children[1]), _span(children))

    def value(self, children: Children) -> s.ScoreValueClause:
        return s.ScoreValueClause(children[0].value, children[1], _span(children))

    def normalize(self, children: Children) -> s.NormalizeClause:
        _keyword, method, *args = children
        values = tuple(arg for arg in args if not isinstance(arg, Token))
        return s.NormalizeClause(_name(method), values, _span(children))

    # ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────

    def block(self, children: Children) -> ParsedBlock:
        return ParsedBlock(tuple(children[1:-1]), _span(children))

    def param(self, children: Children) -> s.Param:
        return s.Param(_name(children[0]), children[2], _span(children))

    def param_block(self, children: Children) -> s.ParamBlock:
        return s.ParamBlock(_name(children[0]), children[1].params, _span(children))

    def mapping(self, children: Children) -> s.MapLit:
        return s.MapLit(tuple(children[1:-1]), _span(children))

    def entry(self, children: Children) -> tuple[s.StringLit, s.Expression]:
        return _string(children[0]), children[2]

    # ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def binary(self, children: Children) -> s.BinaryExpr:
        left, op, right = children
        return s.BinaryExpr(op.value, left, right, _span([op]), _span(children))

    def not_in(self, children: Children) -> s.BinaryExpr:
        left, first, second, right = children
        return s.BinaryExpr("not in", left, right, _span([first, second]), _span(children))

    def unary(self, children: Children) -> s.UnaryExpr:
        return s.UnaryExpr(children[0].value, children[1], _span(children))

    def otherwise(self, children: Children) -> s.ElseExpr:
        value, _else, fallback = children
        return s.ElseExpr(value, fallback, _span(children))

    def conditional(self, children: Children) -> s.IfExpr:
        _if, condition, _then, then, _else, otherwise = children
        return s.IfExpr(condition, then, otherwise, _span(children))

    def has(self, children: Children) -> s.HasExpr:
        return s.HasExpr(children[1], _span(children))

    def parenthesis(self, children: Children) -> s.Expression:
        """Parentheses have no node: the printer adds them where needed. The span includes them."""
        inner: s.Expression = replace(children[1], span=_span(children))
        return inner

    def number(self, children: Children) -> s.NumberLit:
        return _number(children[0])

    def string(self, children: Children) -> s.StringLit:
        return _string(children[0])

    def truth(self, children: Children) -> s.BoolLit:
        return s.BoolLit(children[0].type == "TRUE", _span(children))

    def bare(self, children: Children) -> s.NameExpr:
        return s.NameExpr(str(children[0]), _span(children))

    def attribute(self, children: Children) -> s.AttributeExpr:
        owner, *path = children
        return s.AttributeExpr(str(owner), tuple(path), _span(children))

    def path_name(self, children: Children) -> s.PathPart:
        return s.PathPart(str(children[0]), False, _span(children))

    def path_key(self, children: Children) -> s.PathPart:
        return s.PathPart(_string(children[1]).value, True, _span(children))

    def path_named(self, children: Children) -> s.PathPart:
        return s.PathPart(str(children[1]), False, _span([children[1]]), is_constant_key=True)

    def call(self, children: Children) -> s.CallExpr:
        function, _open, *args, _close = children
        return s.CallExpr(_name(function), tuple(args), _span(children))

    def fold_elements(self, children: Children) -> s.ListFoldExpr:
        function, _open, over, _where, where, _close = children
        return s.ListFoldExpr(_name(function), None, _name(over), where, _span(children))

    def fold_values(self, children: Children) -> s.ListFoldExpr:
        function, _open, value, _over, over, *where = children
        condition = where[1] if len(where) > 1 else None
        return s.ListFoldExpr(_name(function), value, _name(over), condition, _span(children))

    def count_on_node(self, children: Children) -> s.CountExpr:
        return s.CountExpr(children[2] if len(children) > 3 else None, True, _span(children))

    def count_anywhere(self, children: Children) -> s.CountExpr:
        return s.CountExpr(children[2], False, _span(children))

    def count_all(self, children: Children) -> s.CountExpr:
        return s.CountExpr(children[3], False, _span(children), include_finished=True)

    def aggregate(self, children: Children) -> s.AggregateExpr:
        function, value, _over, *rest = children
        return s.AggregateExpr(_name(function), value, len(rest) > 1, _span(children))

    def listing(self, children: Children) -> s.ListLit:
        return s.ListLit(tuple(children[1:-1]), _span(children))

    # ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _statement_span() -> Span:
        return parse_context.get().span

    def _rule_parts(
        self, children: Children
    ) -> tuple[s.Identifier, tuple[s.Clause, ...], tuple[s.Param | s.ParamBlock, ...] | None, bool, Span]:
        first = children[0]
        locked = isinstance(first, Token) and first.type == "LOCKED"
        block = _first_of_type(children, ParsedBlock)
        clauses = tuple(c for c in children if not isinstance(c, Token | ParsedBlock))
        start = _start(first) if isinstance(first, Token) else self._statement_span().start
        span = Span(parse_context.get().source, start, self._statement_span().end)
        return _names(children)[0], clauses, None if block is None else block.params, locked, span
