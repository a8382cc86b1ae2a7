"""pytest fixtures for tests with a real Prometheus: `monitoring` has two hosts, `a` and `b`, and is
new for each test.

If a program is missing, the test is skipped with the reason; with `POLICYSCHED_REQUIRE=prometheus`
it fails.
"""

from collections.abc import Iterator

import pytest

from tests.missing_programs import leave_out
from tests.prometheus.monitoring import Monitoring
from tests.prometheus.programs import Programs, find_programs


@pytest.fixture(scope="session")
def prometheus_programs() -> Programs:
    programs = find_programs()
    if not isinstance(programs, Programs):
        leave_out("prometheus", programs.reason)
    return programs


@pytest.fixture
def monitoring(prometheus_programs: Programs) -> Iterator[Monitoring]:
    with Monitoring(prometheus_programs, ["a", "b"]) as running:
        yield running
