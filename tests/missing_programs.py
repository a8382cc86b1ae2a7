"""Tests that need a program which may be missing: helm, Prometheus, a browser, `man`, a control plane.

Such a test is skipped with the reason. `.ci/run` names all requirements in POLICYSCHED_REQUIRE, and then it fails instead.
"""

import os
from typing import NoReturn

import pytest


def leave_out(requirement: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if the requirement is in POLICYSCHED_REQUIRE."""
    if requirement in os.environ.get("POLICYSCHED_REQUIRE", "").split(","):
        pytest.fail(f"POLICYSCHED_REQUIRE asks for it: {reason}", pytrace=False)
    pytest.skip(reason)
