"""A console that shows unprintable characters of policies and objects as escapes.

Imported only where tables are printed: Rich takes a while to load.
"""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from policysched.text.sanitize import escape_unprintable


class EscapingConsole(Console):
    """Escapes the text of every segment; colours and cursor movements of the console itself stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(escape_unprintable(text), style)
