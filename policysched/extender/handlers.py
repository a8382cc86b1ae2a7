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

from policysched.kube.extender import wire
from policysched.kube.extender.wire import BadArguments, NodeReader
from policysched.kube.write.bind import Binder, BindOutcome
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed
from policysched.scheduler.extenders.extender_server import (
    Answering,
    NoAnswer,
    Question,
    Scale,
    Victims,
)
from policysched.serve.extender import Call, Reply, Work

Note = Callable[[str, str, str, float], None]
"""Policy, verb, outcome, seconds."""


@dataclass(frozen=True, slots=True)
class ExtenderLimits:
    """`budget_s`: an answer that would come later is none (kube-scheduler's `httpTimeout` should be longer).
    `body_bytes_max`: whole node lists are large, about 10 kB a node. `requests_max`: so many at a time; kube-scheduler filters and
    scores one pod at a time, but binds many at once."""

    budget_s: float = 4.0
    body_bytes_max: int = 256 * 2**20
    requests_max: int = 128


_WORDS_S = 0.1
"""How long before the end of the budget a bind is given up, so that what is known of it can still be said."""


class ExtenderDesk:
    """A `serve.extender.Desk`. `post` takes what became of binds; `note` is called in the main loop."""

    def __init__(
        self,
        answering: Answering,
        binder: Binder,
        post: Callable[[BindOutcome], None],
        note: Note,
        *,
        main_loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        limits: ExtenderLimits,
    ) -> None:
        self._answering = answering
        self._binder = binder
        self._post = post
        self._note = note
        self._main_loop = main_loop
        self._now_ns = now_ns
        self._nodes = NodeReader()
        self._settling: set[asyncio.Task[None]] = set()
        self.budget_s = limits.budget_s
        self.requests_max = limits.requests_max

    # ── in the thread that serves ──────────────────────────────────────────────────────────────────────────────────

    def read(self, call: Call) -> Work | Reply:
        try:
            match call.verb:
                case "filter":
                    return self._timely(call, self._filter(call, wire.read_arguments(call.body, self._nodes)))
                case "prioritize":
                    asked = wire.read_arguments(call.body, self._nodes)
                    return self._timely(call, self._prioritize(call, asked, _scale(call)))
                case "preempt":
                    return self._timely(call, self._preempt(call, wire.read_preemption(call.body)))
                case "bind":
                    return self._timely(call, self._bind(call, wire.read_binding(call.body)))
                case verb:
                    raise AssertionError(f"a route for {verb}")
        except BadArguments as error:
            return _failure(call, 400, "bad", str(error))

    def late(self, call: Call) -> Reply:
        return _failure(call, 503, "late", f"no answer within {self.budget_s:g} s")

    def note(self, call: Call, reply: Reply, seconds: float) -> None:
        if not self._main_loop.is_closed():
            self._main_loop.call_soon_threadsafe(self._note, call.policy, call.verb, reply.outcome, seconds)

    # ── in the main loop ───────────────────────────────────────────────────────────────────────────────────────────

    def _timely(self, call: Call, work: Work) -> Work:
        async def timely() -> Reply:
            if time.monotonic() >= call.deadline_s:
                return self.late(call)
            try:
                return await work()
            except NoAnswer as error:
                return _failure(call, 404 if error.ready else 503, "unanswered", str(error))

        return timely

    def _filter(self, call: Call, asked: wire.Arguments) -> Work:
        async def work() -> Reply:
            found = self._answering.filter(_question(call, asked), self._now_ns())
            return _answered(wire.filter_result(asked, found.passed, found.failed, found.hopeless))

        return work

    def _prioritize(self, call: Call, asked: wire.Arguments, scale: Scale) -> Work:
        async def work() -> Reply:
            scores = self._answering.scores(_question(call, asked), scale, self._now_ns())
            return _answered(wire.priorities(scores))

        return work

    def _preempt(self, call: Call, asked: wire.PreemptionArguments) -> Work:
        async def work() -> Reply:
            victims = {node: Victims(one.uids, one.pods) for node, one in asked.victims.items()}
            kept = self._answering.preempt(call.policy, asked.pod, victims, self._now_ns())
            return _answered(wire.preemption_result(asked, kept))

        return work

    def _bind(self, call: Call, asked: wire.BindingArguments) -> Work:
        async def work() -> Reply:
            bind = self._answering.assume(
                call.policy, asked.uid, asked.namespace, asked.name, asked.node, self._now_ns()
            )
            try:
                async with asyncio.timeout(call.deadline_s - time.monotonic() - _WORDS_S):
                    outcome = await self._binder.bind_now(bind)
            except (TimeoutError, asyncio.CancelledError):
                self._settle(bind)
                words = f"the API server did not answer within {self.budget_s:g} s; whether the pod is bound is not known"
                return _failure(call, 503, "late", words)
            self._post(outcome)
            if isinstance(outcome, BindConfirmed):
                return _answered(wire.binding_result(""))
            return _failure(call, 409, "refused", outcome.reason)

        return work

    def _settle(self, bind: Bind) -> None:
        """Find out later, whoever waits."""

        async def settle() -> None:
            self._post(await self._binder.look(bind))

        task = asyncio.get_running_loop().create_task(settle(), name=f"settle {bind.namespace}/{bind.name}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        """End what is still being found out: another process will see it by its watch."""
        for task in list(self._settling):
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)


def _question(call: Call, asked: wire.Arguments) -> Question:
    return Question(call.policy, asked.pod, asked.names, asked.nodes)


def _scale(call: Call) -> Scale:
    match call.options.get("scale", "policy"):
        case "policy":
            return "policy"
        case "candidates":
            return "candidates"
        case other:
            raise BadArguments(f"scale is `policy` or `candidates`, not `{other}`")


def _answered(value: Any) -> Reply:
    return Reply(200, value, "answered")


def _failure(call: Call, status: int, outcome: str, words: str) -> Reply:
    words = f"policysched extender, policy {call.policy}: {words}"
    match call.verb:
        case "filter":
            return Reply(200, wire.filter_error(words), outcome)
        case "bind":
            return Reply(200, wire.binding_result(words), outcome)
        case _:
            return Reply(status, f"{words}\n", outcome)
