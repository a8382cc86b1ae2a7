"""The writers of decisions: binds, evictions, claims and volumes. They write only while this process leads."""

from collections.abc import Callable

from policysched.daemon.app import Runtime
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.write.bind import Binder, BindSettings
from policysched.kube.write.claim_writes import PrebindWriter
from policysched.kube.write.evict import Evictor
from policysched.kube.write.open_writes import OpenWrites
from policysched.runtime.leadership import Leadership
from policysched.scheduler.events import Event


class DecisionWriters:
    """`fence` returns the check of the decision being dispatched. All requests go through `open_writes`."""

    def __init__(
        self,
        runtime: Runtime,
        leadership: Leadership,
        connectivity: Connectivity,
        deliver: Callable[[Event], None],
        *,
        binding: BindSettings,
        fence: Callable[[], Callable[[], bool]],
        observe_bind_s: Callable[[float], None] | None,
    ) -> None:
        self.open_writes = OpenWrites(runtime.transport)
        api = ApiClient(self.open_writes, may_write=leadership.may_write)
        self.binder = Binder(
            api,
            deliver,
            random=runtime.random("bind"),
            connectivity=connectivity,
            settings=binding,
            may_send=leadership.leads,
            fence=fence,
            observe_duration_s=observe_bind_s,
        )
        self.prebind_writer = PrebindWriter(
            api,
            deliver,
            random=runtime.random("volumes"),
            connectivity=connectivity,
            may_send=leadership.leads,
            fence=fence,
        )
        self.evictor = Evictor(
            api,
            deliver,
            random=runtime.random("evict"),
            connectivity=connectivity,
            now_ns=runtime.now_ns,
            may_send=leadership.leads,
            fence=fence,
        )

    def in_flight_in(self, admits: Callable[[str], bool]) -> int:
        """Commands without an outcome in these namespaces."""
        return sum(each.in_flight_in(admits) for each in (self.binder, self.prebind_writer, self.evictor))
