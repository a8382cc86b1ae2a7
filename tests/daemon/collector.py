"""An OpenTelemetry collector on loopback that keeps the log records that it gets."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


@dataclass
class Collector:
    """`records`: attributes of each log record, with its `body`, `severity` and `event_name`."""

    url: str
    records: list[dict[str, Any]] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/logs":
                _keep(ExportLogsServiceRequest.FromString(body), collector)
            self.send_response(200 if self.path == "/v1/logs" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()


def _keep(request: Any, collector: Collector) -> None:
    for resource_logs in request.resource_logs:
        collector.resource = _values(resource_logs.resource.attributes)
        for scope in resource_logs.scope_logs:
            for record in scope.log_records:
                collector.records.append(
                    {
                        **_values(record.attributes),
                        "body": record.body.string_value,
                        "severity": record.severity_text,
                        "event_name": record.event_name,
                        "at_ns": record.time_unix_nano,
                    }
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return _values(value.kvlist_value.values) if kind == "kvlist_value" else getattr(value, kind)
