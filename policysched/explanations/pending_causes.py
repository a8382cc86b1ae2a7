"""The pending pods of a scheduler, grouped by what they wait for."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from policysched.lang.ir.attributes import resource_type
from policysched.lang.types.units import format_value
from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pending_status import pending_status
from policysched.scheduler.pending_summary import cause_of
from policysched.scheduler.queue.entries import QueueState

_EXAMPLES_MAX = 3


@dataclass(slots=True)
class _Group:
    pods: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    oldest_ns: int | None = None
    message: str = ""
    examples: list[str] = field(default_factory=list)


class PendingCauses:
    """Add every pending pod, then take the record."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._freed: Counter[str] = Counter()
        self._binding = 0

    def add(self, core: SchedulerCore, uid: PodUid) -> None:
        """A pod that is no longer pending, or has a node already, is left out."""
        pod, status = core.pods.get(uid), pending_status(core, uid)
        if pod is None or status is None:
            return
        if pod.state is QueueState.BINDING:
            self._binding += 1
            return
        cause = cause_of(core, pod)
        group = self._groups.setdefault(cause.text, _Group())
        group.pods += 1
        group.requests.update(pod.pod.requests)
        group.oldest_ns = min(pod.queued_ns, group.oldest_ns or pod.queued_ns)
        group.message = group.message or status.message
        if len(group.examples) < _EXAMPLES_MAX:
            group.examples.append(pod.pod.full_name)
        self._freed.update(cause.sole_rules)

    def record(self, now_ns: int) -> dict[str, Any]:
        """The JSON of `/pending`, the most frequent cause first. Schema: `schemas/pending.json`."""
        groups = sorted(self._groups.items(), key=lambda item: (-item[1].pods, item[0]))
        return {
            "format_version": 1,
            "pods": sum(group.pods for _, group in groups),
            "binding": self._binding,
            "causes": [
                {
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
                for text, group in groups
            ],
            "would_free": dict(self._freed.most_common()),
        }
