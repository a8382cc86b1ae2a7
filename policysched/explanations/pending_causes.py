"""The pending pods of a scheduler, grouped by what they wait for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from policysched.evaluate.verdict import RejectionCause
from policysched.lang.ir.attributes import resource_type
from policysched.lang.types.units import format_value
from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pending_status import pending_status
from policysched.scheduler.pending_summary import PendingCause, cause_of
from policysched.scheduler.queue.entries import PendingPod, QueueState

_EXAMPLES_MAX = 3
REQUESTS_MAX = 16
"""Resources of a cause that are shown. A pod can request thousands."""
_CAUSES_PER_STEP = 100
CAUSES_MAX = 1_000
"""That are listed: each pod can have a cause of its own, of thousands of characters."""


class CausesOfPods:
    """The cause of each pod. Pods of one equivalence class share theirs, and may be 50,000."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._by_class: dict[int, tuple[RejectionCause, PendingCause]] = {}

    def of(self, pod: PendingPod) -> PendingCause:
        cause = pod.last_cause
        if cause is None or self._core.gangs.gang_of(pod.uid) is not None:
            return cause_of(self._core, pod)
        cached = self._by_class.get(id(cause))
        if cached is None:
            # The cause is kept too, so that its id stays its own.
            cached = self._by_class[id(cause)] = cause, cause_of(self._core, pod)
        return cached[1]


@dataclass(slots=True)
class _Group:
    sole_rules: tuple[str, ...]
    pods: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    oldest_ns: int | None = None
    message: str = ""
    examples: list[str] = field(default_factory=list)


class PendingCauses:
    """Add every pending pod, then take the record, both in steps."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._causes = CausesOfPods(core)
        self._groups: dict[str, _Group] = {}
        self._binding = 0

    def add(self, uid: PodUid) -> None:
        """A pod that is no longer pending, or has a node already, is left out. Only the first message of a cause is made:
        there may be 50,000 pods."""
        pod = self._core.pods.get(uid)
        if pod is None:
            return
        if pod.state is QueueState.BINDING:
            self._binding += 1
            return
        cause = self._causes.of(pod)
        group = self._groups.get(cause.text)
        if group is None:
            group = self._groups[cause.text] = _Group(cause.sole_rules)
        group.pods += 1
        requests = group.requests
        for name, amount in islice(pod.pod.requests.items(), REQUESTS_MAX):
            if name in requests or len(requests) < REQUESTS_MAX:
                requests[name] = requests.get(name, 0) + amount
        group.oldest_ns = min(pod.queued_ns, group.oldest_ns or pod.queued_ns)
        if not group.message:
            status = pending_status(self._core, uid)
            group.message = "" if status is None else status.message
        if len(group.examples) < _EXAMPLES_MAX:
            group.examples.append(pod.pod.full_name)

    def record(self, now_ns: int) -> Iterator[dict[str, Any] | None]:
        """None after each step, then the JSON of `/pending`, the most frequent cause first. Schema: `schemas/pending.json`."""
        freed: Counter[str] = Counter()
        for group in self._groups.values():
            for rule in group.sole_rules:
                freed[rule] += group.pods
        groups = sorted(self._groups.items(), key=lambda item: (-item[1].pods, item[0]))
        yield None
        causes: list[dict[str, Any]] = []
        for text, group in groups[:CAUSES_MAX]:
            causes.append(_cause_record(text, group, now_ns))
            if len(causes) % _CAUSES_PER_STEP == 0:
                yield None
        yield {
            "format_version": 1,
            "pods": sum(group.pods for _, group in groups),
            "binding": self._binding,
            "causes": causes,
            "omitted_causes": len(groups) - len(causes),
            "would_free": dict(freed.most_common()),
        }


def _cause_record(text: str, group: _Group, now_ns: int) -> dict[str, Any]:
    return {
        "cause": text,
        "pods": group.pods,
        "requests": {
            name: format_value(amount, resource_type(name))
            for name, amount in sorted(group.requests.items())
            if amount and (name in ("cpu", "memory") or "/" in name)
        },
        "oldest_s": round((now_ns - (group.oldest_ns or now_ns)) / 1e9, 1),
        "message": group.message,
        "examples": group.examples,
    }
