"""What the HTTP server counts about itself. Its thread writes, any thread reads."""

from dataclasses import dataclass, field

from policysched.serve.prometheus_text import MetricFamily, counter_family, gauge_family


@dataclass(slots=True)
class HttpCounters:
    """`closed`: connections that the server closed, by reason."""

    connections: int = 0
    closed: dict[str, int] = field(default_factory=lambda: {"limit": 0, "rate": 0, "timeout": 0})
    accept_failures: int = 0
    requests_refused: int = 0

    def families(self) -> list[MetricFamily]:
        return [
            gauge_family(
                "policysched_http_connections", "Open connections of the HTTP server.", {(): self.connections}
            ),
            counter_family(
                "policysched_http_connections_closed_total",
                "Connections that the HTTP server closed: limit (too many), rate (too many new ones of an address) or "
                "timeout (of a header, an idle connection, or a response that the client does not read).",
                {(("reason", reason),): count for reason, count in self.closed.items()},
            ),
            counter_family(
                "policysched_http_accept_failures_total",
                "Failed attempts to accept a connection, for lack of file descriptors or memory.",
                {(): self.accept_failures},
            ),
            counter_family(
                "policysched_http_requests_refused_total",
                "Requests that were answered 429 because of their rate.",
                {(): self.requests_refused},
            ),
        ]
