"""`requires_helm` skips a test without helm and without Go to build it; with `POLICYSCHED_REQUIRE=helm` it fails."""

import pytest

from tests.helm.program import helm_binary
from tests.missing_programs import required


@pytest.fixture(scope="session")
def requires_helm(request: pytest.FixtureRequest) -> None:
    required(request, "helm", helm_binary)
