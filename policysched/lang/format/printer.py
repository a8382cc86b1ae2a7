"""Prints a syntax tree in the canonical layout, with all comments.

A statement has a head and segments (clauses, keys, parameters). It is printed on one line if it fits and has no comment
inside; otherwise segments fill lines indented by two, and a parameter block has one line for each parameter. Columns are
not aligned, so that a longer name does not change its neighbours' lines.

A comment stays before or after its segment; one inside an expression moves before its segment. A single empty line
between statements is kept; several become one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from policysched.lang.format.expression_text import PRODUCT_LEVEL, condition_lines, expression_text
from policysched.lang.format.layout import INDENT, LINE_WIDTH, StatementLayout, layout_lines, statement_layout
from policysched.lang.syntax import tree as s


def print_tree(document: s.SyntaxTree, *, keep_empty_lines: bool = True) -> str:
    """The formatted text. Ends with a newline unless it is empty."""
    return _Printer(document, keep_empty_lines).run()


class _Printer:
    def __init__(self, document: s.SyntaxTree, keep_empty_lines: bool) -> None:
        self.tree = document
        self.keep_empty_lines = keep_empty_lines
        self.text = document.span.source.text
        self.comments = sorted(document.comments, key=lambda comment: comment.span.start)
        self.comment_starts = [comment.span.start for comment in self.comments]
        self.next_comment = 0
        self.lines: list[str] = []

    def run(self) -> str:
        self._print_statements(self.tree.statements, len(self.text) + 1, "")
        return "".join(f"{line}\n" for line in self.lines)

    def _print_statements(self, statements: Sequence[s.Statement], end: int, indent: str) -> None:
        """Prints statements and the comments around them, up to a source offset."""
        last: int | None = None  # the end of the previous item
        for statement in statements:
            span = statement.span
            last = self._print_standalone_comments(self._take_comments_before(span.start), last, indent)
            has_body = isinstance(statement, s.LayerDecl | s.CanaryDecl)
            shape = None if has_body else statement_layout(statement)
            inner_end = _head_end(statement)
            inner = self._take_comments_before(inner_end)
            hoisted = _attach_comments(shape, inner) if shape is not None else inner
            self._print_empty_line(last, hoisted[0].span.start if hoisted else span.start)
            self.lines.extend(indent + comment.text for comment in hoisted)
            if shape is None:
                assert isinstance(statement, s.LayerDecl | s.CanaryDecl), statement
                self._print_layer(statement, indent)
            else:
                self.lines.extend(layout_lines(shape, indent))
            trailing = self._take_trailing_comment(span.end)
            if trailing is not None:
                self.lines[-1] += f"  {trailing.text}"
            last = span.end if trailing is None else trailing.span.end
        self._print_standalone_comments(self._take_comments_before(end), last, indent)

    def _print_layer(self, layer: s.LayerDecl | s.CanaryDecl, indent: str) -> None:
        if isinstance(layer, s.CanaryDecl):
            self._print_canary_head(layer, indent)
        else:
            self._print_layer_head(layer, indent)
        self._print_statements(layer.body, layer.span.end, indent + INDENT)
        self.lines.append(f"{indent}}}")

    def _print_layer_head(self, layer: s.LayerDecl, indent: str) -> None:
        head = f"{indent}layer {layer.name.text} when"
        one_line = f"{head} {expression_text(layer.condition)} {{"
        if len(one_line) <= LINE_WIDTH:
            self.lines.append(one_line)
        else:
            first, *rest = condition_lines(layer.condition)
            self.lines.append(f"{head} {first}")
            self.lines.extend(f"{indent}{INDENT * 2}{line}" for line in rest)
            self.lines[-1] += " {"

    def _print_canary_head(self, canary: s.CanaryDecl, indent: str) -> None:
        guard = canary.guard
        parts = [
            f"canary {canary.name.text} {expression_text(canary.share, PRODUCT_LEVEL)} by {expression_text(canary.key)}",
            *([] if canary.when is None else [f"when {expression_text(canary.when.condition)}"]),
            f"guard {guard.measure.text} < {expression_text(guard.limit, PRODUCT_LEVEL)} "
            f"for {expression_text(guard.duration, PRODUCT_LEVEL)} else rollback {{",
        ]
        if len(indent) + len(" ".join(parts)) <= LINE_WIDTH:
            parts = [" ".join(parts)]
        self.lines.append(indent + parts[0])
        self.lines.extend(f"{indent}{INDENT * 2}{part}" for part in parts[1:])

    def _take_comments_before(self, end: int) -> list[s.Comment]:
        """The remaining comments before an offset."""
        stop = bisect_left(self.comment_starts, end, self.next_comment)
        taken = self.comments[self.next_comment : stop]
        self.next_comment = stop
        return taken

    def _take_trailing_comment(self, offset: int) -> s.Comment | None:
        if self.next_comment == len(self.comments):
            return None
        comment = self.comments[self.next_comment]
        if comment.is_own_line or "\n" in self.text[offset : comment.span.start]:
            return None
        self.next_comment += 1
        return comment

    def _print_standalone_comments(
        self, comments: Iterable[s.Comment], last: int | None, indent: str
    ) -> int | None:
        for comment in comments:
            self._print_empty_line(last, comment.span.start)
            self.lines.append(indent + comment.text)
            last = comment.span.end
        return last

    def _print_empty_line(self, last: int | None, start: int) -> None:
        if self.keep_empty_lines and last is not None and self.text[last:start].count("\n") > 1:
            self.lines.append("")


def _attach_comments(shape: StatementLayout, comments: list[s.Comment]) -> list[s.Comment]:
    """Attaches each comment to a segment. Returns those inside the head, which are printed before the statement."""
    hoisted = []
    parts = sorted((shape.head, *shape.segments), key=lambda part: part.start)
    for comment in comments:
        offset = comment.span.start
        following = next((part for part in parts if part.end > offset), None)
        previous = max(
            (part for part in parts if part.end <= offset), key=lambda part: part.end, default=None
        )
        on_its_line = (
            previous is not None
            and (following is None or offset < following.start)
            and not comment.is_own_line
            and "\n" not in comment.span.source.text[previous.end : offset]
        )
        if previous is not None and on_its_line:
            previous.trailing_comments.append(comment.text)
        elif following is shape.head:
            hoisted.append(comment)
        elif following is not None:
            following.leading_comments.append(comment.text)
        else:
            shape.closing_comments.append(comment.text)
    return hoisted


def _head_end(statement: s.Statement) -> int:
    """Up to where comments inside belong to the statement itself, not to the statements of its body."""
    match statement:
        case s.LayerDecl(condition=condition):
            return condition.span.end
        case s.CanaryDecl(guard=guard):
            return guard.span.end
        case _:
            return statement.span.end
