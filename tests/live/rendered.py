"""The document of a live endpoint, whose steps a test runs."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from policysched.runtime.live_endpoints import Steps


def rendered(steps: Steps) -> dict[str, Any]:
    """As JSON carries it."""
    pages = []
    for step in steps:
        if isinstance(step, Mapping):
            pages.append(step)
        elif step is not None:
            asyncio.run(step())
    assert len(pages) == 1
    page: dict[str, Any] = json.loads(json.dumps(pages[0]))
    return page
