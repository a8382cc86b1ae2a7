"""The parser: from the text of a policy to a syntax tree and diagnostics. It never raises for bad input.

    source ──► scanner: statements, comments ──► grammar: one statement ──► statement_checks: size, clauses
                 │                                  │ syntax error             │
                 └────► diagnostics ◄── syntax_errors                          └──► diagnostics

A statement with a syntax error yields one diagnostic and is left out of the tree. The name that it
would have declared is in `SyntaxTree.unparsed_names`, so that the checker does not report it again.
"""

import re

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.grammar import UnexpectedInput, parse_with_grammar
from policysched.lang.parse.name_length import long_tokens
from policysched.lang.parse.scan_errors import stray_brace
from policysched.lang.parse.scanner import RawStatement, ScanResult, scan
from policysched.lang.parse.statement_checks import check_expression_size, check_statement
from policysched.lang.parse.syntax_errors import explain_syntax_error
from policysched.lang.parse.tree_parts import CanaryHead, LayerHead, ParseContext
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Source, Span

__all__ = ["TEXT_BYTES_MAX", "parse"]

TEXT_BYTES_MAX = 256 * 1024

_GAP = r"(?:\s|#[^\n]*\n)+"
_FILTER_START = re.compile(rf"(?:(?:replace|locked|shadow){_GAP})*(?:filter|amend(?!{_GAP}score\b))\b")
_DECLARED_NAME = re.compile(r"(?:locked\s+|shadow\s+)?\w+\s+([A-Za-z_][A-Za-z0-9_]*)")
_DECLARING_KEYWORDS = frozenset(
    {
        "param",
        "let",
        "record",
        "input",
        "metric",
        "state",
        "resource",
        "quota",
        "filter",
        "score",
        "locked",
        "shadow",
    }
)


def parse(source: Source) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
    """The syntax tree of the valid statements and all syntax diagnostics, in the order of the text."""
    whole = Span(source, 0, len(source.text))
    size = len(source.text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        too_long = make_diagnostic(
            "PS005",
            f"the policy is {size:,} bytes long, the limit is {TEXT_BYTES_MAX:,}",
            Span(source, 0, len(source.line_text(1))),
            label="not parsed",
            help="move shared rules to a library and `include` it",
        )
        return s.SyntaxTree((), (), whole), (too_long,)
    return _Parser(source, scan(source)).run()


class _Parser:
    def __init__(self, source: Source, scanned: ScanResult) -> None:
        self.source = source
        self.scan_result = scanned
        self.diagnostics = [*scanned.diagnostics, *long_tokens(source)]
        self.broken_names: list[str] = []
        self.declared_keywords: set[str] = set()

    def run(self) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
        statements = tuple(
            statement
            for raw in self.scan_result.statements
            if (statement := self._statement(raw)) is not None
        )
        self.diagnostics.sort(key=_sort_key)
        whole = Span(self.source, 0, len(self.source.text))
        document = s.SyntaxTree(statements, tuple(self.scan_result.comments), whole, tuple(self.broken_names))
        return document, tuple(self.diagnostics)

    def _statement(self, raw: RawStatement) -> s.Statement | None:
        if raw.keyword in ("layer", "canary"):
            return self._layer(raw)
        statement = self._parse_statement(raw, "statement")
        assert statement is None or isinstance(statement, s.Statement), statement
        return statement

    def _layer(self, raw: RawStatement) -> s.LayerDecl | s.CanaryDecl | None:
        """A layer, or a canary: its head, and the statements in braces."""
        head = self._parse_statement(raw, f"{raw.keyword}_head")
        body = []
        for inner in raw.body or ():
            statement = self._parse_statement(inner, "rule_statement")
            if statement is not None:
                assert isinstance(statement, s.LayerStatement), statement
                body.append(statement)
        span = Span(self.source, raw.start, raw.end_with_body)
        match head:
            case None:
                return None
            case LayerHead(name=name, condition=condition):
                return s.LayerDecl(name, condition, tuple(body), span)
            case CanaryHead(name=name, share=share, key=key, when=when, guard=guard):
                return s.CanaryDecl(name, share, key, when, guard, tuple(body), span)
            case _:
                raise AssertionError(f"not the head of a {raw.keyword}: {head}")

    def _parse_statement(
        self, raw: RawStatement, start: str
    ) -> "s.Statement | LayerHead | CanaryHead | None":
        """None if the statement has a reported error."""
        if raw.parseable:
            is_filter = _FILTER_START.match(self.source.text, raw.start) is not None
            context = ParseContext(self.source, raw.start, raw.end, is_filter=is_filter)
            try:
                statement: s.Statement | LayerHead | CanaryHead = parse_with_grammar(
                    start, self.scan_result.text, context
                )
            except UnexpectedInput as error:
                self.diagnostics.append(explain_syntax_error(error, context, raw.keyword))
            else:
                too_large = check_expression_size(statement)
                if too_large is None:
                    self.diagnostics.extend(check_statement(statement, self.declared_keywords))
                    if raw.stray_brace_offset is not None:
                        self.diagnostics.append(stray_brace(self.source, raw.stray_brace_offset))
                    return statement
                self.diagnostics.append(too_large)
        if raw.keyword in _DECLARING_KEYWORDS and (
            declared := _DECLARED_NAME.match(self.source.text, raw.start, raw.end)
        ):
            self.broken_names.append(declared.group(1))
        return None


def _sort_key(diagnostic: Diagnostic) -> tuple[int, int, str]:
    assert diagnostic.span is not None, f"{diagnostic.code} has no span"
    return (diagnostic.span.start, diagnostic.span.end, diagnostic.code)
