"""Objects whose event, timer or count raised: a fault of the program, which a value of them brings to light.

    applied ──raises──► left out, and the cluster is read again ──after an hour, then twice as long──► applied

The state may be half changed after the exception, so that all of it is made anew, as after a restart of the process. What the
object uses still counts: a pod on a node as what it takes there, an allocated claim with its devices. If even that
raises, its node is left out. The policy text that raised where it took effect counts as one that does not check. If no
other text of the policy can run, the policy is suspended. A metric whose samples raised counts as one without samples.
"""

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

from policysched.daemon.event_objects import (
    DELETIONS,
    NODE_OBJECT,
    UPDATES,
    description,
    id_of_counted,
    object_of,
    what_it_uses,
)
from policysched.daemon.slow_admission import SlowAdmission
from policysched.evaluate import NotCounted
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program, suspended_program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.policy_files.source_set import POLICY_SUFFIX
from policysched.scheduler import events as e
from policysched.scheduler.blame import ObjectId, RaisedFor, pod_id, text_id
from policysched.scheduler.commands import ReportPodEvent
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.rejection_message import format_duration
from policysched.text.sanitize import sanitize_line

log = logging.getLogger(__name__)

RETRY_NS = 3600 * SECOND_NS
_DOUBLINGS_MAX = 4
NAMESPACE_FAILURES_MAX = 3
"""So often within an hour may objects of one namespace have the cluster read again. Then all of its objects are left out."""
_RETRY_CHECK_NS = 60 * SECOND_NS
_TRACEBACK_CHARACTERS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class _Failure:
    """`span_ns`: for how long the object is left out. `hidden_node`: what it uses of that node cannot be counted."""

    count: int
    span_ns: int
    until_ns: int
    message: str
    hidden_node: NodeName | None


class FailedObjects:
    """Outlives the app, which is made anew. `owner_of` a policy: the namespace of its team."""

    def __init__(self, owner_of: Callable[[str], str | None] = lambda _: None) -> None:
        self._owner_of = owner_of
        self._failures: dict[tuple[str, str, str], _Failure] = {}
        self._raised_ns: dict[str, list[int]] = {}  # by namespace, within the last hour
        self._namespaces: dict[str, int] = {}  # left out as a whole, until then
        self._left_out: dict[tuple[str, str, str], e.Event] = {}
        self._slow = SlowAdmission()
        self._failed_texts: tuple[e.PoliciesUpdated, list[Program]] | None = None  # in the latest event
        self._checked_ns = 0
        self._told: set[str] = set()
        self.untold: list[Pod] = []

    def begin(self) -> Self:
        """A new app reads all objects again."""
        self._left_out.clear()
        self._failed_texts = None
        return self

    def admit(self, event: e.Event, now_ns: int) -> e.Event | None:
        """What is to be applied instead of the event; None: nothing."""
        if not self._failures and not self._namespaces and not self._slow.is_on:
            return event
        if isinstance(event, e.PoliciesUpdated):
            return self._without_failed_texts(event, now_ns)
        if isinstance(event, e.Synced):
            self._forget_deleted_pods(now_ns)
        object_id = object_of(event)
        if object_id is None:
            return event
        if isinstance(event, DELETIONS):
            self._failures.pop(object_id.key, None)
            self._told.discard(object_id.name)
            self._slow.forget(object_id)
            self._left_out.pop(object_id.key, None)
        if not isinstance(event, UPDATES):
            return event
        if not (self._is_left_out(object_id, now_ns) or self._slow.holds_back(object_id, now_ns)):
            self._left_out.pop(object_id.key, None)
            return event
        self._left_out[object_id.key] = event
        failure = self._failures.get(object_id.key)
        if failure is not None and failure.hidden_node is not None and now_ns < failure.until_ns:
            return None
        if isinstance(event, e.PodUpdated) and event.pod.finished:
            return e.PodDeleted(event.pod.pod.uid)
        if isinstance(event, e.PodUpdated) and event.pod.node is None:
            self._tell_later(event.pod.pod)
        return what_it_uses(event)

    def note(
        self,
        event: e.Event | None,
        error: Exception,
        now_ns: int,
        pods: Mapping[PodUid, ObservedPod] = MappingProxyType({}),
    ) -> bool:
        """The event, or what was admitted instead of it, raised; None: a decision or a timer did. `pods` say to which
        namespace an answer belongs. False: it is the fault of no object, or leaving it out is of no use."""
        object_id = None if event is None else object_of(event)
        if isinstance(error, NotCounted):
            object_id = id_of_counted(error)
        elif isinstance(error, RaisedFor):
            object_id = error.object_id
        if object_id is None:
            return False
        if object_id.kind == "Pod" and not object_id.namespace:
            observed = pods.get(PodUid(object_id.name))
            object_id = object_id if observed is None else pod_id(observed.pod)
        hidden_node = None
        if object_id.kind == "CSINode" or object_id.kind.startswith(NODE_OBJECT):
            hidden_node = NodeName(object_id.name)
        if self._is_left_out(object_id, now_ns):
            applied = self._left_out.get(object_id.key)
            if not isinstance(applied, e.PodUpdated) or applied.pod.node is None:
                return False
            hidden_node = applied.pod.node
        earlier = self._failures.get(object_id.key)
        count = 1 if earlier is None else earlier.count + 1
        span_ns = RETRY_NS * 2 ** min(count - 1, _DOUBLINGS_MAX)
        cause = error.__cause__ or error
        message = sanitize_line(f"{type(cause).__name__}: {cause}")
        if object_id.name:
            self._failures[object_id.key] = _Failure(count, span_ns, now_ns + span_ns, message, hidden_node)
        self._told.discard(object_id.name)
        frames = "".join(traceback.format_tb(cause.__traceback__))[-_TRACEBACK_CHARACTERS_MAX:]
        log.error(
            "an event could not be applied, please report this bug; its object is left out, and the cluster is read again",
            extra={"object": description(event, error, object_id), "error": f"{frames}{message}"},
        )
        self._note_namespace(object_id.namespace, now_ns)
        self._slow.note_raised(object_id, now_ns)
        return True

    def take_due(self, now_ns: int) -> list[e.Event]:
        """The last events of objects that are to be tried again."""
        if not self._failures and not self._left_out:
            return []
        if (
            not self._slow.admit_more(self._waiting(now_ns), now_ns)
            and now_ns < self._checked_ns + _RETRY_CHECK_NS
        ):
            return []
        self._checked_ns = now_ns
        for key, failure in list(self._failures.items()):
            if now_ns > failure.until_ns + failure.span_ns:  # also if it was deleted while nothing watched
                del self._failures[key]
                self._told.discard(key[2])
        due = {
            object_id.key: self._left_out[object_id.key]
            for object_id in self._waiting(now_ns)
            if not self._slow.holds_back(object_id, now_ns)
        }
        for key in due:
            del self._left_out[key]
        return [*due.values(), *self._take_due_texts(now_ns)]

    def _waiting(self, now_ns: int) -> Iterator[ObjectId]:
        """What is left out and need not be: it is due, or held back."""
        for event in self._left_out.values():
            object_id = object_of(event)
            if object_id is not None and not self._is_left_out(object_id, now_ns):
                yield object_id

    def _take_due_texts(self, now_ns: int) -> list[e.PoliciesUpdated]:
        if self._failed_texts is None:
            return []
        event, failed = self._failed_texts
        if all(self._problem(program, now_ns) for program in failed):
            return []
        self._failed_texts = None
        # With last known good texts, it is not ignored for a version that was seen.
        return [replace(event, last_good=event.last_good or PolicyBundle({}))]

    def take_reports(self, policies: Container[str]) -> list[ReportPodEvent]:
        """For the pending pods of these policies that are left out, once for each failure."""
        pods, self.untold = self.untold, []
        return [
            ReportPodEvent(
                pod.uid,
                pod.namespace,
                pod.name,
                pod.scheduler,
                "Warning",
                "SchedulerError",
                self._message(pod),
            )
            for pod in pods
            if pod.scheduler in policies
        ]

    def counts(self, now_ns: int) -> dict[str, int]:
        """The objects that are left out because their event raised, by kind. `all of a namespace` counts namespaces,
        `not tried yet` those that are held back because many others of their kind raised."""
        kinds = Counter(kind for (kind, _, _), failure in self._failures.items() if now_ns < failure.until_ns)
        namespaces = sum(now_ns < until_ns for until_ns in self._namespaces.values())
        waiting = sum(1 for _ in self._waiting(now_ns))
        special = {"all of a namespace": namespaces, "not tried yet": waiting}
        return {**kinds, **{kind: count for kind, count in special.items() if count}}

    def _without_failed_texts(self, event: e.PoliciesUpdated, now_ns: int) -> e.PoliciesUpdated:
        """Another text is tried at once, and the same one after its time. Where no other text of the policy can run, it is
        suspended: its pods are told."""
        bundles = [
            bundle.sources.values() for bundle in (event.bundle, event.last_good) if bundle is not None
        ]
        programs = [source.program for sources in bundles for source in sources if source.program is not None]
        failed = [
            program for program in (*programs, *event.fallbacks.values()) if self._problem(program, now_ns)
        ]
        self._failed_texts = (event, failed) if failed else None
        if not failed:
            return event
        bundle = event.bundle and PolicyBundle(
            {key: self._checked(source, now_ns) for key, source in event.bundle.sources.items()}
        )
        last_good = dict(event.last_good.sources) if event.last_good is not None else {}
        for key, source in last_good.items():
            runs = source.program and self._suspended(source.program, now_ns)
            last_good[key] = self._checked(source, now_ns) if runs is None else replace(source, program=runs)
        known = {source.program.name for source in last_good.values() if source.program is not None}
        for program in failed:
            runs = self._suspended(program, now_ns)
            if runs is not None and program.name not in known and program.name not in event.unchecked_texts:
                key = f"{program.name}{POLICY_SUFFIX}"
                last_good[key] = CheckedSource(key, False, runs, ())
        fallbacks = {
            name: runs
            for name, program in event.fallbacks.items()
            if (runs := self._suspended(program, now_ns)) is not None
        }
        return replace(event, bundle=bundle, last_good=PolicyBundle(last_good), fallbacks=fallbacks)

    def _suspended(self, program: Program, now_ns: int) -> Program | None:
        """The program, or what runs in its place; None if that raised, too. Tenants read the message, so it has no value that
        the exception names."""
        if self._problem(program, now_ns) is None:
            return program
        is_text = text_id(program, self._owner_of(program.name)).key in self._failures
        message = (
            f"policy {program.name} is suspended: {'its text' if is_text else 'other objects of its namespace'} raised "
            "an exception, which is a bug of the scheduler; another text is tried at once, and this one later"
        )
        suspended = suspended_program(program, message)
        return None if text_id(suspended, self._owner_of(program.name)).key in self._failures else suspended

    def _checked(self, source: CheckedSource, now_ns: int) -> CheckedSource:
        program = source.program
        problem = None if program is None else self._problem(program, now_ns)
        if program is None or problem is None:
            return source
        diagnostic = make_diagnostic(
            "PS901",
            problem,
            program.name_span,
            label="not in effect",
            help="report this bug; another text is tried at once",
        )
        return replace(
            source,
            program=None,
            policy_name=program.name,
            diagnostics=(diagnostic, *source.diagnostics),
        )

    def _problem(self, program: Program, now_ns: int) -> str | None:
        """Why the text may not take effect."""
        object_id = text_id(program, self._owner_of(program.name))
        if program.removed or not self._is_left_out(object_id, now_ns):
            return None
        failure = self._failures.get(object_id.key)
        cause = f"objects of namespace {object_id.namespace}" if failure is None else failure.message[:200]
        return f"internal error: {cause}"

    def _forget_deleted_pods(self, now_ns: int) -> None:
        """The first lists are complete. Their nodes are not left out any more."""
        self._failures = {
            key: failure
            for key, failure in self._failures.items()
            if key[0] != "Pod" or key in self._left_out or now_ns >= failure.until_ns
        }

    def _note_namespace(self, namespace: str, now_ns: int) -> None:
        if not namespace:
            return
        recent = [at_ns for at_ns in self._raised_ns.get(namespace, ()) if at_ns > now_ns - RETRY_NS]
        self._raised_ns[namespace] = recent = [*recent, now_ns]
        if len(recent) >= NAMESPACE_FAILURES_MAX:
            self._namespaces[namespace] = now_ns + RETRY_NS
            log.error("all objects of a namespace are left out", extra={"namespace": namespace})

    def _is_left_out(self, object_id: ObjectId, now_ns: int) -> bool:
        failure = self._failures.get(object_id.key)
        if failure is not None and now_ns < failure.until_ns:
            return True
        if object_id.kind == "Node":
            return any(
                failure.hidden_node == object_id.name and now_ns < failure.until_ns
                for failure in self._failures.values()
            )
        return now_ns < self._namespaces.get(object_id.namespace, 0)

    def _tell_later(self, pod: Pod) -> None:
        if pod.uid not in self._told:
            self._told.add(pod.uid)
            self.untold.append(pod)

    def _message(self, pod: Pod) -> str:
        failure = self._failures.get(("Pod", "", pod.uid))
        if failure is None:
            return f"internal errors with other objects of namespace {pod.namespace}: all of it is left out for an hour"
        return (
            f"internal error: {failure.message[:200]}; the pod is left out for {format_duration(failure.span_ns)}, "
            "or until it is created again"
        )
