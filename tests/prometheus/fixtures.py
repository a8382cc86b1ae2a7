"""pytest fixtures for tests with a real Prometheus: `monitoring` has two hosts, `a` and `b`, and is
new for each test.

If a program is missing, the test is skipped with the reason; with `POLICYSCHED_REQUIRE=prometheus`
it fails.
"""

import os
from collections.abc import Iterator

import pytest

from tests.prometheus.monitoring import Monitoring
from tests.prometheus.programs import Missing, Programs, find_programs

REQUIREMENT = "prometheus"


@pytest.fixture(scope="session")
def prometheus_programs() -> Programs:
    programs = find_programs()
    if isinstance(programs, Programs):
        return programs
    return left_out(programs)


def left_out(missing: Missing) -> Programs:
    """Skip the test, or fail it if Prometheus is required. Never returns."""
    if REQUIREMENT in os.environ.get("POLICYSCHED_REQUIRE", "").split(","):
        pytest.fail(f"POLICYSCHED_REQUIRE asks for it: {missing.reason}", pytrace=False)
    pytest.skip(missing.reason)


@pytest.fixture
def monitoring(prometheus_programs: Programs) -> Iterator[Monitoring]:
    with Monitoring(prometheus_programs, ["a", "b"]) as running:
        yield running
