"""The scanner: split a policy into statements, whatever syntax errors it has.

A statement begins with its keyword at the start of a line (or right after the `{` of a layer) and
extends to the next one. An error therefore stays within its statement, and a missing brace is
noticed where the next statement begins:

        ┌──────────── statement keyword ◄───────────┐
        ▼                                           │
    between ──► in a statement ──`{`──► in its parameters ──`}`──► in the statement
        ▲           │ layer head and `{`                keyword: the brace was never closed
        └─ `}` ── in a layer: the same once more, one level down

The scanner also reports what a grammar cannot report well: unterminated strings, tabs, typographic
quotes, operators and comments of other languages, and template syntax. If the meaning is clear
nevertheless, an edit of equal length lets the grammar continue.
"""

import re
from dataclasses import dataclass

from policysched.lang.parse import scan_errors as errors
from policysched.lang.parse.confusables import INVISIBLE, read_confusables
from policysched.lang.parse.continuations import (
    can_begin_statement,
    is_complete_statement,
    value_follows,
)
from policysched.lang.parse.keywords import (
    CONTINUATION_KEYWORDS,
    LAYER_STATEMENTS,
    RESERVED_STATEMENTS,
    STATEMENTS,
)
from policysched.lang.parse.tokens import raw_tokens
from policysched.lang.syntax.tree import Comment
from policysched.text import Diagnostic, Label, Source, Span
from policysched.text.suggestions import nearest_match

NESTING_MAX = 64

_STATEMENTS = frozenset(STATEMENTS)
_RESERVED = frozenset(RESERVED_STATEMENTS)
_ALLOWED_IN_LAYERS = frozenset(LAYER_STATEMENTS) | _RESERVED
_STATEMENT_PREFIXES = frozenset({"amend", "replace", "locked", "drop", "shadow"})
_PARAMETER_ASSIGNMENT = re.compile(r"\s*(?:=(?!=)|:)")
_BLOCK_START = re.compile(r"\s*\{")
_NEXT_TOKEN_ON_LINE = re.compile(r'[ \t]+(?:([A-Za-z_][A-Za-z0-9_]*)|["{])')
_TEMPLATE = re.compile(r"\{\{|\$\{|\$\(")
_FOREIGN_OPERATORS = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}


@dataclass(slots=True)
class RawStatement:
    """One statement. `end` is after its last token, without comments; for a layer it is after its `{`."""

    keyword: str
    start: int
    end: int
    column: int
    parseable: bool = True  # False: it has a reported error, so the grammar does not parse it
    body: list["RawStatement"] | None = None  # the statements of a layer
    body_end: int = 0
    stray_brace_offset: int | None = None  # of a `}` on a line of its own after it

    @property
    def end_with_body(self) -> int:
        return self.end if self.body is None else self.body_end


@dataclass(slots=True)
class ScanResult:
    """The statements of a source. `text` has the edits applied; all offsets are those of the source."""

    text: str
    statements: list[RawStatement]
    comments: list[Comment]
    diagnostics: list[Diagnostic]


def scan(source: Source) -> ScanResult:
    return _Scanner(source).run()


class _Scanner:
    """Consumes the raw tokens of a source; each token kind has a handler in `_TOKEN_HANDLERS`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text, lookalikes = read_confusables(source)
        self.result = ScanResult(self.text, [], [], lookalikes)
        self.statement: RawStatement | None = None
        self.layer: RawStatement | None = None
        self.open_braces: list[int] = []  # offsets of the open braces of the statement's parameters
        self.open_bracket_count = 0  # ( and [
        self.at_statement_start = True  # a statement could begin here
        self.line_blank = True  # only spaces so far
        self.line_blank_before_token = True
        self.line_start = 0
        self.edits: list[tuple[int, int, str]] = []
        self.tab_reported = False  # once per statement
        self.after_prefix = False  # only `replace`, `locked`, `drop` and `shadow` so far in this statement
        self.previous = ("", -1)  # the token before this one, and its offset
        self.unopened_layers = 0  # layer heads without `{`, whose `}` is still to come

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
                    errors.expected_statement(self._span(start, start + len(text)), text.split()[0][:32])
                )
            self.line_blank_before_token = self.line_blank
            self.at_statement_start = self.line_blank = False
            self.after_prefix = text in _STATEMENT_PREFIXES and (
                self.after_prefix or self.statement is None or self.statement.start == start
            )
            self.previous = (text, start)
            handler = _TOKEN_HANDLERS.get(kind)
            if handler is None or not handler(self, text, start):
                self._extend(start + len(text))
        self._finish()
        return self.result

    # ── statement boundaries ─────────────────────────────────────────────────────────────────────────────────────────

    def _scan_leading_word(self, word: str, start: int) -> None:
        if word in _STATEMENTS or word in _RESERVED:
            if self._continues_statement(word, start):
                return
            self._report_open_braces(word, start)
            self._begin_statement(word, start)
            if word in _RESERVED:
                self._report_unparseable(
                    errors.reserved_statement(self._span(start, start + len(word)), word)
                )
            elif self.layer is not None and word not in _ALLOWED_IN_LAYERS:
                self._report_unparseable(
                    errors.not_allowed_in_layer(
                        self._span(start, start + len(word)),
                        word,
                        self._span(self.layer.start, self.layer.end),
                    )
                )
        elif not self.open_braces and not self.open_bracket_count:
            self._scan_unknown_leading_word(word, start)

    def _continues_statement(self, word: str, start: int) -> bool:
        """Whether a statement keyword at the start of a line does not begin a statement.

        `resource = 1` in braces is a parameter, and so is `outage { ... }` indented in a metric. The
        `filter` of `amend filter`, `locked filter` and so on may be on the next line, and so may the `param` of
        `locked param`. In brackets or behind a dot a keyword can be part of an expression.
        """
        if self.after_prefix and word in ("filter", "score", "locked", "param"):
            return True
        after = start + len(word)
        in_expression = self.open_bracket_count > 0 or self.previous[0] == "."
        if self.statement is not None and in_expression and not can_begin_statement(self.text, after):
            return True
        if not self.open_braces or self.statement is None:
            return False
        if _PARAMETER_ASSIGNMENT.match(self.text, after):
            return True
        return (
            self.statement.keyword == "metric"
            and word == "outage"
            and self._column(start) > self.statement.column
            and _BLOCK_START.match(self.text, after) is not None
        )

    def _report_open_braces(self, word: str, start: int) -> None:
        """Report braces that are still open where the next statement begins."""
        label = Label(self._span(start, start + len(word)), f"`{word}` begins the next statement")
        if self.open_braces:
            self._report_unclosed_brace(self.open_braces[0], label)
        layer = self.layer
        if layer is None or word in _ALLOWED_IN_LAYERS or self._column(start) > layer.column:
            return
        self._end_statement()
        self._report_unclosed_layer(layer, label)

    def _scan_unknown_leading_word(self, word: str, start: int) -> None:
        """A misspelled keyword, an unknown word, or the continuation of an expression."""
        statement, previous = self.statement, self.previous
        next_token = _NEXT_TOKEN_ON_LINE.match(self.text, start + len(word))
        complete = statement is not None and is_complete_statement(
            statement.keyword, self.text[statement.start : statement.end]
        )
        if statement is not None and not complete:
            is_name = previous[1] == statement.start or self.after_prefix
            if is_name or word in CONTINUATION_KEYWORDS or value_follows(previous[0]):
                return
        if next_token is not None and next_token.group(1) == "by":
            self._begin_statement("queue", start)
            span = self._span(start, start + len(word))
            self._report_unparseable(errors.misspelled_statement(span, word, "queue by"))
            return
        if (
            statement is not None
            and not complete
            and (next_token is None or next_token.group(1) in CONTINUATION_KEYWORDS)
        ):
            return
        match = nearest_match(word.lower(), (*STATEMENTS, *CONTINUATION_KEYWORDS), cutoff=0.7)
        if match in _STATEMENTS:
            self._report_open_braces(match, start)
            self._begin_statement(match, start)
            self._report_unparseable(
                errors.misspelled_statement(self._span(start, start + len(word)), word, match)
            )
        elif statement is None or complete or (not match and self._column(start) <= statement.column):
            self._begin_statement(word, start)
            self._report_unparseable(errors.expected_statement(self._span(start, start + len(word)), word))

    def _begin_statement(self, keyword: str, start: int) -> None:
        self._end_statement()
        self.statement = RawStatement(keyword, start, start, self._column(start))
        if self.layer is None:
            self.result.statements.append(self.statement)
        else:
            assert self.layer.body is not None, "an open layer has a body"
            self.layer.body.append(self.statement)

    def _end_statement(self) -> None:
        statement = self.statement
        if (
            statement is not None
            and statement.keyword in ("layer", "canary")
            and statement.body is None
            and statement.end > statement.start
        ):
            self.unopened_layers += 1
        self.statement = None
        self.open_braces.clear()
        self.open_bracket_count = 0
        self.tab_reported = False

    def _finish(self) -> None:
        end = Label(self._span(len(self.text), len(self.text)), "the policy ends here")
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

    # ── token handlers ───────────────────────────────────────────────────────────────────────────────────────────────
    # Each returns True if the statement does not extend to the end of the token.

    def _brace(self, text: str, start: int) -> bool:
        statement, layer = self.statement, self.layer
        if text == "{":
            if statement is None:
                self._begin_statement("", start)
                self._report_unparseable(errors.brace_outside_statement(self._span(start, start + 1)))
                return False
            if statement.keyword in ("layer", "canary") and statement.body is None and layer is None:
                statement.end = start + 1
                statement.body, statement.body_end = [], start + 1
                self._end_statement()
                self.layer = statement
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
        if statement is None:
            self._report(errors.stray_brace(self.source, start))
            return True
        if self.line_blank_before_token:
            statement.stray_brace_offset = start
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
            self._report_unparseable(errors.nested_too_deep(self._span(start, start + 1), NESTING_MAX))

    def _string(self, text: str, start: int) -> bool:
        for escape in re.finditer(r"\\(.)", text):
            if escape.group(1) not in 'n"\\':
                at = start + escape.start()
                self._report_unparseable(errors.unknown_escape(self._span(at, at + 2)))
                break
        self._check_text_content(text, start)
        return False

    def _check_text_content(self, text: str, start: int) -> None:
        """Report tabs and template syntax in a string or comment; the statement is still parseable."""
        if "\t" in text:
            self._tab(start + text.index("\t"), "\t")
        template = _TEMPLATE.search(text)
        if template is not None:
            self._report(self._template_error(template.group(), start + template.start()))

    def _open_string(self, text: str, start: int) -> bool:
        self._report_unparseable(errors.unterminated_string(self._span(start, start + len(text.rstrip()))))
        return False

    def _template(self, text: str, start: int) -> bool:
        self._report_unparseable(self._template_error(text, start))
        if text[-1] == "{" and self.statement is not None:
            self.open_braces.extend((start, start + 1) if text[0] == "{" else (start + 1,))
        elif text[-1] == "(":
            self.open_bracket_count += 1
        return False

    def _template_error(self, text: str, start: int) -> Diagnostic:
        return errors.template_syntax(self._span(start, start + len(text)), text)

    def _tab(self, start: int, text: str) -> None:
        if self.tab_reported:
            return
        self.tab_reported = self.statement is not None
        self._report(errors.tab(self._span(start, start + len(text))))

    def _slashes(self, text: str, start: int) -> bool:
        end = start + len(text.rstrip())
        self._report(errors.foreign_comment(self._span(start, end), text))
        self._edit(start, start + len(text), " " * len(text))
        return True

    def _symbol(self, text: str, start: int) -> bool:
        self._report_unparseable(
            errors.foreign_operator(self._span(start, start + len(text)), text, _FOREIGN_OPERATORS[text])
        )
        return False

    def _quotes(self, text: str, start: int) -> bool:
        inner = text.strip("'‘’‚‛“”„‟")
        self._report(errors.wrong_quotes(self._span(start, start + len(text)), text, inner))
        if len(text) > 1 and not text[-1].isalnum() and '"' not in inner and "\\" not in inner:
            self._edit(start, start + len(text), f'"{text[1:-1]}"')
        elif self.statement is not None:
            self.statement.parseable = False
        return False

    def _stray(self, text: str, start: int) -> bool:
        invisible = text in INVISIBLE
        diagnostic = errors.unexpected_character(self._span(start, start + 1), text, invisible=invisible)
        if invisible or text == ";":
            self._report(diagnostic)
            self._edit(start, start + 1, " ")
            return True
        self._report_unparseable(diagnostic)
        return False

    # ── reporting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report_unclosed_brace(self, brace: int, label: Label) -> None:
        assert self.statement is not None, "an open brace belongs to a statement"
        self._report_unparseable(
            errors.unclosed_brace(self._span(brace, brace + 1), self.statement.keyword, label)
        )

    def _report_unclosed_layer(self, layer: RawStatement, label: Label) -> None:
        """The layer is taken to end with the last statement of its body."""
        body = layer.body
        assert body is not None, "an open layer has a body"
        layer.body_end = body[-1].end if body else layer.end
        outside = next((statement for statement in body if statement.column <= layer.column), None)
        if outside is not None and body[0].column > layer.column:
            label = Label(
                self._span(outside.start, outside.end),
                "the indentation suggests that this is outside the layer",
            )
        self._report(errors.unclosed_brace(self._span(layer.end - 1, layer.end), layer.keyword, label))
        self.layer = None

    def _report(self, diagnostic: Diagnostic) -> None:
        self.result.diagnostics.append(diagnostic)

    def _report_unparseable(self, diagnostic: Diagnostic) -> None:
        """Only the first per statement is reported: further ones may be consequences."""
        if self.statement is None or self.statement.parseable:
            self._report(diagnostic)
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
