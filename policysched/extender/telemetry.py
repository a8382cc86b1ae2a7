"""The metrics of `policysched extender`. Those about policies are the same as the scheduler's."""

from collections.abc import Callable, Iterator

from policysched.daemon.metric_families import (
    api_connection_families,
    failed_object_family,
    last_good_families,
    policy_families,
    process_families,
    sample_families,
)
from policysched.extender.extender_app import ExtenderApp
from policysched.serve.prometheus_text import (
    MetricFamily,
    MetricRegistry,
    exponential_buckets,
    gauge_family,
)

OTHER_LABEL = "(other)"
"""Replaces unknown policy names: a caller must not be able to fill the memory with names."""


class ExtenderTelemetry:
    """The metric registry and its observers."""

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        self._app: ExtenderApp | None = None
        self._requests = self.registry.counter(
            "policysched_extender_requests_total",
            "Requests of the extender protocol by outcome: answered, unanswered (no such policy, not ready), bad, "
            "late, busy (too many at a time), refused (a bind).",
            ("policy", "verb", "outcome"),
        )
        self._seconds = self.registry.histogram(
            "policysched_extender_request_duration_seconds",
            "From the complete request to the response.",
            exponential_buckets(0.0005, 2, 15),
            ("verb",),
        )

    def record_request(self, policy: str, verb: str, outcome: str, seconds: float) -> None:
        is_served = self._app is not None and policy in self._app.extender_server.programs()
        self._requests.add(1, policy if is_served else OTHER_LABEL, verb, outcome)
        self._seconds.observe(seconds, verb)

    def attach(self, app: ExtenderApp, now_ns: Callable[[], int]) -> None:
        """Collects the metrics of this app."""
        self._app = app
        self.registry.collectors.append(lambda: _collect(app, now_ns()))


def _collect(app: ExtenderApp, now_ns: int) -> Iterator[MetricFamily]:
    yield from policy_families(app.extender_server)
    yield from last_good_families(app.last_good)
    yield from sample_families(app.metric_monitor)
    yield gauge_family(
        "policysched_extender_nodes", "Nodes in the cache.", {(): app.extender_server.node_count()}
    )
    yield gauge_family(
        "policysched_extender_binds_under_way",
        "Binds whose outcome is not known yet.",
        {(): app.extender_server.binds_in_flight},
    )
    yield from api_connection_families(app.connectivity, app.reflectors, app.malformed)
    yield failed_object_family(app.failed_objects, now_ns)
    yield from process_families(now_ns)
