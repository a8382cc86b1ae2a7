"""An edit of a quota: a broken one is rejected at its place and changes nothing, a doubtful one says what holds."""

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.quotas.quota_status import QuotaEntityStatus
from policysched.text import Severity
from tests.builders import finished, node, pod
from tests.scheduler.rig import Rig, bundle

HEAD = """\
policy test version 1
include kube_default
"""
GOOD = (
    HEAD
    + 'quota team by pod.labels["team"] else "none" { "a" { cpu = 2 } "b" { cpu = 2 borrow 1 } others { cpu = 0 } }\n'
)
ORG = 'quota org by pod.labels["org"] else "none" { "x" { cpu = 2 } others { cpu = 0 } }\n'
REJECTED = {
    "a negative amount": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = -1 } others unlimited }\n',
        "3:60 PS208",
    ),
    "a negative limit of borrowing": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = 1 borrow -1 } others unlimited }\n',
        "3:69 PS208",
    ),
    "an absurd number": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = 99999999999999999999 } others unlimited }\n',
        "3:60 PS208",
    ),
    "an absurd size": (
        'quota team by pod.labels["team"] else "none" { "a" { memory = 9999999999Ei } others unlimited }\n',
        "3:63 PS208",
    ),
    "an amount of another type": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = "two" } others unlimited }\n',
        "3:60 PS202",
    ),
    "half a pod": (
        'quota team by pod.labels["team"] else "none" { "a" { pods = 1.5 } others unlimited }\n',
        "3:61 PS204",
    ),
    "a quota within itself": ("quota org by pod.namespace within org { others { cpu = 4 } }\n", "3:35 PS271"),
    "a cycle of two quotas": (
        "quota org by pod.namespace within team { others { cpu = 4 } }\n"
        "quota team by pod.namespace within org { others { cpu = 4 } }\n",
        "3:35 PS271",
    ),
    "a resource that is not declared": (
        'quota team by pod.labels["team"] else "none" { "a" { gpus = 1 } others unlimited }\n',
        "3:54 PS273",
    ),
    "two rows of one entity": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = 1 } "a" { cpu = 9 } others unlimited }\n',
        "3:64 PS213",
    ),
    "no limits for others": (
        'quota team by pod.labels["team"] else "none" { "a" { cpu = 1 } }\n',
        "3:7 PS272",
    ),
}


def running() -> Rig:
    """Team `a` uses its 2 cpu, and one of its pods waits. `b` borrows nothing yet."""
    rig = Rig(GOOD, node("n", cpu="100"))
    rig.observe(*(pod(f"a{number}", labels={"team": "a"}, cpu="1") for number in range(3)))
    rig.settle()
    rig.confirm_binds()
    assert set(rig.placements()) == {"a0", "a1"}
    return rig


def quotas(rig: Rig) -> list[QuotaEntityStatus]:
    return rig.scheduler.core.quotas.status()


@pytest.mark.parametrize("edit", REJECTED)
def test_a_broken_quota_is_rejected_at_its_place_and_nothing_changes(edit: str) -> None:
    rig = running()
    rules, place = REJECTED[edit]
    active, used, message = (
        rig.scheduler.core.policies.running["test"].program.sha256,
        quotas(rig),
        rig.pending_message("a2"),
    )
    rig.apply_policies(HEAD + rules + "preemption never\n")
    rig.pass_time(5)

    (rejected,) = [command for command in rig.of(c.ReportPolicyEvent) if command.reason == "PolicyRejected"]
    assert place in rejected.message
    assert rig.scheduler.core.policies.running["test"].program.sha256 == active
    assert quotas(rig) == used
    assert rig.pending_message("a2") == message
    assert not rig.of(c.Evict)
    # The quota of before is enforced, and frees what it did.
    rig.observe(*(pod(f"b{number}", labels={"team": "b"}, cpu="1") for number in range(4)))
    rig.settle()
    assert {name for name in rig.placements() if name.startswith("b")} == {"b0", "b1"}
    rig.observe(finished(pod("a0", labels={"team": "a"}, cpu="1"), "n"))
    rig.pass_time(5)
    assert "a2" in rig.placements()


DOUBTFUL = {
    "rows that sum to more than their parent": (
        ORG + 'quota team by pod.labels["team"] else "none" within org '
        '{ "a" in "x" { cpu = 2 } "b" in "x" { cpu = 2 } others { cpu = 0 } }\n',
        "PS420",
        '"b" in "x"',
    ),
    "a row in an entity without a row": (
        ORG + 'quota team by pod.labels["team"] else "none" within org '
        '{ "a" in "x" { cpu = 2 } "b" in "y" { cpu = 2 } others { cpu = 0 } }\n',
        "PS421",
        '"y"',
    ),
}


@pytest.mark.parametrize("edit", DOUBTFUL)
def test_a_doubtful_quota_is_active_with_a_warning_and_the_parent_holds(edit: str) -> None:
    rules, code, place = DOUBTFUL[edit]
    (source,) = bundle({"main.policy": HEAD + rules}).sources.values()
    warnings = {diagnostic.code: diagnostic for diagnostic in source.diagnostics}
    assert warnings[code].severity is Severity.WARNING
    span = warnings[code].span
    assert span is not None and span.text == place
    rig = running()

    rig.apply_policies(HEAD + rules)
    teams = [(team, number) for number in range(3) for team in ("a", "b")]
    for team, number in teams:
        rig.observe(pod(f"new-{team}{number}", labels={"org": "x", "team": team}, cpu="1"))
    rig.settle()

    in_x = [name for name in rig.placements() if name.startswith("new-")]
    assert len(in_x) == 2, "organisation x has 2 cpu, whatever its teams are promised"


@pytest.mark.parametrize("resource", ['"example.com/card" = 1', "cpu = 1", "memory = 1Ki", "pods = 1"])
def test_an_amount_below_the_use_evicts_nobody(resource: str) -> None:
    rig = running()

    rig.apply_policies(GOOD.replace("cpu = 2 }", f"{resource} }}", 1))
    rig.observe(*(pod(f"b{number}", labels={"team": "b"}, cpu="1") for number in range(2)))
    rig.pass_time(120)

    assert not rig.of(c.Evict)
    assert {"a0", "a1"} <= set(rig.placements())


def test_what_is_borrowed_above_a_smaller_amount_goes_when_its_owner_asks() -> None:
    """The policy says so: the amount lets its owner evict pods of teams that borrow."""
    text = GOOD.replace('"a" { cpu = 2 }', '"a" { cpu = 2 borrow any }')
    rig = Rig(text, node("n", cpu="100"))
    rig.observe(*(pod(f"a{number}", labels={"team": "a"}, cpu="1") for number in range(4)))
    rig.settle()
    rig.confirm_binds()
    rig.apply_policies(text.replace('"a" { cpu = 2', '"a" { cpu = 1'))
    rig.pass_time(120)
    assert len(rig.placements()) == 4 and not rig.of(c.Evict)

    rig.observe(pod("b0", labels={"team": "b"}, cpu="2"))
    rig.settle()

    assert sum(len(evict.victims) for evict in rig.of(c.Evict)) == 3


def test_a_text_without_quotas_replaces_one_that_orders_by_them_while_pods_back_off() -> None:
    """The keys of the old order read an account that is gone."""
    no_quotas = "policy test version 1\nfilter node_resources_fit\npreemption never\n"
    by_share = "queue by pod.quota_share.team, pod.name\n" + GOOD[len(HEAD) :].replace("cpu = 2", "cpu = 99")
    rig = Rig(no_quotas + by_share, node("a", cpu="1"), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(*[pod(f"p{number}", cpu=str(5 + number), labels={"team": "a"}) for number in range(40)])
    rig.settle()
    rig.observe(node("b", cpu="2"))
    assert rig.counts() == {"backoff": 40}

    rig.apply_policies(no_quotas)
    rig.observe(node("c", cpu="2000"))
    rig.pass_time(20)

    assert len(rig.placements()) == 40
