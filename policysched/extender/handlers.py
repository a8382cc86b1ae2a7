"""Handlers of the extender protocol: requests to the extender server, results and errors to HTTP responses.

    filter       200 with Error if there is no result: kube-scheduler shows the message in the pod's event
    prioritize   400 malformed, 404 no such policy, 503 not ready or too late: kube-scheduler continues without
    preempt      the same
    bind         200 with Error

A bind is retried unchanged while the caller waits. An abandoned one may still be executed, so the pod stays assumed on
the node until the API server confirms or denies it.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policysched.evaluate import NotCounted
from policysched.kube.extender import protocol
from policysched.kube.extender.protocol import BadExtenderArgs, NodeDecodeCache
from policysched.kube.write.bind import Binder
from policysched.kube.write.bind_object import BindOutcome
from policysched.model.identifiers import PodUid
from policysched.scheduler.blame import RaisedFor
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed
from policysched.scheduler.extenders.extender_server import ExtenderServer, ScoreScale
from policysched.scheduler.extenders.queries import ExtenderQuery, ExtenderServerError, NodeVictims
from policysched.serve.extender_routes import ExtenderHttpCall, ExtenderResponse, PendingResponse

RecordRequest = Callable[[str, str, str, float], None]
"""Policy, verb, outcome, seconds."""


@dataclass(frozen=True, slots=True)
class ExtenderLimits:
    """`response_timeout_s`: the time limit of a response (kube-scheduler's `httpTimeout` should be longer). `body_bytes_max`,
    `values_max`: full node lists are large, about 10 kB and 550 JSON values per node (an object counts as
    three). `requests_max`: concurrent requests;
    kube-scheduler filters and scores one pod at a time, but binds many at once."""

    response_timeout_s: float = 4.0
    body_bytes_max: int = 64 * 2**20
    values_max: int = 3_000_000
    requests_max: int = 128


_REPLY_MARGIN_S = 0.1
"""A bind is abandoned this long before the end of the budget, which leaves time to send the response."""

_POD_WAIT_S, _POD_POLL_INTERVAL_S = 1.0, 0.01


class ExtenderHandlers:
    """Handlers for `serve.extender_routes`. `post` gets the outcomes of binds; `note` is called on the main loop. `leave_out`:
    a request raised because of an object, so that all state is made anew."""

    def __init__(
        self,
        answering: ExtenderServer,
        binder: Binder,
        post: Callable[[BindOutcome], None],
        note: RecordRequest,
        *,
        leave_out: Callable[[Exception], None],
        main_loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        limits: ExtenderLimits,
    ) -> None:
        self._extender_server = answering
        self._binder = binder
        self._post = post
        self._record_request = note
        self._leave_out = leave_out
        self._main_loop = main_loop
        self._now_ns = now_ns
        self._node_reader = NodeDecodeCache()
        self._unresolved_binds: set[asyncio.Task[None]] = set()
        self.response_timeout_s = limits.response_timeout_s
        self.requests_max = limits.requests_max
        self.body_bytes_max = limits.body_bytes_max
        self.values_max = limits.values_max

    # ── on the HTTP thread ──────────────────────────────────────────────────────────────────────────────────

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse:
        try:
            match call.verb:
                case "filter":
                    return self._with_deadline(
                        call,
                        self._filter(call, protocol.parse_args(call.body, self._node_reader, call.client)),
                    )
                case "prioritize":
                    args = protocol.parse_args(call.body, self._node_reader, call.client)
                    return self._with_deadline(call, self._prioritize(call, args, _scale(call)))
                case "preempt":
                    return self._with_deadline(
                        call, self._preempt(call, protocol.parse_preemption_args(call.body))
                    )
                case "bind":
                    return self._with_deadline(call, self._bind(call, protocol.parse_binding_args(call.body)))
                case verb:
                    raise AssertionError(f"unknown verb {verb}")
        except BadExtenderArgs as error:
            return _failure_reply(call, 400, "bad", str(error))

    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse:
        return _failure_reply(call, 503, "late", f"no response within {self.response_timeout_s:g} s")

    def too_large_response(self, call: ExtenderHttpCall, limit: str) -> ExtenderResponse:
        return _failure_reply(call, 413, "bad", limit)

    def record(self, call: ExtenderHttpCall, reply: ExtenderResponse, seconds: float) -> None:
        if not self._main_loop.is_closed():
            self._main_loop.call_soon_threadsafe(
                self._record_request, call.policy, call.verb, reply.outcome, seconds
            )

    # ── on the main loop ───────────────────────────────────────────────────────────────────────────────────────────

    def _with_deadline(self, call: ExtenderHttpCall, work: PendingResponse) -> PendingResponse:
        async def timely() -> ExtenderResponse:
            if time.monotonic() >= call.deadline_s:
                return self.timeout_response(call)
            try:
                return await work()
            except ExtenderServerError as error:
                return _failure_reply(call, 404 if error.ready else 503, "unanswered", str(error))
            except (NotCounted, RaisedFor) as error:
                self._leave_out(error)
                return _failure_reply(call, 503, "unanswered", f"{error} raised; the cluster is read again")

        return timely

    def _filter(self, call: ExtenderHttpCall, args: protocol.ExtenderArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            result = self._extender_server.filter(_extender_request(call, args), self._now_ns())
            return _success_reply(
                protocol.filter_result(args, result.passed, result.failed, result.unresolvable)
            )

        return work

    def _prioritize(
        self, call: ExtenderHttpCall, args: protocol.ExtenderArgs, scale: ScoreScale
    ) -> PendingResponse:
        async def work() -> ExtenderResponse:
            scores = self._extender_server.scores(_extender_request(call, args), scale, self._now_ns())
            return _success_reply(protocol.host_priority_list(scores))

        return work

    def _preempt(self, call: ExtenderHttpCall, args: protocol.ExtenderPreemptionArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            victims = {
                node: NodeVictims(on_node.uids, on_node.pods) for node, on_node in args.victims.items()
            }
            kept_victims = self._extender_server.preempt(call.policy, args.pod, victims, self._now_ns())
            return _success_reply(protocol.preemption_result(args, kept_victims))

        return work

    def _bind(self, call: ExtenderHttpCall, args: protocol.ExtenderBindingArgs) -> PendingResponse:
        async def work() -> ExtenderResponse:
            await self._wait_for_pod(args.uid, call.deadline_s - time.monotonic() - _REPLY_MARGIN_S)
            bind = self._extender_server.assume(
                call.policy, args.uid, args.namespace, args.name, args.node, self._now_ns()
            )
            try:
                async with asyncio.timeout(call.deadline_s - time.monotonic() - _REPLY_MARGIN_S):
                    outcome = await self._binder.bind_now(bind)
            except (TimeoutError, asyncio.CancelledError):
                self._resolve_unknown_bind(bind)
                message = f"no response from the API server within {self.response_timeout_s:g} s; the pod may be bound or not"
                return _failure_reply(call, 503, "late", message)
            self._post(outcome)
            if isinstance(outcome, BindConfirmed):
                return _success_reply(protocol.binding_result(""))
            return _failure_reply(call, 409, "refused", outcome.reason)

        return work

    async def _wait_for_pod(self, uid: PodUid, timeout_s: float) -> None:
        """Waits a moment for a pod that kube-scheduler's watch has shown before ours."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, _POD_WAIT_S)):
                while not self._extender_server.knows_pod(uid):
                    await asyncio.sleep(_POD_POLL_INTERVAL_S)

    def _resolve_unknown_bind(self, bind: Bind) -> None:
        """Finds out later whether the bind was executed."""

        async def resolve() -> None:
            self._post(await self._binder.resolve_abandoned_bind(bind))

        task = asyncio.get_running_loop().create_task(resolve(), name=f"resolve {bind.namespace}/{bind.name}")
        self._unresolved_binds.add(task)
        task.add_done_callback(self._unresolved_binds.discard)

    async def close(self) -> None:
        """Cancels the checks of abandoned binds: the watch of the next process shows their outcome."""
        for task in list(self._unresolved_binds):
            task.cancel()
        await asyncio.gather(*self._unresolved_binds, return_exceptions=True)


def _extender_request(call: ExtenderHttpCall, args: protocol.ExtenderArgs) -> ExtenderQuery:
    return ExtenderQuery(call.policy, args.pod, args.names, args.nodes)


def _scale(call: ExtenderHttpCall) -> ScoreScale:
    match call.options.get("scale", "policy"):
        case "policy":
            return "policy"
        case "candidates":
            return "candidates"
        case scale:
            raise BadExtenderArgs(f"scale must be `policy` or `candidates`, not `{scale}`")


def _success_reply(value: Any) -> ExtenderResponse:
    return ExtenderResponse(200, value, "answered")


def _failure_reply(call: ExtenderHttpCall, status: int, outcome: str, reason: str) -> ExtenderResponse:
    message = f"policysched extender, policy {call.policy}: {reason}"
    match call.verb:
        case "filter":
            return ExtenderResponse(200, protocol.filter_error(message), outcome)
        case "bind":
            return ExtenderResponse(200, protocol.binding_result(message), outcome)
        case _:
            return ExtenderResponse(status, f"{message}\n", outcome)
