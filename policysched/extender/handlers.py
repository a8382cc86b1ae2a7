"""Requests of the extender protocol to questions of the policies, and back: which status, which field, which words.

    filter       200 with Error where there is no answer: kube-scheduler puts those words into the pod's event
    prioritize   400 what cannot be read, 404 no such policy, 503 not ready or too late: kube-scheduler goes on without
    preempt      the same
    bind         200 with Error

A bind is repeated, unchanged, as long as the caller waits. Given up without an answer it may still be carried out, so
the pod goes on counting on the node until the server, asked later, says what became of it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policysched.kube.extender import protocol
from policysched.kube.extender.protocol import BadExtenderArgs, NodeDecodeCache
from policysched.kube.write.bind import Binder, BindOutcome
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed
from policysched.scheduler.extenders.extender_server import ExtenderServer, ScoreScale
from policysched.scheduler.extenders.queries import ExtenderQuery, ExtenderServerError, NodeVictims
from policysched.serve.extender_routes import ExtenderHttpCall, ExtenderResponse, PendingResponse

RecordRequest = Callable[[str, str, str, float], None]
"""Policy, verb, outcome, seconds."""


@dataclass(frozen=True, slots=True)
class ExtenderLimits:
    """`budget_s`: an answer that would come later is none (kube-scheduler's `httpTimeout` should be longer).
    `body_bytes_max`: whole node lists are large, about 10 kB a node. `requests_max`: so many at a time; kube-scheduler filters and
    scores one pod at a time, but binds many at once."""

    budget_s: float = 4.0
    body_bytes_max: int = 256 * 2**20
    requests_max: int = 128


_REPLY_MARGIN_S = 0.1
"""How long before the end of the budget a bind is given up, so that what is known of it can still be said."""


class ExtenderHandlers:
    """A `serve.extender_routes.Desk`. `post` takes what became of binds; `record` is called in the main loop."""

    def __init__(
        self,
        answering: ExtenderServer,
        binder: Binder,
        post: Callable[[BindOutcome], None],
        note: RecordRequest,
        *,
        main_loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        limits: ExtenderLimits,
    ) -> None:
        self._extender_server = answering
        self._binder = binder
        self._post = post
        self._record_request = note
        self._main_loop = main_loop
        self._now_ns = now_ns
        self._node_reader = NodeDecodeCache()
        self._unresolved_binds: set[asyncio.Task[None]] = set()
        self.budget_s = limits.budget_s
        self.requests_max = limits.requests_max

    # ── in the thread that serves ──────────────────────────────────────────────────────────────────────────────────

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse:
        try:
            match call.verb:
                case "filter":
                    return self._with_deadline(
                        call, self._filter(call, protocol.parse_args(call.body, self._node_reader))
                    )
                case "prioritize":
                    asked = protocol.parse_args(call.body, self._node_reader)
                    return self._with_deadline(call, self._prioritize(call, asked, _scale(call)))
                case "preempt":
                    return self._with_deadline(
                        call, self._preempt(call, protocol.parse_preemption_args(call.body))
                    )
                case "bind":
                    return self._with_deadline(call, self._bind(call, protocol.parse_binding_args(call.body)))
                case verb:
                    raise AssertionError(f"a route for {verb}")
        except BadExtenderArgs as error:
            return _failure_reply(call, 400, "bad", str(error))

    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse:
        return _failure_reply(call, 503, "late", f"no answer within {self.budget_s:g} s")

    def record(self, call: ExtenderHttpCall, reply: ExtenderResponse, seconds: float) -> None:
        if not self._main_loop.is_closed():
            self._main_loop.call_soon_threadsafe(
                self._record_request, call.policy, call.verb, reply.outcome, seconds
            )

    # ── in the main loop ───────────────────────────────────────────────────────────────────────────────────────────

    def _with_deadline(self, call: ExtenderHttpCall, work: PendingResponse) -> PendingResponse:
        async def timely() -> ExtenderResponse:
            if time.monotonic() >= call.deadline_s:
                return self.timeout_response(call)
            try:
                return await work()
            except ExtenderServerError as error:
                return _failure_reply(call, 404 if error.ready else 503, "unanswered", str(error))

        return timely

    def _filter(self, call: ExtenderHttpCall, asked: protocol.ExtenderArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            found = self._extender_server.filter(_extender_request(call, asked), self._now_ns())
            return _success_reply(
                protocol.filter_result(asked, found.passed, found.failed, found.unresolvable)
            )

        return work

    def _prioritize(
        self, call: ExtenderHttpCall, asked: protocol.ExtenderArgs, scale: ScoreScale
    ) -> PendingResponse:
        async def work() -> ExtenderResponse:
            scores = self._extender_server.scores(_extender_request(call, asked), scale, self._now_ns())
            return _success_reply(protocol.host_priority_list(scores))

        return work

    def _preempt(self, call: ExtenderHttpCall, asked: protocol.ExtenderPreemptionArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            victims = {node: NodeVictims(one.uids, one.pods) for node, one in asked.victims.items()}
            kept = self._extender_server.preempt(call.policy, asked.pod, victims, self._now_ns())
            return _success_reply(protocol.preemption_result(asked, kept))

        return work

    def _bind(self, call: ExtenderHttpCall, asked: protocol.ExtenderBindingArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            bind = self._extender_server.assume(
                call.policy, asked.uid, asked.namespace, asked.name, asked.node, self._now_ns()
            )
            try:
                async with asyncio.timeout(call.deadline_s - time.monotonic() - _REPLY_MARGIN_S):
                    outcome = await self._binder.bind_now(bind)
            except (TimeoutError, asyncio.CancelledError):
                self._resolve_unknown_bind(bind)
                words = f"the API server did not answer within {self.budget_s:g} s; whether the pod is bound is not known"
                return _failure_reply(call, 503, "late", words)
            self._post(outcome)
            if isinstance(outcome, BindConfirmed):
                return _success_reply(protocol.binding_result(""))
            return _failure_reply(call, 409, "refused", outcome.reason)

        return work

    def _resolve_unknown_bind(self, bind: Bind) -> None:
        """Find out later, whoever waits."""

        async def settle() -> None:
            self._post(await self._binder.resolve_abandoned_bind(bind))

        task = asyncio.get_running_loop().create_task(settle(), name=f"settle {bind.namespace}/{bind.name}")
        self._unresolved_binds.add(task)
        task.add_done_callback(self._unresolved_binds.discard)

    async def close(self) -> None:
        """End what is still being found out: another process will see it by its watch."""
        for task in list(self._unresolved_binds):
            task.cancel()
        await asyncio.gather(*self._unresolved_binds, return_exceptions=True)


def _extender_request(call: ExtenderHttpCall, asked: protocol.ExtenderArgs) -> ExtenderQuery:
    return ExtenderQuery(call.policy, asked.pod, asked.names, asked.nodes)


def _scale(call: ExtenderHttpCall) -> ScoreScale:
    match call.options.get("scale", "policy"):
        case "policy":
            return "policy"
        case "candidates":
            return "candidates"
        case other:
            raise BadExtenderArgs(f"scale is `policy` or `candidates`, not `{other}`")


def _success_reply(value: Any) -> ExtenderResponse:
    return ExtenderResponse(200, value, "answered")


def _failure_reply(call: ExtenderHttpCall, status: int, outcome: str, words: str) -> ExtenderResponse:
    words = f"policysched extender, policy {call.policy}: {words}"
    match call.verb:
        case "filter":
            return ExtenderResponse(200, protocol.filter_error(words), outcome)
        case "bind":
            return ExtenderResponse(200, protocol.binding_result(words), outcome)
        case _:
            return ExtenderResponse(status, f"{words}\n", outcome)
