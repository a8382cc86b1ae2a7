"""pytest fixtures for tests on a real control plane.

`control_plane` has etcd and kube-apiserver; `whole_control_plane` can also start kube-scheduler and
kube-controller-manager. One is started for each test process (each pytest-xdist worker has its own,
and a start costs three seconds) and emptied after each test. A test that uses one is marked
`control_plane` automatically.

A missing program skips the test with the reason; with `POLICYSCHED_REQUIRE=control-plane` it fails.
"""

from collections.abc import Generator, Iterator

import pytest

from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import Programs, find_programs
from tests.missing_programs import leave_out

REQUIREMENT = "control-plane"
ANY_FEATURES = "any_features"
USED = pytest.StashKey[ControlPlane]()


@pytest.fixture(scope="session")
def control_plane_programs(request: pytest.FixtureRequest) -> Programs:
    """The programs. A build takes minutes, so its progress bypasses pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        return find_programs()


@pytest.fixture(scope="session")
def server_programs(control_plane_programs: Programs) -> Programs:
    """etcd and kube-apiserver, not started."""
    _need(control_plane_programs, "etcd", "kube-apiserver")
    return control_plane_programs


@pytest.fixture(scope="session")
def control_plane_of_the_session(control_plane_programs: Programs) -> Iterator[ControlPlane]:
    """Not for tests: it is not reset between them."""
    _need(control_plane_programs, "etcd", "kube-apiserver")
    with ControlPlane(control_plane_programs) as running:
        yield running


@pytest.fixture
def control_plane(
    request: pytest.FixtureRequest, control_plane_of_the_session: ControlPlane
) -> Iterator[ControlPlane]:
    """A running API server without objects of other tests, with the features of the release."""
    if request.node.get_closest_marker(ANY_FEATURES) is None:
        control_plane_of_the_session.have_features()
    request.node.stash[USED] = control_plane_of_the_session
    yield control_plane_of_the_session
    control_plane_of_the_session.reset()


@pytest.fixture
def whole_control_plane(control_plane_programs: Programs, control_plane: ControlPlane) -> ControlPlane:
    """The same, with `start_scheduler` and `start_controller_manager`."""
    _need(control_plane_programs, "kube-scheduler", "kube-controller-manager")
    return control_plane


def _need(programs: Programs, *names: str) -> None:
    reason = openssl_missing() or programs.missing(*names)
    if reason is not None:
        leave_out(REQUIREMENT, reason)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{ANY_FEATURES}: sets the features of the control plane itself, so a restart is saved"
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"control_plane_of_the_session", "server_programs"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.control_plane)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of each program's log to a failed test."""
    report = yield
    control_plane = item.stash.get(USED, None)
    if report.failed and control_plane is not None:
        report.sections.append(("the control plane's logs", control_plane.logs()))
    return report
