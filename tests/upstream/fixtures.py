"""`upstream_tests` and `upstream_integration_tests` are the binaries; without one and without Go to build it a test is skipped,
and with `POLICYSCHED_REQUIRE=upstream` it fails."""

from pathlib import Path

import pytest

from tests.missing_programs import required
from tests.upstream.build import upstream_binary
from tests.upstream.integration_build import integration_binary


@pytest.fixture(scope="session")
def upstream_tests(request: pytest.FixtureRequest) -> Path:
    return required(request, "upstream", upstream_binary)


@pytest.fixture(scope="session")
def upstream_integration_tests(request: pytest.FixtureRequest) -> Path:
    return required(request, "upstream", integration_binary)
