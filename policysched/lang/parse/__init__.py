"""Reading a policy: text in, a tree and everything that is wrong with it out. Never an exception.

    source ──► scan: statements, comments, brackets ──► grammar: one statement ──► shape: sizes, clauses, names
                 │                                         │ not one                    │
                 └──────────► diagnostics ◄── mistakes ◄───┘                            └──► diagnostics

Each broken statement costs one diagnostic and leaves the tree; what it would have declared stands in
`Document.unparsed_names`, so that the checker does not report its absence again.
"""

import re

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.grammar import UnexpectedInput, parse_with_grammar
from policysched.lang.parse.scanner import RawStatement, ScanResult, scan, stray_brace_diagnostic
from policysched.lang.parse.statement_checks import check_expression_size, check_statement
from policysched.lang.parse.syntax_errors import explain_syntax_error
from policysched.lang.parse.tree_builder import LayerHead, ParseContext
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Source, Span

__all__ = ["TEXT_BYTES_MAX", "parse"]

TEXT_BYTES_MAX = 256 * 1024

_RULE_KEYWORDS = frozenset({"filter", "score", "amend", "replace", "locked"})
_DECLARED_NAME = re.compile(r"(?:locked\s+)?\w+\s+([A-Za-z_][A-Za-z0-9_]*)")
_DECLARING_KEYWORDS = frozenset(
    {"param", "let", "record", "input", "metric", "state", "resource", "filter", "score", "locked"}
)


def parse(source: Source) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
    """The statements that could be read, and what is wrong with the others, in the order of the text."""
    whole = Span(source, 0, len(source.text))
    size = len(source.text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        too_long = make_diagnostic(
            "PS005",
            f"the policy has {size:,} bytes; {TEXT_BYTES_MAX:,} are allowed",
            Span(source, 0, len(source.line_text(1))),
            label="nothing of it was read",
            help="move shared rules to a library and `include` it",
        )
        return s.SyntaxTree((), (), whole), (too_long,)
    return _Parser(source, scan(source)).run()


class _Parser:
    def __init__(self, source: Source, scanned: ScanResult) -> None:
        self.source = source
        self.scan_result = scanned
        self.diagnostics = list(scanned.diagnostics)
        self.broken_names: list[str] = []

    def run(self) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
        statements = tuple(
            one for piece in self.scan_result.statements if (one := self._statement(piece)) is not None
        )
        self.diagnostics.sort(key=_sort_key)
        whole = Span(self.source, 0, len(self.source.text))
        document = s.SyntaxTree(statements, tuple(self.scan_result.comments), whole, tuple(self.broken_names))
        return document, tuple(self.diagnostics)

    def _statement(self, piece: RawStatement) -> s.Statement | None:
        if piece.keyword == "layer":
            return self._layer(piece)
        statement = self._parse_statement(piece, "statement")
        assert statement is None or isinstance(statement, s.Statement), statement
        return statement

    def _layer(self, piece: RawStatement) -> s.LayerDecl | None:
        head = self._parse_statement(piece, "layer_head")
        assert head is None or isinstance(head, LayerHead), head
        body = []
        for inner in piece.body or ():
            statement = self._parse_statement(inner, "rule_statement")
            if statement is not None:
                assert isinstance(statement, s.LayerStatement), statement
                body.append(statement)
        if head is None:
            return None
        return s.LayerDecl(
            head.name, head.condition, tuple(body), Span(self.source, piece.start, piece.end_with_body)
        )

    def _parse_statement(self, piece: RawStatement, start: str) -> "s.Statement | LayerHead | None":
        """None where something was said about the piece, before or now."""
        if piece.parseable:
            reading = ParseContext(
                self.source, piece.start, piece.end, is_rule=piece.keyword in _RULE_KEYWORDS
            )
            try:
                statement: s.Statement | LayerHead = parse_with_grammar(start, self.scan_result.text, reading)
            except UnexpectedInput as error:
                self.diagnostics.append(explain_syntax_error(error, reading, piece.keyword))
            else:
                large = check_expression_size(statement)
                if large is None:
                    self.diagnostics.extend(check_statement(statement))
                    if piece.stray_brace_offset is not None:
                        self.diagnostics.append(stray_brace_diagnostic(self.source, piece.stray_brace_offset))
                    return statement
                self.diagnostics.append(large)
        if piece.keyword in _DECLARING_KEYWORDS and (
            named := _DECLARED_NAME.match(self.source.text, piece.start, piece.end)
        ):
            self.broken_names.append(named.group(1))
        return None


def _sort_key(found: Diagnostic) -> tuple[int, int, str]:
    assert found.span is not None, f"{found.code} has no place"
    return (found.span.start, found.span.end, found.code)
