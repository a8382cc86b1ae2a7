"""A console for texts of policies and objects: unprintable characters are shown as escapes, and `[...]` is no markup.

Imported only where tables are printed: Rich takes a while to load.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from policysched.text.sanitize import escape_unprintable


class EscapingConsole(Console):
    """Escapes the text of every segment; colours and cursor movements of the console itself stay."""

    def __init__(self, **options: Any) -> None:
        """With the options of `Console`. `[link=...]` in a pod's annotation must not become a link."""
        super().__init__(markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(escape_unprintable(text), style)
