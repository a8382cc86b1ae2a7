"""Bugs planted into policysched as it starts, by patching one thing each. The watchman must notice every one of them.

python -c "from tests.e2e.chaos.bugs import run_with; run_with('never_repeat')" run --config ...
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policysched.cli import main
from tests.e2e.chaos.fault_profile import ANSWERS_ARE_LOST, Climate


def withdraw_on_unknown() -> None:
    """A bind without an answer counts as refused: its room is given away while the request may still be carried out."""
    from policysched.kube.client.api import ApiStatusError, Conflict, NotFound
    from policysched.kube.write import bind
    from policysched.scheduler.commands import Bind
    from policysched.scheduler.events import BindConfirmed, BindRefused

    async def attempt(self: bind.Binder, one: Bind) -> bind.BindOutcome:
        path = f"/api/v1/namespaces/{one.namespace}/pods/{one.name}/binding"
        try:
            await self._api.post_discarding_response(
                path, bind.binding_body(one), params={"timeout": "5s"}, timeout_s=7.0
            )
        except (Conflict, NotFound) as error:
            return await self._read_bind_outcome(one, error)
        except (*bind.RETRYABLE_ERRORS, ApiStatusError) as error:
            return BindRefused(one.uid, str(error))
        return BindConfirmed(one.uid, one.node)

    setattr(bind.Binder, "_bind_until_answered", attempt)  # noqa: B010 (mypy minds the name of its parameter)


def never_repeat() -> None:
    """A bind without an answer is not sent again: its pod is promised a place for ever."""
    from policysched.kube.client.backoff import Backoff
    from policysched.kube.write import bind

    class ForEver(Backoff):
        def failed(self, error: BaseException | None = None) -> float:
            del error
            return 1e6

    setattr(bind, "Backoff", ForEver)  # noqa: B010 (it is not the module's to give away)


def gangs_one_by_one() -> None:
    """Members of a gang are placed like any other pod."""
    from policysched.evaluate.plan.plan import Plan

    Plan.gang = lambda *_: None  # type: ignore[method-assign]


def gangs_are_never_complete() -> None:
    """There are never members enough."""
    from policysched.scheduler.queue.gangs import QueuedGang

    QueuedGang.needed_count = property(lambda _: 99)  # type: ignore[assignment, method-assign]


def deaf_after_a_cut() -> None:
    """A watch of pods that ended is not taken up again."""
    from policysched.kube.watch.reflector import Reflector

    watch = Reflector._watch

    async def once(self: Reflector[Any]) -> None:
        try:
            await watch(self)
        finally:
            if self.kind == "Pod":
                await asyncio.Event().wait()

    Reflector._watch = once  # type: ignore[method-assign]


def deaf_to_selectors() -> None:
    """What a pod's nodeSelector asks of nodes is not looked at: the nodes of the seeds beside it are as good as its own."""
    from policysched.builtins import kernels

    kernels.FILTER_KERNELS["node_affinity"] = lambda *_: None  # type: ignore[index]


@dataclass(frozen=True)
class Bug:
    """`noticed` are words of what the watchman says of it. `climate`: one in which it soon shows; else each seed's own."""

    plant: Callable[[], None]
    noticed: str
    climate: Climate | None = None


BUGS: dict[str, Bug] = {
    "withdraw_on_unknown": Bug(withdraw_on_unknown, "and holds", ANSWERS_ARE_LOST),
    "never_repeat": Bug(never_repeat, "waits, though there is|are bound"),
    "gangs_one_by_one": Bug(gangs_one_by_one, r"\d of the \d of .* are bound"),
    "gangs_are_never_complete": Bug(gangs_are_never_complete, r"\d times \d+m\) waits, though there is"),
    "deaf_after_a_cut": Bug(deaf_after_a_cut, r"\(\d+m\) waits, though there is"),
    "deaf_to_selectors": Bug(deaf_to_selectors, "which its nodeSelector forbids"),
}


def run_with(name: str) -> None:
    """`policysched` with the arguments of this process, and with that bug."""
    BUGS[name].plant()
    main()
