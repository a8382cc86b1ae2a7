"""Checks on statements that the grammar accepts: size, clauses and declared names.

The grammar accepts any clause in any rule in any order, because "`missing` must follow `require`" is a
better message than "unexpected token".
"""

from collections.abc import Iterator
from dataclasses import fields

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import (
    EXTENDER_CLAUSES,
    FILTER_CLAUSES,
    RESERVED_NAMES,
    SCORE_CLAUSES,
)
from policysched.lang.parse.tree_parts import CanaryHead, LayerHead
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.children import syntax_children
from policysched.text import Diagnostic, Label, Span

NESTING_MAX = 64
EXPRESSION_NODES_MAX = 500
SUPPORTED_VERSION = "1"

_EXPRESSIONS = s.Expression.__args__
_NODES_WITH_EXPRESSIONS = (
    LayerHead,
    CanaryHead,
    s.CanaryGuard,
    *s.Statement.__args__,
    s.Param,
    s.ParamBlock,
    s.MapLit,
    s.OrderKeyDecl,
    s.AbsentClause,
    s.RecoverClause,
    s.RangeLimit,
    s.ChoiceLimit,
    s.RecordFieldDecl,
    s.QuotaRowDecl,
    s.QuotaAmountDecl,
    *s.Clause.__args__,
)


def check_expression_size(statement: object) -> Diagnostic | None:
    """The first expression over a limit. Must run first: nothing else may walk such a tree."""
    for expression in _top_level_expressions(statement):
        nodes = 0
        pending: list[tuple[s.Expression, int]] = [(expression, 1)]
        while pending:
            node, depth = pending.pop()
            nodes += 1
            if depth > NESTING_MAX:
                return make_diagnostic(
                    "PS125",
                    f"the expression is nested more than {NESTING_MAX} levels deep",
                    node.span,
                    label=f"level {depth}",
                    help="name the inner part with `let` or an input, or split the rule",
                )
            chain = isinstance(node, s.BinaryExpr)
            for child in syntax_children(node):
                deeper = not (
                    chain
                    and isinstance(node, s.BinaryExpr)
                    and child is node.left
                    and isinstance(child, s.BinaryExpr)
                )
                pending.append((child, depth + deeper))
        if nodes > EXPRESSION_NODES_MAX:
            return make_diagnostic(
                "PS126",
                f"the expression has {nodes} nodes, the limit is {EXPRESSION_NODES_MAX}",
                expression.span,
                label="too large",
                help='split the rule, or use `x in ["a", "b", ...]` to compare one value with many constants',
            )
    return None


def check_statement(statement: object, declared: set[str]) -> Iterator[Diagnostic]:
    """All other checks of one statement. `declared` are the keywords that statements above declare as names, with an
    error; those of this one are added."""
    match statement:
        case s.HeaderDecl():
            yield from _check_header(statement)
        case (
            s.ParameterDecl()
            | s.LetDecl()
            | s.RecordDecl()
            | s.InputDecl()
            | s.MetricDecl()
            | s.StateDecl()
            | s.ResourceDecl()
            | s.QuotaDecl()
        ):
            if statement.name.text in RESERVED_NAMES:
                declared.add(statement.name.text)
            yield from _check_declared_name(statement.name)
        case s.FilterDecl():
            yield from _check_clauses(statement.clauses, FILTER_CLAUSES, "filter")
        case s.ScoreDecl():
            yield from _check_clauses(statement.clauses, SCORE_CLAUSES, "score")
        case s.ExtenderDecl():
            yield from _check_declared_name(statement.name)
            yield from _check_clauses(statement.clauses, EXTENDER_CLAUSES, "extender")
        case s.ReplaceStatement() | s.ShadowDecl():
            yield from check_statement(statement.rule, declared)
            return
        case s.AmendStatement():
            is_score = (
                statement.kind.text == "score"
                if statement.kind is not None
                else any(
                    isinstance(c, s.WeightClause | s.ScoreValueClause | s.NormalizeClause)
                    for c in statement.clauses
                )
            )
            yield from _check_clauses(
                statement.clauses,
                SCORE_CLAUSES if is_score else FILTER_CLAUSES,
                "score" if is_score else "filter",
            )
        case s.ReweightStatement():
            yield from _check_weight(statement.weight)
    for expression in _top_level_expressions(statement):
        yield from _check_keywords_as_values(expression, declared)


def _top_level_expressions(holder: object) -> Iterator[s.Expression]:
    """The expressions directly in a statement, its clauses and its parameters."""
    if isinstance(holder, _EXPRESSIONS):
        yield holder
    elif isinstance(holder, tuple):
        for item in holder:
            yield from _top_level_expressions(item)
    elif isinstance(holder, _NODES_WITH_EXPRESSIONS):
        for field in fields(holder):
            if field.name != "span":
                yield from _top_level_expressions(getattr(holder, field.name))


def _check_header(header: s.HeaderDecl) -> Iterator[Diagnostic]:
    name = header.name.text
    if not (
        name.replace("-", "a").isalnum() and name.isascii() and name == name.lower() and len(name) <= 63
    ) or (name[0] == "-" or name[-1] == "-"):
        yield make_diagnostic(
            "PS129",
            f"invalid {header.kind} name `{name}`",
            header.name.span,
            label="not a DNS label",
            help="use at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends; "
            "pods refer to it in `schedulerName`",
        )
    if header.version.digits != SUPPORTED_VERSION or header.version.suffix:
        yield make_diagnostic(
            "PS003",
            f"unsupported language version {header.version.span.text}",
            header.version.span,
            label="unsupported version",
            help=f"write `version {SUPPORTED_VERSION}`, or upgrade policysched",
        )


def _check_declared_name(name: s.Identifier) -> Iterator[Diagnostic]:
    if name.text in RESERVED_NAMES:
        yield make_diagnostic(
            "PS122",
            f"`{name.text}` is a keyword and cannot be a name",
            name.span,
            label="reserved keyword",
            help=f"choose another name, for example `my_{name.text}`",
        )


def clause_keyword(clause: s.Clause) -> str:
    """The keyword that a clause begins with."""
    match clause:
        case s.WhenClause():
            return "when"
        case s.RequireClause():
            return "reject" if clause.rejects else "require"
        case s.MissingClause():
            return "missing"
        case s.ScaleupClause():
            return "scaleup"
        case s.MessageClause():
            return "says"
        case s.WeightClause():
            return "weight"
        case s.ScoreValueClause():
            return clause.direction
        case s.NormalizeClause():
            return "normalize"


_KEYWORD_ADVICE = dict.fromkeys(
    ("reject", "require"),
    "write the case of a missing value as a separate clause: `missing reject`, or `missing pass`",
)

_KEYWORDS_AS_VALUES = ("now", "node")
"""Reserved names that are values: the time, and the `node` of `join = node`."""

_SHARED_SLOTS = {"reject": "require", "higher": "lower", "prefer": "lower"}


def _check_clauses(clauses: tuple[s.Clause, ...], order: tuple[str, ...], kind: str) -> Iterator[Diagnostic]:
    """At most one diagnostic about the set and order of the clauses, and one about a weight."""
    by_slot: dict[str, s.Clause] = {}
    previous: s.Clause | None = None
    reported = False
    for clause in clauses:
        word = clause_keyword(clause)
        slot = _SHARED_SLOTS.get(word, word)
        keyword = _keyword_span(clause, word)
        if isinstance(clause, s.WeightClause):
            yield from _check_weight(clause.weight)
        if reported:
            continue
        if word not in order:
            reported = True
            other = "a score" if word in SCORE_CLAUSES and kind != "score" else "a filter"
            article = "an" if kind[0] in "aeiou" else "a"
            yield make_diagnostic(
                "PS121",
                f"`{word}` is not allowed in {article} {kind}",
                keyword,
                label=f"only allowed in {other}",
                help=f"the clauses of {article} {kind} are: {', '.join(order)}",
            )
        elif slot in by_slot:
            reported = True
            first = by_slot[slot]
            yield make_diagnostic(
                "PS120",
                f"duplicate `{word}` clause"
                if clause_keyword(first) == word
                else f"`{clause_keyword(first)}` and `{word}` in the same rule",
                keyword,
                label="duplicate" if clause_keyword(first) == word else "only one of them is allowed",
                help="join the conditions with `and`, or write two rules",
                related=(Label(_keyword_span(first, clause_keyword(first)), "first clause"),),
            )
        elif previous is not None and order.index(word) < order.index(clause_keyword(previous)):
            reported = True
            before = clause_keyword(previous)
            yield make_diagnostic(
                "PS119",
                f"`{before}` must follow `{word}`",
                _keyword_span(previous, before),
                label=f"move it after `{word}`",
                help=f"the order is: {', '.join(order)}",
            )
        by_slot[slot] = clause
        previous = clause


def _keyword_span(clause: s.Clause, word: str) -> Span:
    return Span(clause.span.source, clause.span.start, clause.span.start + len(word))


def _check_weight(weight: s.NumberLit | s.NameExpr) -> Iterator[Diagnostic]:
    if isinstance(weight, s.NumberLit) and (weight.suffix or "." in weight.digits):
        integer_part = weight.digits.partition(".")[0]
        yield make_diagnostic(
            "PS114",
            f"expected a whole number as weight, found `{weight.span.text}`",
            weight.span,
            label="not a whole number",
            help=f"write `weight {integer_part}`; weights are relative to each other"
            if integer_part.strip("0")
            else "weights are whole numbers, relative to each other: multiply all of them by the same number",
        )


def _check_keywords_as_values(expression: s.Expression, declared: set[str]) -> Iterator[Diagnostic]:
    """Report a keyword that parses as a name: in `require missing pass` a value is missing before it."""
    pending = [expression]
    while pending:
        node = pending.pop()
        if (
            isinstance(node, s.NameExpr)
            and node.name in RESERVED_NAMES
            and node.name not in _KEYWORDS_AS_VALUES
            and node.name not in declared
        ):
            yield make_diagnostic(
                "PS109",
                f"expected a value, found keyword `{node.name}`",
                node.span,
                label="expected a value",
                help=_KEYWORD_ADVICE.get(node.name) or f"add a value before `{node.name}`",
            )
        is_traffic = isinstance(node, s.CallExpr) and node.function.text == "traffic_to"
        pending.extend(
            reversed([child for child in syntax_children(node) if not (is_traffic and _is_gang(child))])
        )


def _is_gang(node: s.Expression) -> bool:
    """`gang` is a keyword argument of `traffic_to(gang)`."""
    return isinstance(node, s.NameExpr) and node.name == "gang"
