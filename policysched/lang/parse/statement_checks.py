"""What is said about a statement that the grammar accepted: its size, its clauses, the names it takes.

The grammar lets any clause stand in any rule in any order, because "`missing` comes after `require`" helps and
"unexpected token" does not.
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
from policysched.lang.parse.tree_builder import LayerHead
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.children import syntax_children
from policysched.text import Diagnostic, Label, Span

NESTING_MAX = 64
EXPRESSION_NODES_MAX = 500
SUPPORTED_VERSION = "1"

_EXPRESSIONS = s.Expression.__args__
_NODES_WITH_EXPRESSIONS = (
    LayerHead,
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
    *s.Clause.__args__,
)


def check_expression_size(statement: object) -> Diagnostic | None:
    """The first expression over a limit. To be asked first: nothing else may walk such a tree."""
    for expression in _top_level_expressions(statement):
        nodes = 0
        pending: list[tuple[s.Expression, int]] = [(expression, 1)]
        while pending:
            node, depth = pending.pop()
            nodes += 1
            if depth > NESTING_MAX:
                return make_diagnostic(
                    "PS125",
                    f"nested more than {NESTING_MAX} deep",
                    node.span,
                    label=f"level {depth}",
                    help="give the inner part a name of its own with `let` or an input, or split the rule",
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
                f"an expression of {nodes} parts; {EXPRESSION_NODES_MAX} are allowed",
                expression.span,
                label="too large",
                help='split the rule in two, or use `x in ["a", "b", ...]` for many comparisons of one value',
            )
    return None


def check_statement(statement: object) -> Iterator[Diagnostic]:
    """Everything else, each once."""
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
        ):
            yield from _check_declared_name(statement.name)
        case s.FilterDecl():
            yield from _check_clauses(statement.clauses, FILTER_CLAUSES, "filter")
        case s.ScoreDecl():
            yield from _check_clauses(statement.clauses, SCORE_CLAUSES, "score")
        case s.ExtenderDecl():
            yield from _check_declared_name(statement.name)
            yield from _check_clauses(statement.clauses, EXTENDER_CLAUSES, "extender")
        case s.ReplaceStatement():
            yield from check_statement(statement.rule)
            return
        case s.AmendStatement():
            score = any(
                isinstance(c, s.WeightClause | s.ScoreValueClause | s.NormalizeClause)
                for c in statement.clauses
            )
            yield from _check_clauses(
                statement.clauses, SCORE_CLAUSES if score else FILTER_CLAUSES, "score" if score else "filter"
            )
        case s.ReweightStatement():
            yield from _check_weight(statement.weight)
    for expression in _top_level_expressions(statement):
        yield from _check_keywords_as_values(expression)


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
            f"`{name}` cannot be the name of a {header.kind}",
            header.name.span,
            label="not a DNS label",
            help="use lower-case letters, digits and dashes, at most 63, with a letter or digit at both ends: "
            "pods name it in `schedulerName`",
        )
    if header.version.digits != SUPPORTED_VERSION or header.version.suffix:
        yield make_diagnostic(
            "PS003",
            f"version {header.version.span.text} of the language is not known here",
            header.version.span,
            label="unknown version",
            help=f"write `version {SUPPORTED_VERSION}`, or use a newer policysched",
        )


def _check_declared_name(name: s.Identifier) -> Iterator[Diagnostic]:
    if name.text in RESERVED_NAMES:
        yield make_diagnostic(
            "PS122",
            f"`{name.text}` is a word of the language and cannot be a name",
            name.span,
            label="reserved",
            help=f"call it something else, such as `my_{name.text}`",
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
            return "else"
        case s.WeightClause():
            return "weight"
        case s.ScoreValueClause():
            return clause.direction
        case s.NormalizeClause():
            return "normalize"


_VALUES = frozenset({"now", "node"})
"""Words that are values all the same: the time, and `join = node`."""

_SHARED_SLOTS = {"reject": "require", "higher": "lower", "prefer": "lower"}


def _check_clauses(clauses: tuple[s.Clause, ...], order: tuple[str, ...], kind: str) -> Iterator[Diagnostic]:
    """At most one remark about which clauses stand where, and one about a weight."""
    seen: dict[str, s.Clause] = {}
    behind: s.Clause | None = None
    said = False
    for clause in clauses:
        word = clause_keyword(clause)
        place = _SHARED_SLOTS.get(word, word)
        keyword = _keyword_span(clause, word)
        if isinstance(clause, s.WeightClause):
            yield from _check_weight(clause.weight)
        if said:
            continue
        if word not in order:
            said = True
            other = "a score" if word in SCORE_CLAUSES and kind != "score" else "a filter"
            article = "an" if kind[0] in "aeiou" else "a"
            yield make_diagnostic(
                "PS121",
                f"`{word}` does not belong in {article} {kind}",
                keyword,
                label=f"a clause of {other}",
                help=f"the clauses of {article} {kind} are: {', '.join(order)}",
            )
        elif place in seen:
            said = True
            first = seen[place]
            yield make_diagnostic(
                "PS120",
                f"`{word}` stands twice"
                if clause_keyword(first) == word
                else f"`{clause_keyword(first)}` and `{word}` in one rule",
                keyword,
                label="once is enough" if clause_keyword(first) == word else "only one of them can stand",
                help="join the two with `and`, or write two rules",
                related=(Label(_keyword_span(first, clause_keyword(first)), "the first"),),
            )
        elif behind is not None and order.index(word) < order.index(clause_keyword(behind)):
            said = True
            before = clause_keyword(behind)
            yield make_diagnostic(
                "PS119",
                f"`{before}` stands before `{word}`",
                _keyword_span(behind, before),
                label=f"belongs behind `{word}`",
                help=f"the order is: {', '.join(order)}",
            )
        seen[place] = clause
        behind = clause


def _keyword_span(clause: s.Clause, word: str) -> Span:
    return Span(clause.span.source, clause.span.start, clause.span.start + len(word))


def _check_weight(weight: s.NumberLit | s.NameExpr) -> Iterator[Diagnostic]:
    if isinstance(weight, s.NumberLit) and (weight.suffix or "." in weight.digits):
        whole = weight.digits.partition(".")[0]
        yield make_diagnostic(
            "PS114",
            f"a weight is a whole number, not `{weight.span.text}`",
            weight.span,
            label="not a whole number",
            help=f"write `weight {whole}`; weights count relative to each other",
        )


def _check_keywords_as_values(expression: s.Expression) -> Iterator[Diagnostic]:
    """`require missing pass` reads `missing` as a name; the value before it was forgotten."""
    pending = [expression]
    while pending:
        node = pending.pop()
        if (
            isinstance(node, s.NameExpr) and node.name in RESERVED_NAMES and node.name not in ("now", "node")
        ):  # `join = node`
            yield make_diagnostic(
                "PS109",
                f"a value is missing before `{node.name}`",
                node.span,
                label="a value was expected here",
                help=f"`{node.name}` is a word of the language and cannot be a value",
            )
        of_whom = isinstance(node, s.CallExpr) and node.function.text == "traffic_to"
        pending.extend(reversed([one for one in syntax_children(node) if not (of_whom and _is_gang(one))]))


def _is_gang(node: s.Expression) -> bool:
    """`gang` is a word of `traffic_to(gang)`."""
    return isinstance(node, s.NameExpr) and node.name == "gang"
