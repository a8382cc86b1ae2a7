"""The diagnostics that the scanner reports: statement boundaries, braces, strings and stray characters."""

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.confusables import operator_of
from policysched.lang.parse.foreign_words import CHARACTERS, STATEMENT_WORDS
from policysched.lang.parse.keywords import LAYER_STATEMENTS, STATEMENTS
from policysched.text import Diagnostic, Label, Source, Span

# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────────


def expected_statement(span: Span, text: str) -> Diagnostic:
    return make_diagnostic(
        "PS107",
        f"expected a statement, found `{text}`",
        span,
        label="not a statement keyword",
        help=STATEMENT_WORDS.get(text.lower()) or f"statements begin with one of: {', '.join(STATEMENTS)}",
    )


def misspelled_statement(span: Span, word: str, keyword: str) -> Diagnostic:
    return make_diagnostic(
        "PS106",
        f"expected a statement, found `{word}`",
        span,
        label="unknown keyword",
        help=STATEMENT_WORDS.get(word.lower()) or f"did you mean `{keyword}`?",
    )


def reserved_statement(span: Span, word: str) -> Diagnostic:
    return make_diagnostic(
        "PS122",
        f"`{word}` is reserved for a later version of the language",
        span,
        label="reserved keyword",
        help="remove the statement; version 1 has no equivalent",
    )


def not_allowed_in_layer(span: Span, word: str, layer: Span) -> Diagnostic:
    return make_diagnostic(
        "PS127",
        f"`{word}` is not allowed in a layer",
        span,
        label=f"layers contain only {', '.join(LAYER_STATEMENTS[:-2])} and {LAYER_STATEMENTS[-2]}",
        help="move it out of the layer, or close the layer with `}` before it",
        related=(Label(layer, "the layer begins here"),),
    )


# ── braces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def brace_outside_statement(span: Span) -> Diagnostic:
    return make_diagnostic(
        "PS107",
        "expected a statement, found `{`",
        span,
        label="not part of a statement",
        help="a block follows the head of a statement: `metric NAME: TYPE {`",
    )


def stray_brace(source: Source, start: int) -> Diagnostic:
    return make_diagnostic(
        "PS108",
        "unmatched `}`",
        Span(source, start, start + 1),
        label="no matching `{`",
        help="remove it, or add the missing `{`",
    )


def unclosed_brace(span: Span, keyword: str, end: Label) -> Diagnostic:
    return make_diagnostic(
        "PS102",
        f"unclosed `{{` in this {keyword or 'statement'}",
        span,
        label="opened here",
        help="close it with `}`",
        related=(end,),
    )


def nested_too_deep(span: Span, levels_max: int) -> Diagnostic:
    return make_diagnostic(
        "PS125",
        f"brackets are nested more than {levels_max} levels deep",
        span,
        label=f"level {levels_max + 1}",
        help="name the inner part with `let` or an input, or split the rule",
    )


# ── strings and comments ─────────────────────────────────────────────────────────────────────────────────────────────


def unterminated_string(span: Span) -> Diagnostic:
    return make_diagnostic(
        "PS103",
        "unterminated string",
        span,
        label='no closing `"` on this line',
        help='add the closing `"`; write a line break in a string as `\\n`',
    )


def unknown_escape(span: Span) -> Diagnostic:
    return make_diagnostic(
        "PS124",
        f"unknown escape sequence `{span.text}`",
        span,
        label="unknown escape",
        help=f"write `\\{span.text}` for a literal backslash; "
        'the escape sequences are `\\"`, `\\\\` and `\\n`',
    )


def template_syntax(span: Span, text: str) -> Diagnostic:
    return make_diagnostic(
        "PS123",
        f"`{text}` would be substituted by template tools such as Helm",
        span,
        label="not allowed in a policy",
        help="write a placeholder as `{name}`, with single braces" if "{" in text else "remove it",
    )


def tab(span: Span) -> Diagnostic:
    return make_diagnostic(
        "PS118",
        "the policy contains a tab",
        span,
        label="tab",
        help="indent with spaces; `kubectl get -o yaml` prints a text with tabs as one quoted line",
    )


def foreign_comment(span: Span, text: str) -> Diagnostic:
    return make_diagnostic(
        "PS117",
        f"`{text[:2]}` does not begin a comment",
        span,
        label="comments begin with `#`",
        help=f"write `# {text[2:].strip().removesuffix('*/').strip()[:60]}`",
    )


def wrong_quotes(span: Span, text: str, inner: str) -> Diagnostic:
    return make_diagnostic(
        "PS113",
        f"`{text[0]}` does not delimit a string",
        span,
        label='strings are quoted with `"`',
        help=f'write `"{inner}"`',
    )


# ── characters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def foreign_operator(span: Span, text: str, keyword: str) -> Diagnostic:
    return make_diagnostic(
        "PS111",
        f"`{text}` is not an operator",
        span,
        label=f"use `{keyword}`",
        help=f"logical operators are keywords: write `{keyword}`",
    )


def unexpected_character(span: Span, text: str, *, invisible: bool) -> Diagnostic:
    operator = operator_of(text)
    quoted = f"U+{ord(text):04X}" if invisible or not text.isprintable() else text
    return make_diagnostic(
        "PS130",
        f"unexpected character `{quoted}`",
        span,
        label="invisible character" if invisible else "not part of the language",
        help=f"write `{operator}`" if operator else CHARACTERS.get(text, "remove it"),
    )
