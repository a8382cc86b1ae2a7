"""Decisions as OpenTelemetry log records, sent by the real SDK to a collector."""

import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from policysched.daemon import otlp_export
from policysched.daemon.otlp_export import DecisionExport
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.decision_records import Decision, DecisionSample
from policysched.scheduler.unschedulable_message import MESSAGE_CHARACTERS_MAX, REASONS_CHARACTERS_MAX
from tests.daemon.collector import collecting

PLACED = Decision(
    id=1,
    at_ns=1_700_000_003_500_000_000,
    pod="team/web",
    uid=PodUid("uid-1"),
    policy="main",
    sha256="ab" * 32,
    version=3,
    node=NodeName("node-1"),
    score=87,
    node_count=5,
    feasible_count=2,
    message="",
    counts={"Insufficient cpu": 3},
    gang=None,
    attempt=2,
    queued_ns=1_700_000_000_000_000_000,
    samples={"net_free": DecisionSample(1.5, 10, 20), "stale": DecisionSample(None, None, None)},
)
PENDING = replace(
    PLACED,
    id=2,
    node=None,
    score=None,
    message="0/5 nodes are available: 5 Insufficient cpu.",
    gang="team/job",
)


@contextmanager
def tracemalloc_running() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def test_a_decision_arrives_with_its_attributes() -> None:
    with collecting() as collector:
        export = DecisionExport(f"{collector.url}/", "replica-1")
        export.export([PLACED, PENDING])
        export.close()

        placed, pending = collector.records
    assert placed == {
        "event_name": "policysched.decision",
        "severity": "INFO",
        "body": "team/web is assigned to node-1",
        "at_ns": PLACED.at_ns,
        "k8s.namespace.name": "team",
        "k8s.pod.name": "web",
        "k8s.pod.uid": "uid-1",
        "k8s.node.name": "node-1",
        "policysched.decision.id": 1,
        "policysched.policy.name": "main",
        "policysched.policy.sha256": "ab" * 32,
        "policysched.policy.version": 3,
        "policysched.attempt": 2,
        "policysched.pending_s": 3.5,
        "policysched.nodes.evaluated": 5,
        "policysched.nodes.feasible": 2,
        "policysched.score": 87,
        "policysched.rejected": {"Insufficient cpu": 3},
        "policysched.samples": {"net_free": 1.5},
    }
    assert (pending["severity"], pending["body"]) == ("WARN", PENDING.message)
    assert pending["policysched.gang"] == "team/job"
    assert "k8s.node.name" not in pending
    assert collector.resource["service.name"] == "policysched"
    assert collector.resource["service.instance.id"] == "replica-1"


def test_each_decision_is_exported_once_and_those_that_were_missed_are_counted() -> None:
    decisions = [replace(PLACED, id=number) for number in range(1, 11)]
    with collecting() as collector:
        export = DecisionExport(collector.url, "replica-1")
        export.export(decisions[:4])
        export.export(decisions[2:6])
        export.export(decisions[8:])
        export.close()

        assert [record["policysched.decision.id"] for record in collector.records] == [
            1,
            2,
            3,
            4,
            5,
            6,
            9,
            10,
        ]
    assert (export.exported, export.missed) == (8, 2)


def test_a_collector_that_does_not_respond_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "CLOSE_TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        export = DecisionExport(f"http://127.0.0.1:{silent.getsockname()[1]}", "replica-1")
        export.export([PLACED])

        export.close()  # a test that hangs fails by its time-out

        silent.settimeout(60)
        connection, _ = silent.accept()
        connection.close()


def test_what_waits_for_the_collector_has_a_limit_in_bytes() -> None:
    """The longest message and reasons that a record has, in characters of four bytes."""
    wide = "\U0001f600"
    with tracemalloc_running():
        export = DecisionExport("http://127.0.0.1:9", "replica-1")
        before, _ = tracemalloc.get_traced_memory()
        export.export(
            [
                replace(
                    PENDING,
                    id=number,
                    message=f"{number}{wide * (MESSAGE_CHARACTERS_MAX - 9)}",
                    counts={f"{number}{wide * (REASONS_CHARACTERS_MAX - 9)}": 1},
                )
                for number in range(1, 201)
            ]
        )
        after, _ = tracemalloc.get_traced_memory()

    assert (after - before) / 200 * otlp_export.QUEUE_RECORDS_MAX < 128 * 2**20
