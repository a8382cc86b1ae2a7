"""How often something is called: whether work grows with what it has nothing to do with."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.scheduler.steps import Steps


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, run: Callable[[], object]) -> int:
    count, original = 0, getattr(owner, name)

    def counting(*of: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        return original(*of, **more)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, counting)
        run()
    return count


def nothing_in_steps(*_arguments: object) -> Steps[None]:
    """A part of an attempt that does nothing, and finds nothing."""
    yield from ()
