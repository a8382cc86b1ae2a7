"""Builds the syntax tree while the grammar parses a statement.

There is one method per rule of `policy.lark`, which the parser calls as soon as the rule is complete.
No Lark tree is built, and nothing recurses however deep an expression is. The source being parsed is
in `parse_context`, because the parser is shared by the whole process.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from lark import Token, Transformer

from policysched.lang.parse.tree_parts import (
    CanaryHead,
    Children,
    LayerHead,
    ParsedBlock,
    PathClause,
    QuotaAmounts,
    UnitClause,
    as_order_key,
    first_of_type,
    identifier,
    identifiers,
    number_literal,
    parse_context,
    span_of,
    start_of,
    string_literal,
    weight_value,
)
from policysched.lang.syntax import tree as s
from policysched.text import Span


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
            identifier(name),
            number_literal(version),
            parse_context.get().span,
        )

    def include(self, children: Children) -> s.IncludeDecl:
        return s.IncludeDecl(
            identifier(children[0]),
            string_literal(children[1]) if len(children) > 1 else None,
            parse_context.get().span,
        )

    def include_file(self, children: Children) -> s.IncludeDecl:
        return s.IncludeDecl(string_literal(children[0]), None, parse_context.get().span)

    def parameter(self, children: Children) -> s.ParameterDecl:
        locked = isinstance(children[0], Token) and children[0].type == "LOCKED"
        name, kind, _equal, default, *limits = children[1:] if locked else children
        return s.ParameterDecl(
            identifier(name), kind, default, limits[0] if limits else None, locked, parse_context.get().span
        )

    def parameter_range(self, children: Children) -> s.RangeLimit:
        _range, low, _dots, high = children
        return s.RangeLimit(low, high, span_of(children))

    def parameter_choices(self, children: Children) -> s.ChoiceLimit:
        return s.ChoiceLimit(children[1].items, span_of(children))

    def let(self, children: Children) -> s.LetDecl:
        name, kind, _equal, value = children
        return s.LetDecl(identifier(name), kind, value, parse_context.get().span)

    def input(self, children: Children) -> s.InputDecl:
        name, kind, _equal, source, *clauses = children
        unit, at = first_of_type(clauses, UnitClause), first_of_type(clauses, PathClause)
        return s.InputDecl(
            identifier(name),
            kind,
            source,
            None if at is None else at.path,
            None if unit is None else unit.text,
            first_of_type(clauses, s.AbsentClause),
            first_of_type(clauses, s.InvalidClause),
            parse_context.get().span,
        )

    def input_unit(self, children: Children) -> UnitClause:
        return UnitClause(string_literal(children[1]), span_of(children))

    def input_at(self, children: Children) -> PathClause:
        return PathClause(string_literal(children[1]), span_of(children))

    def record(self, children: Children) -> s.RecordDecl:
        fields = tuple(child for child in children if isinstance(child, s.RecordFieldDecl))
        return s.RecordDecl(identifier(children[0]), fields, parse_context.get().span)

    def record_field(self, children: Children) -> s.RecordFieldDecl:
        name, kind, *rest = children
        key = next(
            (string_literal(child) for child in rest if isinstance(child, Token) and child.type == "STRING"),
            None,
        )
        unit, at, invalid = (
            first_of_type(rest, UnitClause),
            first_of_type(rest, PathClause),
            first_of_type(rest, s.InvalidClause),
        )
        misplaced = tuple(node for node in (invalid, None if at is None else at.path) if node is not None)
        return s.RecordFieldDecl(
            identifier(name),
            kind,
            key,
            None if unit is None else unit.text,
            first_of_type(rest, s.AbsentClause),
            misplaced,
            span_of(children),
        )

    def input_default(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("default", children[1], span_of(children))

    def input_optional(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("optional", None, span_of(children))

    def input_required(self, children: Children) -> s.AbsentClause:
        return s.AbsentClause("required", string_literal(children[1]), span_of(children))

    def input_invalid_reject(self, children: Children) -> s.InvalidClause:
        return s.InvalidClause("reject", string_literal(children[2]), span_of(children))

    def input_invalid_default(self, children: Children) -> s.InvalidClause:
        return s.InvalidClause("default", None, span_of(children))

    def metric(self, children: Children) -> s.MetricDecl:
        name, kind, block = children
        return s.MetricDecl(identifier(name), kind, block.params, parse_context.get().span)

    def state(self, children: Children) -> s.StateDecl:
        name, kind, block = children
        return s.StateDecl(identifier(name), kind, block.params, parse_context.get().span)

    def resource(self, children: Children) -> s.ResourceDecl:
        return s.ResourceDecl(identifier(children[0]), children[1].params, parse_context.get().span)

    def type_ref(self, children: Children) -> s.TypeRef:
        return s.TypeRef(identifier(children[0]), None, span_of(children))

    def type_of(self, children: Children) -> s.TypeRef:
        return s.TypeRef(identifier(children[0]), children[2], span_of(children))

    def queue(self, children: Children) -> s.QueueDecl:
        return s.QueueDecl(tuple(children), parse_context.get().span)

    def order_key(self, children: Children) -> s.OrderKeyDecl:
        descending = len(children) > 1 and children[1].type == "DESC"
        return s.OrderKeyDecl(children[0], descending, span_of(children))

    def gang(self, children: Children) -> s.GangDecl:
        params = children[1].params if len(children) > 1 else ()
        return s.GangDecl(children[0], params, parse_context.get().span)

    def quota(self, children: Children) -> s.QuotaDecl:
        rows = tuple(child for child in children if isinstance(child, s.QuotaRowDecl))
        parents = [
            identifier(after)
            for token, after in pairwise(children)
            if isinstance(token, Token) and token.type == "WITHIN"
        ]
        return s.QuotaDecl(
            identifier(children[0]),
            children[1],
            parents[0] if parents else None,
            rows,
            parse_context.get().span,
        )

    def quota_row(self, children: Children) -> s.QuotaRowDecl:
        path = tuple(string_literal(child) for child in children if getattr(child, "type", "") == "STRING")
        block = first_of_type(children, QuotaAmounts)
        return s.QuotaRowDecl(path, None if block is None else block.amounts, span_of(children))

    def quota_amounts(self, children: Children) -> QuotaAmounts:
        return QuotaAmounts(
            tuple(child for child in children if isinstance(child, s.QuotaAmountDecl)), span_of(children)
        )

    def quota_amount(self, children: Children) -> s.QuotaAmountDecl:
        resource, _equal, amount, *borrow = children
        return s.QuotaAmountDecl(
            string_literal(resource) if resource.type == "STRING" else identifier(resource),
            amount,
            borrow[1] if borrow else None,
            span_of(children),
        )

    def outage(self, children: Children) -> s.OutageDecl:
        return s.OutageDecl(children[0].params, parse_context.get().span)

    def extender(self, children: Children) -> s.ExtenderDecl:
        name, *clauses = children
        return s.ExtenderDecl(identifier(name), tuple(clauses), parse_context.get().span)

    def preemption(self, children: Children) -> s.PreemptionDecl:
        return s.PreemptionDecl(children[0].params, parse_context.get().span)

    def preemption_never(self, _children: Children) -> s.PreemptionDecl:
        return s.PreemptionDecl(None, parse_context.get().span)

    # ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def filter(self, children: Children) -> s.FilterDecl:
        return s.FilterDecl(*self._rule_parts(children))

    def score(self, children: Children) -> s.ScoreDecl:
        return s.ScoreDecl(*self._rule_parts(children))

    def shadow(self, children: Children) -> s.ShadowDecl:
        rule = self.filter(children) if children[0].type == "FILTER" else self.score(children)
        return s.ShadowDecl(rule, parse_context.get().span)

    def amend(self, children: Children) -> s.AmendStatement:
        name, clauses, params, _locked, _ = self._rule_parts(children)
        kind = identifier(children[0]) if children[0].type in ("FILTER", "SCORE") else None
        return s.AmendStatement(kind, name, clauses, params, parse_context.get().span)

    def replace(self, children: Children) -> s.ReplaceStatement:
        return s.ReplaceStatement(children[0], parse_context.get().span)

    def reweight(self, children: Children) -> s.ReweightStatement:
        name, weight = children
        return s.ReweightStatement(identifier(name), weight_value(weight), parse_context.get().span)

    def drop(self, children: Children) -> s.DropStatement:
        kinds = [identifier(child) for child in children[:-1] if child is not None]
        return s.DropStatement(
            kinds[0] if kinds else None, identifier(children[-1]), parse_context.get().span
        )

    def layer_head(self, children: Children) -> LayerHead:
        return LayerHead(identifier(children[0]), children[1])

    def canary_head(self, children: Children) -> CanaryHead:
        name, share, key, *rest = children
        when = first_of_type(rest, s.WhenClause)
        guard, measure, limit, duration = [child for child in rest if child is not when][:4]
        return CanaryHead(
            identifier(name),
            share,
            key,
            when,
            s.CanaryGuard(identifier(measure), limit, duration, span_of([guard, duration])),
        )

    def when(self, children: Children) -> s.WhenClause:
        return s.WhenClause(children[1], span_of(children))

    def require(self, children: Children) -> s.RequireClause:
        return s.RequireClause(False, children[1], self._recover(children), span_of(children))

    def reject(self, children: Children) -> s.RequireClause:
        return s.RequireClause(True, children[1], self._recover(children), span_of(children))

    @staticmethod
    def _recover(children: Children) -> s.RecoverClause | None:
        match children:
            case [_, _, _recover, mark, _for, duration]:
                return s.RecoverClause(mark, duration, span_of(children[2:]))
            case _:
                return None

    def missing(self, children: Children) -> s.MissingClause:
        choice = children[1]
        return s.MissingClause(
            number_literal(choice) if choice.type == "NUMBER" else identifier(choice), span_of(children)
        )

    def scaleup(self, children: Children) -> s.ScaleupClause:
        return s.ScaleupClause(identifier(children[1]), span_of(children))

    def text(self, children: Children) -> s.MessageClause:
        return s.MessageClause(string_literal(children[1]), span_of(children))

    def weight(self, children: Children) -> s.WeightClause:
        return s.WeightClause(weight_value(children[1]), span_of(children))

    def value(self, children: Children) -> s.ScoreValueClause:
        return s.ScoreValueClause(children[0].value, children[1], span_of(children))

    def normalize(self, children: Children) -> s.NormalizeClause:
        _keyword, method, *args = children
        values = tuple(arg for arg in args if not isinstance(arg, Token))
        return s.NormalizeClause(identifier(method), values, span_of(children))

    # ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────

    def block(self, children: Children) -> ParsedBlock:
        return ParsedBlock(tuple(children[1:-1]), span_of(children))

    def param(self, children: Children) -> s.Param:
        return s.Param(identifier(children[0]), children[2], span_of(children))

    def param_block(self, children: Children) -> s.ParamBlock:
        return s.ParamBlock(identifier(children[0]), children[1].params, span_of(children))

    def mapping(self, children: Children) -> s.MapLit:
        return s.MapLit(tuple(children[1:-1]), span_of(children))

    def levels(self, children: Children) -> s.MapLit:
        return s.MapLit(tuple(children[1:-1]), span_of(children), levels=True)

    def level(self, children: Children) -> tuple[s.StringLit, s.Expression]:
        return string_literal(children[0]), s.NameExpr(str(children[1]), span_of(children[1:]))

    def orders(self, children: Children) -> s.MapLit:
        keys = (as_order_key(child) for child in children if not isinstance(child, Token))
        return s.MapLit((), span_of(children), order=tuple(keys))

    def entry(self, children: Children) -> tuple[s.StringLit, s.Expression]:
        return string_literal(children[0]), children[2]

    # ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def binary(self, children: Children) -> s.BinaryExpr:
        left, op, right = children
        return s.BinaryExpr(op.value, left, right, span_of([op]), span_of(children))

    def not_in(self, children: Children) -> s.BinaryExpr:
        left, first, second, right = children
        return s.BinaryExpr("not in", left, right, span_of([first, second]), span_of(children))

    def unary(self, children: Children) -> s.UnaryExpr:
        return s.UnaryExpr(children[0].value, children[1], span_of(children))

    def otherwise(self, children: Children) -> s.ElseExpr:
        value, _else, fallback = children
        return s.ElseExpr(value, fallback, span_of(children))

    def conditional(self, children: Children) -> s.IfExpr:
        _if, condition, _then, then, _else, otherwise = children
        return s.IfExpr(condition, then, otherwise, span_of(children))

    def has(self, children: Children) -> s.HasExpr:
        return s.HasExpr(children[1], span_of(children))

    def parenthesis(self, children: Children) -> s.Expression:
        """Parentheses have no node: the printer adds them where needed. The span includes them."""
        inner: s.Expression = replace(children[1], span=span_of(children))
        return inner

    def number(self, children: Children) -> s.NumberLit:
        return number_literal(children[0])

    def string(self, children: Children) -> s.StringLit:
        return string_literal(children[0])

    def truth(self, children: Children) -> s.BoolLit:
        return s.BoolLit(children[0].type == "TRUE", span_of(children))

    def bare(self, children: Children) -> s.NameExpr:
        return s.NameExpr(str(children[0]), span_of(children))

    def attribute(self, children: Children) -> s.AttributeExpr:
        owner, *path = children
        span = span_of(children)
        if path[-1].is_constant_key:  # the span of such a part is that of the name in the brackets
            span = Span(span.source, span.start, span.source.text.index("]", span.end) + 1)
        return s.AttributeExpr(str(owner), tuple(path), span)

    def path_name(self, children: Children) -> s.PathPart:
        return s.PathPart(str(children[0]), False, span_of(children))

    def path_key(self, children: Children) -> s.PathPart:
        return s.PathPart(string_literal(children[1]).value, True, span_of(children))

    def path_named(self, children: Children) -> s.PathPart:
        return s.PathPart(str(children[1]), False, span_of([children[1]]), is_constant_key=True)

    def call(self, children: Children) -> s.CallExpr:
        function, _open, *args, _close = children
        return s.CallExpr(identifier(function), tuple(args), span_of(children))

    def fold_elements(self, children: Children) -> s.ListFoldExpr:
        function, _open, over, _where, where, _close = children
        return s.ListFoldExpr(identifier(function), None, identifier(over), where, span_of(children))

    def fold_values(self, children: Children) -> s.ListFoldExpr:
        function, _open, value, _over, over, *where = children
        condition = where[1] if len(where) > 1 else None
        return s.ListFoldExpr(identifier(function), value, identifier(over), condition, span_of(children))

    def count_on_node(self, children: Children) -> s.PodTotalExpr:
        function, _open, pods, *where, _close = children
        return _pod_total(function, None, s.CountedPods("node", None, span_of([pods])), where, children)

    def count_pods(self, children: Children) -> s.PodTotalExpr:
        function, _open, pods, *where, _close = children
        return _pod_total(function, None, pods, where, children)

    def sum_pods(self, children: Children) -> s.PodTotalExpr:
        function, _open, value, _over, pods, *where, _close = children
        return _pod_total(function, value, pods, where, children)

    def counted_pods(self, children: Children) -> s.CountedPods:
        match children:
            case [Token(type="PODS"), Token(type="IN"), key]:
                name = string_literal(key) if key.type == "STRING" else s.NameExpr(str(key), span_of([key]))
                return s.CountedPods("in", name, span_of(children))
            case [Token(type="ALL"), _]:
                return s.CountedPods("all", None, span_of(children))
            case [Token(type="PLACED"), _]:
                return s.CountedPods("placed", None, span_of(children))
            case _:
                return s.CountedPods(None, None, span_of(children))

    def aggregate(self, children: Children) -> s.AggregateExpr:
        function, value, _over, *rest = children
        return s.AggregateExpr(identifier(function), value, len(rest) > 1, span_of(children))

    def listing(self, children: Children) -> s.ListLit:
        return s.ListLit(tuple(children[1:-1]), span_of(children))

    # ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rule_parts(
        self, children: Children
    ) -> tuple[s.Identifier, tuple[s.Clause, ...], tuple[s.Param | s.ParamBlock, ...] | None, bool, Span]:
        first = children[0]
        locked = isinstance(first, Token) and first.type == "LOCKED"
        block = first_of_type(children, ParsedBlock)
        clauses = tuple(c for c in children if not isinstance(c, Token | ParsedBlock))
        start = start_of(first) if isinstance(first, Token) else parse_context.get().span.start
        span = Span(parse_context.get().source, start, parse_context.get().span.end)
        return identifiers(children)[0], clauses, None if block is None else block.params, locked, span


def _pod_total(
    function: Token, value: Any, pods: s.CountedPods, where: Children, parts: Children
) -> s.PodTotalExpr:
    return s.PodTotalExpr(identifier(function), value, pods, where[-1] if where else None, span_of(parts))
