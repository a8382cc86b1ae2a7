"""Ignore comments: `# policysched: ignore[PS401] reason` silences warnings on one line.

A comment after code applies to its own line; a comment on its own line applies to the next line with
code. Errors cannot be silenced, because the scheduler rejects the policy anyway. A comment that matches
no diagnostic is reported, and so is one without a reason.
"""

import re
from collections.abc import Sequence

from policysched.lang.diagnostics.catalogue import find_diagnostic_doc, make_diagnostic
from policysched.lang.parse.scanner import scan
from policysched.lang.syntax.tree import Comment
from policysched.text import Diagnostic, Severity, Source, Span

_IGNORE_COMMENT = re.compile(r"#\s*policysched:\s*ignore\[([^\]\n]*)\]\s*(.*)")


def apply_ignore_comments(source: Source, diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics of one source that are not silenced, and those about the ignore comments."""
    if "policysched:" not in source.text:
        return tuple(diagnostics)
    kept = list(diagnostics)
    for comment in scan(source).comments:
        match = _IGNORE_COMMENT.match(comment.text)
        if match is None:
            continue
        line = _ignored_line(source, comment)
        used = False
        for code in filter(None, (code.strip() for code in match.group(1).split(","))):
            doc = find_diagnostic_doc(code)
            remaining = [d for d in kept if not (doc is not None and _is_ignored(doc.code, line, d))]
            used = used or len(remaining) < len(kept)
            if len(remaining) == len(kept):
                kept.append(_unused_ignore(comment.span, code, line, kept))
            else:
                kept = remaining
        if used and not match.group(2).strip():
            kept.append(
                make_diagnostic(
                    "PS002",
                    "the ignore comment has no reason",
                    comment.span,
                    label="expected a reason after this",
                    help=f"write `# policysched: ignore[{match.group(1)}] REASON`",
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


def _is_ignored(code: str, line: int, diagnostic: Diagnostic) -> bool:
    return (
        diagnostic.code == code
        and diagnostic.severity is not Severity.ERROR
        and diagnostic.span is not None
        and diagnostic.span.source.position(diagnostic.span.start).line == line
    )


def _unused_ignore(span: Span, code: str, line: int, kept: Sequence[Diagnostic]) -> Diagnostic:
    doc = find_diagnostic_doc(code)
    is_error = any(
        doc is not None
        and d.code == doc.code
        and d.span is not None
        and d.span.source.position(d.span.start).line == line
        for d in kept
    )
    if doc is None:
        why = f"unknown diagnostic `{code}`"
    elif is_error:
        why = f"`{code}` is an error and cannot be ignored"
    else:
        why = f"line {line} has no diagnostic `{code}`"
    return make_diagnostic("PS001", f"unused ignore comment: {why}", span, label="unused", help="remove it")
