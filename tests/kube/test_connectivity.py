"""What is said of an API server that does not answer, and of one that answers no."""

import logging

import pytest

from policysched.kube.client.api import Forbidden
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import TransportError

NO = Forbidden(403, "Forbidden", "nodes is forbidden")
HUNG = TransportError("timed out")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The beginning of each line, and the activity that it names."""
    return [
        (record.message.partition(";")[0], getattr(record, "activity", ""))
        for record in caplog.records
        if record.levelno >= logging.INFO
    ]


@pytest.fixture
def transport(caplog: pytest.LogCaptureFixture) -> Connectivity:
    caplog.set_level(logging.INFO)
    return Connectivity(lambda: 0.0)


def test_a_forbidden_request_is_logged_once_for_each_activity_and_not_as_unreachable(
    transport: Connectivity, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        transport.record_failure("watching Node objects", NO)
        transport.record_failure("watching Pod objects", NO)

    forbidden = "the API server denies a required permission"
    assert said(caplog) == [(forbidden, "watching Node objects"), (forbidden, "watching Pod objects")]
    assert transport.unreachable
    assert transport.problem == "the API server forbids watching Node objects, watching Pod objects"


def test_recovery_is_logged_once_all_requests_are_allowed(
    transport: Connectivity, caplog: pytest.LogCaptureFixture
) -> None:
    for activity in ("watching Node objects", "watching Pod objects") * 2:
        transport.record_failure(activity, NO)

    transport.record_success("watching Node objects")
    between = transport.problem
    transport.record_success("watching Pod objects")

    assert between == "the API server forbids watching Pod objects"
    assert (transport.unreachable, transport.problem) == (False, "")
    assert said(caplog)[-1] == ("the API server answers again", "")


def test_a_hanging_server_is_logged_once_for_all_activities(
    transport: Connectivity, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        transport.record_failure("watching Node objects", HUNG)
        transport.record_failure("watching Pod objects", HUNG)

    assert said(caplog) == [("the API server is unreachable or does not answer", "watching Node objects")]
    assert transport.problem == "the API server cannot be reached"


def test_a_failure_that_the_next_attempt_recovers_from_is_not_logged(
    transport: Connectivity, caplog: pytest.LogCaptureFixture
) -> None:
    transport.record_failure("watching Node objects", NO)
    transport.record_failure("watching Pod objects", HUNG)
    transport.record_success("watching Node objects")
    transport.record_success("watching Pod objects")

    assert said(caplog) == []
    assert transport.problem == ""
