"""Ignore comments: `# policysched: ignore[PS401] reason` silences warnings on one line.

A comment after code applies to its own line; a comment on its own line applies to the next line with
code. Errors cannot be silenced, because the scheduler rejects the policy anyway. A comment that matches
no diagnostic is reported, and so is one without a reason.
"""

import re
from collections.abc import Sequence

from policysched.lang.diagnostics.catalogue import DiagnosticDoc, find_diagnostic_doc, make_diagnostic
from policysched.lang.parse.scanner import scan
from policysched.text import Diagnostic, Severity, Source, Span

_IGNORE_COMMENT = re.compile(r"#\s*policysched:\s*ignore\[([^\]\n]*)\]\s*(.*)")


def apply_ignore_comments(source: Source, diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics of one source that are not silenced, and those about the ignore comments."""
    if "policysched:" not in source.text:
        return tuple(diagnostics)
    sites = _DiagnosticSites(diagnostics)
    about_comments: list[Diagnostic] = []
    next_code_line = _next_code_lines(source)
    for comment in scan(source).comments:
        match = _IGNORE_COMMENT.match(comment.text)
        if match is None:
            continue
        line = source.position(comment.span.start).line
        if comment.is_own_line:
            line = next_code_line[line]
        used = False
        for code in filter(None, (code.strip() for code in match.group(1).split(","))):
            doc = find_diagnostic_doc(code)
            if doc is not None and sites.silence(doc.code, line):
                used = True
            else:
                is_error = doc is not None and sites.has_error(doc.code, line)
                about_comments.append(_unused_ignore(comment.span, code, line, doc, is_error=is_error))
        if used and not match.group(2).strip():
            about_comments.append(
                make_diagnostic(
                    "PS002",
                    "the ignore comment has no reason",
                    comment.span,
                    label="expected a reason after this",
                    help=f"write `# policysched: ignore[{match.group(1)}] REASON`",
                )
            )
    remaining = [*sites.remaining(), *about_comments]
    remaining.sort(key=lambda diagnostic: -1 if diagnostic.span is None else diagnostic.span.start)
    return tuple(remaining)


class _DiagnosticSites:
    """The diagnostics by code and line."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self._diagnostics = diagnostics
        self._by_site: dict[tuple[str, int], list[int]] = {}
        self._silenced: set[int] = set()
        for index, diagnostic in enumerate(diagnostics):
            if diagnostic.span is not None:
                line = diagnostic.span.source.position(diagnostic.span.start).line
                self._by_site.setdefault((diagnostic.code, line), []).append(index)

    def silence(self, code: str, line: int) -> bool:
        """Silence the warnings with this code on the line. False: there is none that is not silenced yet."""
        warnings = {
            index
            for index in self._by_site.get((code, line), ())
            if self._diagnostics[index].severity is not Severity.ERROR
        }
        silenced = warnings - self._silenced
        self._silenced |= silenced
        return bool(silenced)

    def has_error(self, code: str, line: int) -> bool:
        """Whether an error with this code is on the line."""
        indices = self._by_site.get((code, line), ())
        return any(self._diagnostics[index].severity is Severity.ERROR for index in indices)

    def remaining(self) -> list[Diagnostic]:
        return [
            diagnostic for index, diagnostic in enumerate(self._diagnostics) if index not in self._silenced
        ]


def _next_code_lines(source: Source) -> list[int]:
    """For each line, counted from 1, the number of the first line with code after it; otherwise of the last line."""
    after = [source.line_count] * (source.line_count + 1)
    for line in range(source.line_count - 1, 0, -1):
        has_code = source.line_text(line + 1).lstrip()[:1] not in ("", "#")
        after[line] = line + 1 if has_code else after[line + 1]
    return after


def _unused_ignore(
    span: Span, code: str, line: int, doc: DiagnosticDoc | None, *, is_error: bool
) -> Diagnostic:
    if doc is None:
        reason = f"unknown diagnostic `{code}`"
    elif is_error:
        reason = f"`{code}` is an error and cannot be ignored"
    else:
        reason = f"line {line} has no diagnostic `{code}`"
    return make_diagnostic(
        "PS001", f"unused ignore comment: {reason}", span, label="unused", help="remove it"
    )
