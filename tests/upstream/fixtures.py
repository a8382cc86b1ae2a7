"""`upstream_tests` is the binary; without it and without Go to build it a test is skipped, and with
`POLICYSCHED_REQUIRE=upstream` it fails."""

from pathlib import Path

import pytest

from tests.go_program import BuildFailed
from tests.missing_programs import leave_out
from tests.upstream.build import upstream_binary


@pytest.fixture(scope="session")
def upstream_tests(request: pytest.FixtureRequest) -> Path:
    """A build takes minutes, so its progress bypasses pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return upstream_binary()
    except BuildFailed as failure:
        leave_out("upstream", str(failure))
