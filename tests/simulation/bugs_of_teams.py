"""Planted bugs of quotas, and of the topology levels of PodGroups.

Each function returns the patch (`planted`).
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.model.pods import Pod
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.gangs.neighbours import Neighbours
from policysched.scheduler.preemption.quota_preemption import QuotaPreemption
from policysched.scheduler.preemption.quota_reclaim import ReclaimSearch
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.scheduler.quotas.quota_owners import QuotaOwners
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import Steps
from tests.simulation.planted import all_patches

# ── quotas ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def no_quota_refuses() -> AbstractContextManager[Any]:
    return patch.object(QuotaUsage, "blocked", lambda *_: None)


def nothing_is_taken_back() -> AbstractContextManager[Any]:
    return patch.object(QuotaPreemption, "_search", lambda *_, **__: None)


def one_borrower_at_most_gives_back() -> AbstractContextManager[Any]:
    find = ReclaimSearch.find

    def find_one(self: ReclaimSearch, *arguments: Any, **more: Any) -> Steps[tuple[Pod, ...] | None]:
        victims = yield from find(self, *arguments, **more)
        return None if victims is not None and len(victims) > 1 else victims

    return patch.object(ReclaimSearch, "find", find_one)


def no_gang_takes_back() -> AbstractContextManager[Any]:
    def nothing(*_: object) -> Steps[bool]:
        yield from ()
        return False

    return patch.object(QuotaPreemption, "reclaim_for_gang", nothing)


def no_gang_takes_back_by_node() -> AbstractContextManager[Any]:
    def nothing(*_: object) -> Steps[None]:
        yield from ()

    return patch.object(QuotaPreemption, "_placement_by_node", nothing)


def who_borrows_takes_the_room_of_owners() -> AbstractContextManager[Any]:
    return patch.object(QuotaAccounts, "claims_against", lambda *_: ())


def who_borrows_evicts_owners_by_priority() -> AbstractContextManager[Any]:
    return all_patches(
        patch.object(QuotaOwners, "keep", lambda *_: False),
        patch.object(QuotaOwners, "beyond", lambda *_: ()),
    )


def quota_is_taken_from_who_borrows_nothing() -> AbstractContextManager[Any]:
    return all_patches(
        patch.object(QuotaUsage, "may_reclaim", lambda *_, **__: True),
        patch.object(QuotaUsage, "borrowed", lambda *_: 1),
    )


def gangs_that_borrow_are_evicted_in_part() -> AbstractContextManager[Any]:
    return patch.object(ReclaimSearch, "_whole", lambda _, charged: [charged])


# ── gangs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def neighbours_in_rank_are_apart() -> AbstractContextManager[Any]:
    def nothing(*_: object) -> Steps[None]:
        yield from ()
        return None

    return all_patches(
        patch.object(Neighbours, "nearest_node", lambda *_: None),
        patch.object(GangAttempts, "_search_preferred", nothing),
    )
