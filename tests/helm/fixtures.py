"""`requires_helm` skips a test without helm and without Go to build it; with `POLICYSCHED_REQUIRE=helm` it fails."""

import pytest

from tests.go_program import BuildFailed
from tests.helm.program import helm_binary
from tests.missing_programs import leave_out


@pytest.fixture(scope="session")
def requires_helm(request: pytest.FixtureRequest) -> None:
    """A build takes minutes, so its progress bypasses pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            helm_binary()
    except BuildFailed as failure:
        leave_out("helm", str(failure))
