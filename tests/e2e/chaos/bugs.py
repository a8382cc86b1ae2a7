"""Bugs planted into policysched at its start, each by one patch. The safety checker must catch all of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.chaos.fault_profile import LOST_ANSWERS, SHORT_WATCHES, STEPPED_CLOCK, FaultProfile


def withdraw_on_unknown() -> None:
    """A bind without an answer counts as refused: its resources are freed while the request may still succeed."""
    from policysched.kube.client.api import ApiStatusError, Conflict, NotFound
    from policysched.kube.write import bind
    from policysched.kube.write.pending_binds import PendingBind
    from policysched.scheduler.events import BindConfirmed, BindRefused

    async def attempt(self: bind.Binder, pending: PendingBind) -> bind.BindOutcome | bind.RetryLater:
        command = pending.bind
        path = f"/api/v1/namespaces/{command.namespace}/pods/{command.name}/binding"
        try:
            await self._api.post_discarding_response(
                path, bind.binding_body(command), params={"timeout": "5s"}, timeout_s=7.0
            )
        except (Conflict, NotFound) as error:
            pending.rejection = error
            return await self._read_bind_outcome(pending, error)
        except (*bind.RETRYABLE_ERRORS, ApiStatusError) as error:
            return BindRefused(command.uid, str(error))
        return BindConfirmed(command.uid, command.node)

    _replace(bind.Binder, "_attempt", attempt)


def never_repeat() -> None:
    """A bind without an answer is not retried: its pod stays assumed for ever."""
    from policysched.kube.write.bind import Binder

    _replace(Binder, "_retry_delay_s", lambda *_: 1e6)


def gangs_one_by_one() -> None:
    """Members of a gang are scheduled like any other pod."""
    from policysched.evaluate.plan.plan import Plan

    _replace(Plan, "gang", lambda *_: None)


def gangs_are_never_complete() -> None:
    """A gang never has enough members."""
    from policysched.scheduler.queue.gang_registry import QueuedGang

    _replace(QueuedGang, "needed_count", property(lambda _: 99))


def follows_the_wall_clock() -> None:
    """A pod that is in backoff when the wall clock is set back by an hour is not tried again for that hour."""
    from policysched.daemon.clock import NonDecreasingClock

    _replace(NonDecreasingClock, "now_ns", lambda self: self._wall_ns())
    _replace(NonDecreasingClock, "offset_s", lambda _: 0.0)


def deaf_after_a_cut() -> None:
    """A watch of pods that ended is not restarted."""
    from policysched.kube.watch.reflector import Reflector

    watch = Reflector._watch

    async def once(self: Reflector[Any]) -> None:
        try:
            await watch(self)
        finally:
            if self.kind == "Pod":
                await asyncio.Event().wait()

    _replace(Reflector, "_watch", once)


def deaf_to_selectors() -> None:
    """A pod's nodeSelector is ignored, so that it may be bound to a node of another seed."""
    from policysched.builtins import kernels

    assert "node_affinity" in kernels.FILTER_KERNELS
    kernels.FILTER_KERNELS["node_affinity"] = lambda *_: None  # type: ignore[index]


def _replace(holder: Any, name: str, replacement: Any) -> None:
    """Set an attribute that exists: a bug planted under an old name would change nothing."""
    assert hasattr(holder, name), f"{holder} has no {name}"
    setattr(holder, name, replacement)


@dataclass(frozen=True)
class Bug:
    """`noticed`: a pattern for the checker's message. `seeds`: the first to try, because they usually
    show the bug, and no other bug's, because bugs run at once. `profile`: faults that show it soon;
    None: each seed's own.
    """

    plant: Callable[[], None]
    noticed: str
    seeds: tuple[int, ...]
    profile: FaultProfile | None = None


BUGS: dict[str, Bug] = {
    "withdraw_on_unknown": Bug(withdraw_on_unknown, "and holds", (15,), LOST_ANSWERS),
    "never_repeat": Bug(never_repeat, "waits, though there is|are bound", (17,)),
    "gangs_one_by_one": Bug(gangs_one_by_one, r"\d of the \d of .* are bound", (1, 3)),
    "gangs_are_never_complete": Bug(
        gangs_are_never_complete, r"\d times \d+m\) waits, though there is", (5,)
    ),
    "follows_the_wall_clock": Bug(
        follows_the_wall_clock, r"\(\d+m\) waits, though there is", (0,), STEPPED_CLOCK
    ),
    "deaf_after_a_cut": Bug(deaf_after_a_cut, r"\(\d+m\) waits, though there is", (4,), SHORT_WATCHES),
    "deaf_to_selectors": Bug(deaf_to_selectors, "which its nodeSelector forbids", (2, 6)),
}
