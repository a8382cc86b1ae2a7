"""Long lists of names, shortened for a message."""

from collections.abc import Sequence

_NAMES_SHOWN_MAX = 3


def abbreviate_names(names: Sequence[str], shown_max: int = _NAMES_SHOWN_MAX) -> str:
    """The first names, and the number of the others."""
    more_text = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return f"{', '.join(names[:shown_max])}{more_text}"
