"""`# policysched: ignore[PS401] why`: a comment that silences warnings on its line.

A comment behind something silences its own line, a comment on a line of its own the next line that holds something.
Errors cannot be silenced: the scheduler would refuse the policy all the same. A comment that silences nothing is
reported, and so is one that does not say why.
"""

import re
from collections.abc import Sequence

from policysched.lang.diagnostics.catalogue import find_diagnostic_doc, make_diagnostic
from policysched.lang.parse.scanner import scan
from policysched.lang.syntax.tree import Comment
from policysched.text import Diagnostic, Severity, Source, Span

_IGNORE_COMMENT = re.compile(r"#\s*policysched:\s*ignore\[([^\]\n]*)\]\s*(.*)")


def apply_ignore_comments(source: Source, diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """What is left of the diagnostics of one source, with what is to be said of the ignoring comments themselves."""
    if "policysched:" not in source.text:
        return tuple(diagnostics)
    kept = list(diagnostics)
    for comment in scan(source).comments:
        match = _IGNORE_COMMENT.match(comment.text)
        if match is None:
            continue
        line = _ignored_line(source, comment)
        used = False
        for word in filter(None, (word.strip() for word in match.group(1).split(","))):
            rule = find_diagnostic_doc(word)
            left = [d for d in kept if not (rule is not None and _is_ignored(rule.code, line, d))]
            used = used or len(left) < len(kept)
            if len(left) == len(kept):
                kept.append(_unused_ignore(comment.span, word, line, kept))
            else:
                kept = left
        if used and not match.group(2).strip():
            kept.append(
                make_diagnostic(
                    "PS002",
                    "the comment does not say why",
                    comment.span,
                    label="a reason is expected behind this",
                    help=f"write `# policysched: ignore[{match.group(1)}] because ...`",
                )
            )
    kept.sort(key=lambda d: -1 if d.span is None else d.span.start)
    return tuple(kept)


def _ignored_line(source: Source, comment: Comment) -> int:
    line = source.position(comment.span.start).line
    if not comment.is_own_line:
        return line
    line += 1
    while line < source.line_count and source.line_text(line).lstrip()[:1] in ("", "#"):
        line += 1
    return line


def _is_ignored(code: str, line: int, found: Diagnostic) -> bool:
    return (
        found.code == code
        and found.severity is not Severity.ERROR
        and found.span is not None
        and found.span.source.position(found.span.start).line == line
    )


def _unused_ignore(span: Span, word: str, line: int, kept: Sequence[Diagnostic]) -> Diagnostic:
    rule = find_diagnostic_doc(word)
    error = any(
        rule is not None
        and d.code == rule.code
        and d.span is not None
        and d.span.source.position(d.span.start).line == line
        for d in kept
    )
    if rule is None:
        why = f"`{word}` is no diagnostic"
    elif error:
        why = f"`{word}` is an error, and errors cannot be ignored"
    else:
        why = f"`{word}` does not occur on line {line}"
    return make_diagnostic(
        "PS001", f"nothing is ignored: {why}", span, label="ignores nothing", help="take it out"
    )
