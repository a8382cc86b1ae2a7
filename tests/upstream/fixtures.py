"""`upstream_tests` is the binary; without it and without Go to build it a test is skipped, and with
`POLICYSCHED_REQUIRE=upstream` it fails."""

from pathlib import Path

import pytest

from tests.missing_programs import required
from tests.upstream.build import upstream_binary


@pytest.fixture(scope="session")
def upstream_tests(request: pytest.FixtureRequest) -> Path:
    return required(request, "upstream", upstream_binary)
