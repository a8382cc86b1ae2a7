"""Cutting a text into statements, whatever is wrong with it.

A statement begins at one of its keywords at the beginning of a line (or right after the `{` of a layer) and goes on
until the next one. So a mistake stays in its statement, and a lost brace is noticed where the next statement begins:

        ┌──────────── statement keyword ◄───────────┐
        ▼                                           │
    between ──► in a statement ──`{`──► in its parameters ──`}`──► in the statement
        ▲           │ layer head and `{`                keyword: the brace was never closed
        └─ `}` ── in a layer: the same once more, one level down

What no grammar could say better is said here: strings without an end, tabs, quotes of word processors, the operators
and comments of other languages, what template tools would replace. Where the meaning is clear in spite of it, the
`edits` (of equal length) let the grammar read on.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import (
    CONTINUATION_KEYWORDS,
    LAYER_STATEMENTS,
    RESERVED_STATEMENTS,
    STATEMENTS,
)
from policysched.lang.parse.tokens import raw_tokens
from policysched.lang.syntax.tree import Comment
from policysched.text import Diagnostic, Label, Source, Span

NESTING_MAX = 64

_STATEMENTS = frozenset(STATEMENTS)
_RESERVED = frozenset(RESERVED_STATEMENTS)
_ALLOWED_IN_LAYERS = frozenset(LAYER_STATEMENTS) | _RESERVED
_STATEMENT_PREFIXES = frozenset({"replace", "locked", "drop"})
_PARAMETER_ASSIGNMENT = re.compile(r"\s*(?:=(?!=)|:)")
_BLOCK_START = re.compile(r"\s*\{")
_NEXT_TOKEN_ON_LINE = re.compile(r'[ \t]+(?:([A-Za-z_][A-Za-z0-9_]*)|["{])')
_TEMPLATE = re.compile(r"\{\{|\$\{|\$\(")
_FOREIGN_OPERATORS = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}
_INVISIBLE = "\u00a0\u200b\u200c\u200d\u2060\ufeff\u202f\u3000"


@dataclass(slots=True)
class RawStatement:
    """One statement. `end` is behind its last token, comments left out. Of a layer it is the head up to its `{`."""

    keyword: str
    start: int
    end: int
    column: int
    parseable: bool = True  # False: something was said about it that keeps the grammar from reading it
    body: list["RawStatement"] | None = None  # of a layer
    body_end: int = 0
    stray_brace_offset: int | None = None  # where a `}` stood on a line of its own behind it

    @property
    def end_with_body(self) -> int:
        return self.end if self.body is None else self.body_end


@dataclass(slots=True)
class ScanResult:
    """`text` is the source's, edited in place where the meaning was clear. Offsets are the source's."""

    text: str
    statements: list[RawStatement]
    comments: list[Comment]
    diagnostics: list[Diagnostic]


def scan(source: Source) -> ScanResult:
    return _Scanner(source).run()


def stray_brace_diagnostic(source: Source, start: int) -> Diagnostic:
    return make_diagnostic(
        "PS108",
        "`}` closes nothing",
        Span(source, start, start + 1),
        label="no brace is open that it could close",
        help="take it out, or open the brace before",
    )


class _Scanner:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.result = ScanResult(source.text, [], [], [])
        self.statement: RawStatement | None = None
        self.layer: RawStatement | None = None
        self.open_braces: list[int] = []  # open ones of the piece's parameters
        self.open_bracket_count = 0  # ( and [
        self.at_statement_start = True  # a statement could begin here
        self.line_blank = True  # so far
        self.line_blank_before_token = True  # before this token
        self.line_start = 0
        self.edits: list[tuple[int, int, str]] = []
        self.tab_reported = False  # in this piece
        self.after_prefix = False  # nothing but `replace`, `locked` and `drop` so far in this piece
        self.unopened_layers = 0  # heads without `{`, whose `}` will come

    def run(self) -> ScanResult:
        for kind, text, start in raw_tokens(self.text, 0, len(self.text)):
            if kind == "space":
                continue
            if kind == "newline":
                self.at_statement_start = self.line_blank = True
                self.line_start = start + 1
                continue
            if kind == "comment":
                self._check_text_content(text, start)
                self.result.comments.append(
                    Comment(text.rstrip(), self.line_blank, self._span(start, start + len(text.rstrip())))
                )
                continue
            if kind == "tab":
                self._tab(start, text)
                continue
            if kind == "word":
                if self.at_statement_start:
                    self._scan_leading_word(text, start)
            elif self.statement is None and kind not in ("slashes", "brace", "stray"):
                self._begin_statement("", start)
                self._report_unparseable(
                    make_diagnostic(
                        "PS107",
                        f"`{text.split()[0][:32]}` begins no statement",
                        self._span(start, start + len(text)),
                        label="a statement begins with its keyword",
                        help=f"statements begin with one of: {', '.join(STATEMENTS)}",
                    )
                )
            self.line_blank_before_token = self.line_blank
            self.at_statement_start = self.line_blank = False
            self.after_prefix = text in _STATEMENT_PREFIXES and (
                self.after_prefix or self.statement is None or self.statement.start == start
            )
            handler = _TOKEN_HANDLERS.get(kind)
            if handler is None or not handler(self, text, start):
                self._extend(start + len(text))
        self._finish()
        return self.result

    # ── where statements begin and end ──────────────────────────────────────────────────────────────────────────────

    def _scan_leading_word(self, word: str, start: int) -> None:
        if word in _STATEMENTS or word in _RESERVED:
            if self._continues_statement(word, start):
                return
            self._report_open_braces(word, start)
            self._begin_statement(word, start)
            if word in _RESERVED:
                self._report_unparseable(
                    make_diagnostic(
                        "PS122",
                        f"`{word}` is reserved for a later version of the language",
                        self._span(start, start + len(word)),
                        label="not a statement yet",
                        help="take the statement out; nothing in version 1 does its work",
                    )
                )
            elif self.layer is not None and word not in _ALLOWED_IN_LAYERS:
                self._report_unparseable(
                    make_diagnostic(
                        "PS127",
                        f"`{word}` cannot stand in a layer",
                        self._span(start, start + len(word)),
                        label=f"layers hold {', '.join(LAYER_STATEMENTS[:-2])} and {LAYER_STATEMENTS[-2]}",
                        help="move it out of the layer, or close the layer with `}` before it",
                        related=(
                            Label(self._span(self.layer.start, self.layer.end), "the layer begins here"),
                        ),
                    )
                )
        elif not self.open_braces and not self.open_bracket_count:
            self._scan_unknown_leading_word(word, start)

    def _continues_statement(self, word: str, start: int) -> bool:
        """`resource = 1` in braces is a parameter of that name; so is `outage { ... }` indented in a metric. And the
        `filter` of `replace filter`, `locked filter` or `drop filter` may stand on the next line."""
        if self.after_prefix and word in ("filter", "score", "locked"):
            return True
        if not self.open_braces or self.statement is None:
            return False
        behind = start + len(word)
        if _PARAMETER_ASSIGNMENT.match(self.text, behind):
            return True
        return (
            self.statement.keyword == "metric"
            and word == "outage"
            and self._column(start) > self.statement.column
            and _BLOCK_START.match(self.text, behind) is not None
        )

    def _report_open_braces(self, word: str, start: int) -> None:
        """A statement begins: what is still open inside the one before was never closed."""
        here = Label(self._span(start, start + len(word)), f"`{word}` begins the next statement")
        if self.open_braces:
            self._report_unclosed_brace(self.open_braces[0], here)
        layer = self.layer
        if layer is None or word in _ALLOWED_IN_LAYERS or self._column(start) > layer.column:
            return
        self._end_statement()
        self._report_unclosed_layer(layer, here)

    def _scan_unknown_leading_word(self, word: str, start: int) -> None:
        """A word that begins no statement: a keyword with a typo, something else, or the middle of an expression."""
        piece = self.statement
        if piece is not None:
            behind = _NEXT_TOKEN_ON_LINE.match(self.text, start + len(word))
            if word in CONTINUATION_KEYWORDS or behind is None or behind.group(1) in CONTINUATION_KEYWORDS:
                return
        meant = get_close_matches(word.lower(), (*STATEMENTS, *CONTINUATION_KEYWORDS), n=1, cutoff=0.7)
        if meant and meant[0] in _STATEMENTS:
            self._report_open_braces(meant[0], start)
            self._begin_statement(meant[0], start)
            self._report_unparseable(
                make_diagnostic(
                    "PS106",
                    f"`{word}` begins no statement",
                    self._span(start, start + len(word)),
                    label="unknown word",
                    help=f"did you mean `{meant[0]}`?",
                )
            )
        elif piece is None or (not meant and self._column(start) <= piece.column):
            self._begin_statement(word, start)
            self._report_unparseable(
                make_diagnostic(
                    "PS107",
                    f"`{word}` begins no statement",
                    self._span(start, start + len(word)),
                    label="unknown word",
                    help=f"statements begin with one of: {', '.join(STATEMENTS)}",
                )
            )

    def _begin_statement(self, keyword: str, start: int) -> None:
        self._end_statement()
        self.statement = RawStatement(keyword, start, start, self._column(start))
        if self.layer is None:
            self.result.statements.append(self.statement)
        else:
            assert self.layer.body is not None, "a layer that is open has a body"
            self.layer.body.append(self.statement)

    def _end_statement(self) -> None:
        piece = self.statement
        if piece is not None and piece.keyword == "layer" and piece.body is None and piece.end > piece.start:
            self.unopened_layers += 1
        self.statement = None
        self.open_braces.clear()
        self.open_bracket_count = 0
        self.tab_reported = False

    def _finish(self) -> None:
        end = Label(self._span(len(self.text), len(self.text)), "the text ends here")
        if self.open_braces:
            self._report_unclosed_brace(self.open_braces[0], end)
        self._end_statement()
        if self.layer is not None:
            self._report_unclosed_layer(self.layer, end)
        if self.edits:
            edited = list(self.text)
            for start, stop, text in self.edits:
                edited[start:stop] = text
            self.result.text = "".join(edited)

    # ── what a token does ───────────────────────────────────────────────────────────────────────────────────────────
    # Each returns True where the piece does not reach to the token's end.

    def _brace(self, text: str, start: int) -> bool:
        piece, layer = self.statement, self.layer
        if text == "{":
            if piece is None:
                self._begin_statement("", start)
                self._report_unparseable(
                    make_diagnostic(
                        "PS107",
                        "`{` begins no statement",
                        self._span(start, start + 1),
                        label="belongs to no statement",
                        help="braces stand at the end of a statement: `metric NAME: TYPE {`",
                    )
                )
                return False
            if piece.keyword == "layer" and piece.body is None and layer is None:
                piece.end = start + 1
                piece.body, piece.body_end = [], start + 1
                self._end_statement()
                self.layer = piece
                self.at_statement_start = True
                return True
            self.open_braces.append(start)
            self._check_nesting(start)
            return False
        if self.open_braces:
            self.open_braces.pop()
            return False
        if layer is not None:
            self._end_statement()
            layer.body_end = start + 1
            self.layer = None
            self.at_statement_start = True
            return True
        if self.unopened_layers:
            self.unopened_layers -= 1
            self._end_statement()
            return True
        if piece is None:
            self._report(stray_brace_diagnostic(self.source, start))
            return True
        if self.line_blank_before_token:
            piece.stray_brace_offset = start
            self._end_statement()
            return True
        return False

    def _bracket(self, text: str, start: int) -> bool:
        if text in "([":
            self.open_bracket_count += 1
            self._check_nesting(start)
        elif self.open_bracket_count:
            self.open_bracket_count -= 1
        return False

    def _check_nesting(self, start: int) -> None:
        if self.open_bracket_count + len(self.open_braces) == NESTING_MAX + 1:
            self._report_unparseable(
                make_diagnostic(
                    "PS125",
                    f"nested more than {NESTING_MAX} deep",
                    self._span(start, start + 1),
                    label=f"the bracket number {NESTING_MAX + 1}",
                    help="give the inner part a name of its own with `let` or an input, or split the rule",
                )
            )

    def _string(self, text: str, start: int) -> bool:
        for escape in re.finditer(r"\\(.)", text):
            if escape.group(1) not in 'n"\\':
                at = start + escape.start()
                self._report_unparseable(
                    make_diagnostic(
                        "PS124",
                        f"`{escape.group()}` is not an escape",
                        self._span(at, at + 2),
                        label="unknown escape",
                        help=f"for the backslash itself write `\\\\{escape.group(1)}`; "
                        'the escapes are `\\"`, `\\\\` and `\\n`',
                    )
                )
                break
        self._check_text_content(text, start)
        return False

    def _check_text_content(self, text: str, start: int) -> None:
        """What may stand in no text and no comment either; the statement can be read all the same."""
        if "\t" in text:
            self._tab(start + text.index("\t"), "\t")
        template = _TEMPLATE.search(text)
        if template is not None:
            self._report(self._template_diagnostic(template.group(), start + template.start()))

    def _open_string(self, text: str, start: int) -> bool:
        self._report_unparseable(
            make_diagnostic(
                "PS103",
                'the text has no closing `"`',
                self._span(start, start + len(text.rstrip())),
                label="begins here and goes on to the end of the line",
                help='close it with `"` on the same line; a line break in a text is written `\\n`',
            )
        )
        return False

    def _template(self, text: str, start: int) -> bool:
        self._report_unparseable(self._template_diagnostic(text, start))
        if text[-1] == "{" and self.statement is not None:
            self.open_braces.extend((start, start + 1) if text[0] == "{" else (start + 1,))
        elif text[-1] == "(":
            self.open_bracket_count += 1
        return False

    def _template_diagnostic(self, text: str, start: int) -> Diagnostic:
        mended = "a value in a text is written `{name}`, with one brace" if "{" in text else "take it out"
        return make_diagnostic(
            "PS123",
            f"`{text}` would be replaced by template tools such as Helm",
            self._span(start, start + len(text)),
            label="not allowed anywhere in a policy",
            help=mended,
        )

    def _tab(self, start: int, text: str) -> None:
        if self.tab_reported:
            return
        self.tab_reported = self.statement is not None
        self._report(
            make_diagnostic(
                "PS118",
                "a tab",
                self._span(start, start + len(text)),
                label="a tab stands here",
                help="indent with spaces: a ConfigMap with a tab in it is shown as one long quoted line",
            )
        )

    def _slashes(self, text: str, start: int) -> bool:
        end = start + len(text.rstrip())
        self._report(
            make_diagnostic(
                "PS117",
                f"`{text[:2]}` does not begin a comment",
                self._span(start, end),
                label="meant as a comment?",
                help=f"write `# {text[2:].strip().removesuffix('*/').strip()[:60]}`",
            )
        )
        self._edit(start, start + len(text), " " * len(text))
        return True

    def _symbol(self, text: str, start: int) -> bool:
        word = _FOREIGN_OPERATORS[text]
        self._report_unparseable(
            make_diagnostic(
                "PS111",
                f"`{text}` is not an operator",
                self._span(start, start + len(text)),
                label=f"write `{word}`",
                help=f"operators between conditions are words: write `{word}`",
            )
        )
        return False

    def _quotes(self, text: str, start: int) -> bool:
        inner = text.strip("'‘’‚‛“”„‟")
        self._report(
            make_diagnostic(
                "PS113",
                f"`{text[0]}` does not quote a text",
                self._span(start, start + len(text)),
                label='the quotes are not `"`',
                help=f'write `"{inner}"`',
            )
        )
        if len(text) > 1 and not text[-1].isalnum() and '"' not in inner and "\\" not in inner:
            self._edit(start, start + len(text), f'"{text[1:-1]}"')
        elif self.statement is not None:
            self.statement.parseable = False
        return False

    def _stray(self, text: str, start: int) -> bool:
        invisible = text in _INVISIBLE
        shown = f"U+{ord(text):04X}" if invisible or not text.isprintable() else text
        found = make_diagnostic(
            "PS130",
            f"the character `{shown}` means nothing here",
            self._span(start, start + 1),
            label="an invisible character" if invisible else "not part of the language",
            help="a statement ends with its line; take the `;` out" if text == ";" else "take it out",
        )
        if invisible or text == ";":
            self._report(found)
            self._edit(start, start + 1, " ")
            return True
        self._report_unparseable(found)
        return False

    # ── saying it ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _report_unclosed_brace(self, brace: int, here: Label) -> None:
        assert self.statement is not None, "an open brace belongs to a statement"
        self._report_unparseable(
            make_diagnostic(
                "PS102",
                f"the `{{` of this {self.statement.keyword or 'statement'} is never closed",
                self._span(brace, brace + 1),
                label="opened here",
                help="close it with `}`",
                related=(here,),
            )
        )

    def _report_unclosed_layer(self, layer: RawStatement, here: Label) -> None:
        """The layer ends where its body ends, as far as one can tell."""
        body = layer.body
        assert body is not None, "a layer that is open has a body"
        layer.body_end = body[-1].end if body else layer.end
        outside = next((piece for piece in body if piece.column <= layer.column), None)
        if outside is not None and body[0].column > layer.column:
            here = Label(self._span(outside.start, outside.end), "this looks to stand outside of it")
        self._report(
            make_diagnostic(
                "PS102",
                "the `{` of this layer is never closed",
                self._span(layer.end - 1, layer.end),
                label="opened here",
                help="close it with `}`",
                related=(here,),
            )
        )
        self.layer = None

    def _report(self, found: Diagnostic) -> None:
        self.result.diagnostics.append(found)

    def _report_unparseable(self, found: Diagnostic) -> None:
        """One diagnostic a statement: what follows may be its consequence."""
        if self.statement is None or self.statement.parseable:
            self._report(found)
        if self.statement is not None:
            self.statement.parseable = False

    def _extend(self, end: int) -> None:
        if self.statement is not None:
            self.statement.end = end

    def _edit(self, start: int, end: int, text: str) -> None:
        assert len(text) == end - start, f"an edit keeps offsets: {text!r} for {end - start} characters"
        self.edits.append((start, end, text))

    def _column(self, offset: int) -> int:
        return offset - self.line_start + 1

    def _span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)


_TOKEN_HANDLERS = {
    "brace": _Scanner._brace,
    "open": _Scanner._bracket,
    "close": _Scanner._bracket,
    "string": _Scanner._string,
    "open_string": _Scanner._open_string,
    "template": _Scanner._template,
    "slashes": _Scanner._slashes,
    "symbol": _Scanner._symbol,
    "quotes": _Scanner._quotes,
    "stray": _Scanner._stray,
}
