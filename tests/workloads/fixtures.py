"""`jobset_controllers`, `lws` and `kueue` are the binaries of the controllers; without one and without Go to build it a test is skipped,
and with `POLICYSCHED_REQUIRE=workloads` it fails."""

from functools import partial
from pathlib import Path

import pytest

from tests.missing_programs import required
from tests.workloads.build import controller_binary


@pytest.fixture(scope="session")
def jobset_controllers(request: pytest.FixtureRequest) -> Path:
    return required(request, "workloads", partial(controller_binary, "jobset"))


@pytest.fixture(scope="session")
def lws(request: pytest.FixtureRequest) -> Path:
    return required(request, "workloads", partial(controller_binary, "lws"))


@pytest.fixture(scope="session")
def kueue(request: pytest.FixtureRequest) -> Path:
    return required(request, "workloads", partial(controller_binary, "kueue"))
