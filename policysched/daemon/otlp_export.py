"""Exports decisions as OpenTelemetry log records over OTLP/HTTP.

    latest decisions ──INTERVAL_S──► new ones by id ──a thread──► batches of the SDK ──HTTP──► collector

Exporting delays no decision: the scheduler's list of its latest decisions is read. Decisions that leave this list between
two reads are not exported, but counted. While the collector is away, the SDK queues records; it logs those that it drops.

Headers, certificates, compression and time-outs are the SDK's standard variables (`OTEL_EXPORTER_OTLP_HEADERS` ...), so
that the settings hold no credentials. The SDK is the extra `otlp`.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from policysched import __version__
from policysched.scheduler.decision_records import Decision

INTERVAL_S = 0.25
QUEUE_RECORDS_MAX = 4_096
"""Of the SDK: records that wait for the collector. Messages of tenants make one take up to 25 KiB."""
CLOSE_TIMEOUT_S = 3.0
EVENT_NAME = "policysched.decision"


class DecisionExport:
    """Exports what `latest` returns, oldest first, while `run` runs; `close` sends what is queued.

    `endpoint` is the collector's base URL, such as http://collector:4318. `missed` counts decisions that left the list
    before they were read.
    """

    def __init__(self, endpoint: str, identity: str) -> None:
        resource = Resource.create(
            {
                "service.name": "policysched",
                "service.version": __version__,
                "service.instance.id": identity,
            }
        )
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(
            BatchLogRecordProcessor(
                OTLPLogExporter(endpoint=f"{endpoint.rstrip('/')}/v1/logs"),
                max_queue_size=QUEUE_RECORDS_MAX,
            )
        )
        self._logger = self._provider.get_logger("policysched", __version__)
        self._lock = threading.Lock()
        self._last_id = 0
        self.exported = 0
        self.missed = 0

    async def run(self, latest: Callable[[], Sequence[Decision]]) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(self.export, latest())

    def export(self, latest: Sequence[Decision]) -> None:
        """Hands the decisions that are new to the SDK, which sends them in batches."""
        with self._lock:
            new = [decision for decision in latest if decision.id > self._last_id]
            if not new:
                return
            self.missed += new[0].id - self._last_id - 1
            self._last_id = new[-1].id
            for decision in new:
                self._logger.emit(log_record(decision))
            self.exported += len(new)

    def close(self) -> None:
        """Sends what is queued. A collector that does not respond delays the end by `CLOSE_TIMEOUT_S` at most."""
        shutdown = threading.Thread(target=self._provider.shutdown, name="otlp-shutdown", daemon=True)
        shutdown.start()
        shutdown.join(CLOSE_TIMEOUT_S)


def log_record(decision: Decision) -> LogRecord:
    """Attributes have the names of OpenTelemetry's semantic conventions where there are some."""
    namespace, _, name = decision.pod.partition("/")
    attributes: dict[str, Any] = {
        "k8s.namespace.name": namespace,
        "k8s.pod.name": name,
        "k8s.pod.uid": decision.uid,
        "policysched.decision.id": decision.id,
        "policysched.policy.name": decision.policy,
        "policysched.policy.sha256": decision.sha256,
        "policysched.policy.version": decision.version,
        "policysched.attempt": decision.attempt,
        "policysched.pending_s": (decision.at_ns - decision.queued_ns) / 1e9,
        "policysched.nodes.evaluated": decision.node_count,
        "policysched.nodes.feasible": decision.feasible_count,
    }
    if decision.gang is not None:
        attributes["policysched.gang"] = decision.gang
    if decision.node is not None:
        attributes["k8s.node.name"] = decision.node
        attributes["policysched.score"] = decision.score
    if decision.counts:
        attributes["policysched.rejected"] = dict(decision.counts)
    if samples := {
        name: sample.value for name, sample in decision.samples.items() if sample.value is not None
    }:
        attributes["policysched.samples"] = samples
    return LogRecord(
        timestamp=decision.at_ns,
        severity_number=SeverityNumber.WARN if decision.node is None else SeverityNumber.INFO,
        severity_text="WARN" if decision.node is None else "INFO",
        event_name=EVENT_NAME,
        body=decision.message if decision.node is None else f"{decision.pod} is assigned to {decision.node}",
        attributes=attributes,
    )
