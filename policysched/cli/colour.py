"""Whether to colour output: on a terminal unless `NO_COLOR` is set, anywhere if `FORCE_COLOR` is."""

import os
from typing import IO, Any


def wants_colour(stream: IO[Any]) -> bool:
    """https://no-color.org and https://force-color.org; `NO_COLOR` wins."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
