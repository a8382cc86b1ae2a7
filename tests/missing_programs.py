"""Tests that need a program which may be missing: helm, Prometheus, a browser, `man`, a control plane.

Such a test is skipped with the reason. `.ci/run` names all requirements in POLICYSCHED_REQUIRE, and then it fails instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.go_program import BuildFailed


def leave_out(requirement: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if the requirement is in POLICYSCHED_REQUIRE."""
    if requirement in os.environ.get("POLICYSCHED_REQUIRE", "").split(","):
        pytest.fail(f"POLICYSCHED_REQUIRE asks for it: {reason}", pytrace=False)
    pytest.skip(reason)


def required(request: pytest.FixtureRequest, requirement: str, make_binary: Callable[[], Path]) -> Path:
    """The binary, for a fixture. Where it cannot be built the test is skipped, or fails if `POLICYSCHED_REQUIRE` has the
    requirement. A build takes minutes, so its progress bypasses pytest's capture.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return make_binary()
    except BuildFailed as failure:
        leave_out(requirement, str(failure))
