"""What quotas promise holds over random histories with faults, and the checkers catch planted bugs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from policysched.scheduler.preemption.quota_preemption import QuotaPreemption
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.scheduler.quota_history import QuotaHistory

SEEDS = range(25)


def test_quotas_hold_and_no_entitled_pod_starves() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        history = QuotaHistory(seed).run()
        assert history.problems == [], f"seed {seed}"
        counts += history.counts

    assert counts["placed"] > 300
    assert counts["evicted"] > 30


Plant = Callable[[Callable[..., Any]], Callable[..., Any]]
BUGS: dict[str, tuple[type, str, Plant, str]] = {
    "no quota refuses": (QuotaUsage, "blocked", lambda _: lambda *_arguments: None, "above a quota"),
    "ended pods still count": (
        QuotaAccount,
        "remove",
        lambda _: lambda *_arguments: None,
        "",
    ),
    "a release wakes nobody": (QuotaAccounts, "take_released", lambda _: lambda *_arguments: {}, "waits"),
    "everybody is a victim": (
        QuotaUsage,
        "borrowed",
        lambda _: lambda *_arguments: 1,
        "borrow nothing",
    ),
    "nothing is taken back": (
        QuotaPreemption,
        "_search",
        lambda _: lambda *_arguments, **_more: None,
        "entitled and waits",
    ),
    "labels of a namespace are read once": (
        QuotaAccount,
        "recharge",
        lambda _: lambda *_arguments: None,
        "",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_checkers_catch(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, plant, message = BUGS[bug]
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))

    for seed in range(60):
        try:
            problems = QuotaHistory(seed).run().problems
        except AssertionError as error:  # the scheduler's own invariants
            problems = [str(error)]
        if any(message in problem for problem in problems):
            return
    pytest.fail(f"{bug}: nothing noticed it")
