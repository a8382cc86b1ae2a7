"""Canaries: the pods in the share of each, and what is kept about its guard.

    active ──guard broken──► breaking ──for its duration──► rolled back
      ▲           ◄──guard holds──┘                             │
      └───────────────── another text of the canary ◄───────────┘

The record survives a restart: it is saved beside the states of the policy once it changes, twice a minute at most. A rolled back canary is
removed from its program before the program is compiled, so nothing else knows of the rollback. `canary_guards` measures.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from policysched.evaluate import Plan
from policysched.lang.ir.cost import scalar_cost
from policysched.lang.ir.program import CanarySpec, Program, without_canary
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.model.quantity import INT64_MAX
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.policy_permissions import COUNTS_ALWAYS, Counts
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX, pods_per_slice

_PODS_PER_SLICE = 200
_RECORD_KEY = "canary"
CanaryChange = Literal["edit", "rollback"]
NamespaceOf = Callable[[Pod], Namespace | None]


@dataclass(frozen=True, slots=True)
class CanaryRecord:
    """What is saved about a canary. `sha256` is that of its text; `pending` and `pods` of its share are those at the rollback,
    0 before. Times in ns since 1970."""

    name: str
    sha256: str
    broken_since_ns: int | None = None
    rolled_back_ns: int | None = None
    pending: int = 0
    pods: int = 0

    @property
    def rolled_back(self) -> bool:
        return self.rolled_back_ns is not None


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """A canary as people see it. `pending` of its `pods` were tried and have no node: now, or when it was rolled back."""

    policy: str
    record: CanaryRecord
    pending: int
    pods: int

    @property
    def state(self) -> Literal["active", "breaking", "rolled back"]:
        if self.record.rolled_back:
            return "rolled back"
        return "active" if self.record.broken_since_ns is None else "breaking"


@dataclass(slots=True)
class ActiveCanary:
    """A canary whose rules decide. `members`: the known pods in its share; `unsorted`: pods whose share is to be told anew, in
    slices; `operations`: of telling it, by static cost; `measured_ns`: when its guard was last measured, or when the canary became
    active."""

    spec: CanarySpec
    layer: int
    plan: Plan
    operations: int
    measured_ns: int
    members: dict[PodUid, None] = field(default_factory=dict)
    unsorted: dict[PodUid, Pod] = field(default_factory=dict)

    def has(self, pod: Pod, namespace: Namespace | None) -> bool:
        return self.plan.layer_applies(self.layer, pod, namespace)


class Canaries:
    """By policy: the active canaries, and the records. Deterministic: time comes in as an argument."""

    def __init__(self, namespace_of: NamespaceOf, counts: Counts = COUNTS_ALWAYS) -> None:
        self.active: dict[str, ActiveCanary] = {}
        self.records: dict[str, CanaryRecord] = {}
        self.saved_ns: dict[CanaryChange, int] = {}
        self.can_measure = True
        """False where no queue shows whether pods stay pending: without a guard no canary is used."""
        self._namespace_of = namespace_of
        self._counts = counts

    def effective(self, program: Program) -> Program:
        """What runs of the program: without its canary if that is rolled back."""
        if program.canary is None:
            return program
        record = self.records.get(program.name)
        rolled_back = record is not None and record.rolled_back and record.sha256 == program.canary.sha256
        return without_canary(program) if rolled_back or not self.can_measure else program

    def activate(self, program: Program, plan: Plan, pods: Iterable[Pod], now_ns: int) -> bool:
        """The program (`effective`) runs from now on. Returns whether the record changed."""
        canary, before = program.canary, self.records.get(program.name)
        self.active.pop(program.name, None)
        if canary is not None and canary.layer is not None:
            operations = scalar_cost(program.layers[canary.layer].condition).per_pod
            self.active[program.name] = ActiveCanary(canary, canary.layer, plan, operations, now_ns)
            self.sort_later(pods)
        is_suspended = program.removed and program.text
        if is_suspended or not self.can_measure:
            return False
        if canary is None:
            return self.records.pop(program.name, None) is not None
        if before is None or before.sha256 != canary.sha256:
            self.records[program.name] = CanaryRecord(canary.name, canary.sha256)
            return True
        return False

    def put_pod(self, pod: Pod) -> None:
        """A new or changed pod: in a slice if the condition takes long."""
        active = self.active.get(pod.scheduler)
        if active is not None and active.operations > POD_OPERATIONS_AT_ONCE_MAX:
            self.sort_later((pod,))
        elif active is not None and self._counts(pod.scheduler, pod.namespace):
            self._sort(active, pod)

    def _sort(self, active: ActiveCanary, pod: Pod) -> None:
        active.unsorted.pop(pod.uid, None)
        if active.has(pod, self._namespace_of(pod)):
            active.members[pod.uid] = None
        else:
            active.members.pop(pod.uid, None)

    def sort_later(self, pods: Iterable[Pod]) -> None:
        """Many pods, whose conditions may take long: `sort_slice` follows."""
        for pod in pods:
            active = self.active.get(pod.scheduler)
            if active is not None and self._counts(pod.scheduler, pod.namespace):
                active.unsorted[pod.uid] = pod

    def sort_slice(self, active: ActiveCanary) -> None:
        slice_size = pods_per_slice(active.operations, _PODS_PER_SLICE)
        for pod in list(islice(active.unsorted.values(), slice_size)):
            with raises_for(pod_id(pod)):
                self._sort(active, pod)

    def drop_pod(self, pod: Pod) -> None:
        active = self.active.get(pod.scheduler)
        if active is not None:
            active.unsorted.pop(pod.uid, None)
            active.members.pop(pod.uid, None)

    @property
    def problem(self) -> str:
        """One line about the canaries that are rolled back; empty without one. May be called from another thread."""
        records = tuple(self.records.items())  # at once: the decisions' thread may add one
        return "; ".join(
            f"canary {record.name} of policy {policy} is rolled back: {record.pending} of its {record.pods} pods were pending"
            for policy, record in sorted(records)
            if record.rolled_back
        )

    def update(self, policy: str, **changes: Any) -> CanaryRecord:
        record = self.records[policy] = replace(self.records[policy], **changes)
        return record

    # ── persistence ────────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, texts: Mapping[str, str]) -> list[str]:
        """Read the records of an earlier process from the saved states; return the errors. A record that cannot be read
        leaves the canary active, as a new one."""
        problems = []
        for policy, text in texts.items():
            if f'"{_RECORD_KEY}"' not in text:  # what else is unreadable, the states report
                continue
            try:
                saved = json.loads(text).get(_RECORD_KEY)
                if saved is not None:
                    self.records[policy] = _parse_record(saved)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                problems.append(
                    f"cannot read the saved record of the canary of policy {policy}; its rules apply again: {error}"
                )
        return problems

    def saved_with(self, states: Mapping[str, str]) -> dict[str, str]:
        """The texts of the policies' states, with the records."""
        texts = dict(states)
        for policy in sorted({*states, *self.records}):
            record = self.records.get(policy)
            if record is None and f'"{_RECORD_KEY}"' not in texts[policy]:
                continue
            document = json.loads(texts.get(policy, '{"fed_ns":0,"values":{}}'))
            document.pop(_RECORD_KEY, None)
            if record is not None:
                document[_RECORD_KEY] = asdict(record)
            texts[policy] = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return texts


def _parse_record(saved: Any) -> CanaryRecord:
    """Raises TypeError or KeyError."""
    names = saved["name"], saved["sha256"]
    if not all(isinstance(name, str) for name in names):
        raise TypeError("unexpected structure")
    numbers = saved["broken_since_ns"], saved["rolled_back_ns"], saved["pending"], saved["pods"]
    for number in numbers:
        if number is not None and (type(number) is not int or not 0 <= number <= INT64_MAX):
            raise TypeError(f"unexpected number {number!r}")
    return CanaryRecord(*names, *numbers)
