"""Reading a policy: text in, a tree and everything that is wrong with it out. Never an exception.

    source ──► scan: statements, comments, brackets ──► grammar: one statement ──► shape: sizes, clauses, names
                 │                                         │ not one                    │
                 └──────────► diagnostics ◄── mistakes ◄───┘                            └──► diagnostics

Each broken statement costs one diagnostic and leaves the tree; what it would have declared stands in
`Document.broken`, so that the checker does not report its absence again.
"""

import re

from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.parse.build import LayerHead, Reading
from policysched.lang.parse.grammar import UnexpectedInput, read
from policysched.lang.parse.mistakes import explain
from policysched.lang.parse.scan import Piece, Scan, scan, stray_brace
from policysched.lang.parse.shape import remarks, too_large
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Source, Span

__all__ = ["TEXT_BYTES_MAX", "parse"]

TEXT_BYTES_MAX = 256 * 1024

_RULES = frozenset({"filter", "score", "amend", "replace", "locked"})
_NAMED = re.compile(r"(?:locked\s+)?\w+\s+([A-Za-z_][A-Za-z0-9_]*)")
_NAMING = frozenset(
    {"param", "let", "record", "input", "metric", "state", "resource", "filter", "score", "locked"}
)


def parse(source: Source) -> tuple[s.Document, tuple[Diagnostic, ...]]:
    """The statements that could be read, and what is wrong with the others, in the order of the text."""
    whole = Span(source, 0, len(source.text))
    size = len(source.text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        too_long = diagnostic(
            "PS005",
            f"the policy has {size:,} bytes; {TEXT_BYTES_MAX:,} are allowed",
            Span(source, 0, len(source.line_text(1))),
            label="nothing of it was read",
            help="move shared rules to a library and `include` it",
        )
        return s.Document((), (), whole), (too_long,)
    return _Parse(source, scan(source)).run()


class _Parse:
    def __init__(self, source: Source, scanned: Scan) -> None:
        self.source = source
        self.scanned = scanned
        self.diagnostics = list(scanned.diagnostics)
        self.broken: list[str] = []

    def run(self) -> tuple[s.Document, tuple[Diagnostic, ...]]:
        statements = tuple(
            one for piece in self.scanned.pieces if (one := self._statement(piece)) is not None
        )
        self.diagnostics.sort(key=_place)
        whole = Span(self.source, 0, len(self.source.text))
        document = s.Document(statements, tuple(self.scanned.comments), whole, tuple(self.broken))
        return document, tuple(self.diagnostics)

    def _statement(self, piece: Piece) -> s.Statement | None:
        if piece.keyword == "layer":
            return self._layer(piece)
        statement = self._read(piece, "statement")
        assert statement is None or isinstance(statement, s.Statement), statement
        return statement

    def _layer(self, piece: Piece) -> s.Layer | None:
        head = self._read(piece, "layer_head")
        assert head is None or isinstance(head, LayerHead), head
        body = []
        for inner in piece.body or ():
            statement = self._read(inner, "rule_statement")
            if statement is not None:
                assert isinstance(statement, s.LayerStatement), statement
                body.append(statement)
        if head is None:
            return None
        return s.Layer(
            head.name, head.condition, tuple(body), Span(self.source, piece.start, piece.whole_end)
        )

    def _read(self, piece: Piece, start: str) -> "s.Statement | LayerHead | None":
        """None where something was said about the piece, before or now."""
        if piece.sound:
            reading = Reading(self.source, piece.start, piece.end, rule=piece.keyword in _RULES)
            try:
                statement: s.Statement | LayerHead = read(start, self.scanned.text, reading)
            except UnexpectedInput as error:
                self.diagnostics.append(explain(error, reading, piece.keyword))
            else:
                large = too_large(statement)
                if large is None:
                    self.diagnostics.extend(remarks(statement))
                    if piece.stray is not None:
                        self.diagnostics.append(stray_brace(self.source, piece.stray))
                    return statement
                self.diagnostics.append(large)
        if piece.keyword in _NAMING and (named := _NAMED.match(self.source.text, piece.start, piece.end)):
            self.broken.append(named.group(1))
        return None


def _place(found: Diagnostic) -> tuple[int, int, str]:
    assert found.span is not None, f"{found.code} has no place"
    return (found.span.start, found.span.end, found.code)
