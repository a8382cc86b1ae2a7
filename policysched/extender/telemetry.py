"""What `policysched extender` says of itself in numbers. The policies' metrics are those of the scheduler."""

from collections.abc import Callable, Iterator

from policysched.daemon.metric_families import (
    policy_families,
    process_families,
    road_families,
    sample_families,
)
from policysched.extender.extender_app import ExtenderApp
from policysched.serve.metrics import Family, Registry, exponential, gauge

OTHER = "(other)"
"""For the name of a policy that there is none of: whoever calls must not fill the memory with names."""


class ExtenderTelemetry:
    """The registry and what feeds it."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._app: ExtenderApp | None = None
        self._requests = self.registry.counter(
            "policysched_extender_requests_total",
            "Requests of the extender protocol, by what became of them: answered, unanswered (no such policy, not "
            "ready), bad, late, busy (too many at a time), refused (a bind).",
            ("policy", "verb", "outcome"),
        )
        self._seconds = self.registry.histogram(
            "policysched_extender_request_duration_seconds",
            "From the whole request to the answer.",
            exponential(0.0005, 2, 15),
            ("verb",),
        )

    def note(self, policy: str, verb: str, outcome: str, seconds: float) -> None:
        known = self._app is not None and policy in self._app.answering.programs()
        self._requests.add(1, policy if known else OTHER, verb, outcome)
        self._seconds.observe(seconds, verb)

    def watch(self, app: ExtenderApp, now_ns: Callable[[], int]) -> None:
        """Show what this app says of itself."""
        self._app = app
        self.registry.collectors.append(lambda: _collect(app, now_ns()))


def _collect(app: ExtenderApp, now_ns: int) -> Iterator[Family]:
    yield from policy_families(app.answering)
    yield from sample_families(app.sampler)
    yield gauge("policysched_extender_nodes", "Nodes that are known.", {(): app.answering.node_count()})
    yield gauge(
        "policysched_extender_binds_under_way",
        "Binds whose outcome is not known yet.",
        {(): app.answering.binds_under_way},
    )
    yield from road_families(app.connectivity, app.mirror.reflectors, app.mirror.malformed)
    yield from process_families(now_ns)
