"""Names that the API server does not limit, and reasons in thousands: no message or record has them all."""

import pytest

from policysched.evaluate.diagnosis import CAUSE_REASONS_MAX
from policysched.model.pod_groups import GROUP_ANNOTATION
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.unschedulable_message import (
    MESSAGE_CHARACTERS_MAX,
    REASONS_CHARACTERS_MAX,
    REASONS_MAX,
    most_frequent_reasons,
    unavailable_message,
)
from tests.builders import node, pod
from tests.scheduler.rig import FIT, Rig
from tests.scheduler.test_pod_groups import gang_group, member, rig_with, served

CHARACTERS, MESSAGE_MAX = 100_000, 1_000


def test_a_group_of_pods_with_many_long_scheduler_names_has_a_short_problem() -> None:
    rig = rig_with(e.PodGroupUpdated(gang_group()))
    others = [f"{number}" + "x" * CHARACTERS for number in range(5)]

    rig.observe(*[member(f"m{number}", scheduler=name) for number, name in enumerate(("test", *others))])
    rig.pass_time(60)

    problems = [str(found.pod.group_problem) for found in rig.scheduler.cache.pods.values()]
    assert all(len(problem) < MESSAGE_MAX for problem in problems)
    assert "different schedulers: 0xxx" in str(rig.pending_message("m0"))
    assert problems[-1].endswith(" and 3 more")


def test_an_annotation_longer_than_any_group_s_name_is_in_no_message() -> None:
    rig = rig_with(served("scheduling.volcano.sh"))

    rig.observe(pod("lost", annotations={GROUP_ANNOTATION: "x" * CHARACTERS}))
    rig.pass_time(60)

    logs = [str(log.fields) for log in rig.of(c.Log)]
    assert "which does not exist" in str(rig.pending_message("lost"))
    assert all(len(text) < MESSAGE_MAX for text in (*logs, str(rig.pending_message("lost"))))


def test_a_pod_with_thousands_of_scheduling_gates_has_a_short_message() -> None:
    gated = pod("gated", gates=[f"example.com/gate-{number}" for number in range(2_000)])
    rig = Rig(FIT, gated)

    status = rig.scheduler.pending_status(gated.uid)

    assert status is not None
    assert status.message.startswith("waits for its scheduling gates: example.com/gate-0, ")
    assert len(status.message) <= MESSAGE_CHARACTERS_MAX


def test_a_pod_that_lacks_many_resources_has_the_most_frequent_reasons() -> None:
    rig = Rig(None, node("n0", cpu="1"), node("n1", cpu="1"))
    rig.apply_policies("policy test version 1\nfilter node_resources_fit\npreemption never\n")
    resources = {f"example.com/r{number}": "1" for number in range(100)}

    rig.observe(pod("wants-all", resources=resources))
    rig.settle()

    message, decision = str(rig.pending_message("wants-all")), rig.scheduler.decisions[-1]
    assert message.startswith("0/2 nodes are available: 2 Insufficient example.com/r0, ")
    assert f"{100 - REASONS_MAX} more reasons" in message
    assert len(message) < REASONS_MAX * 50 and len(decision.counts) == REASONS_MAX + 1
    (group,) = rig.scheduler.core.queue.parked_groups()
    assert group.cause is not None and len(group.cause.reasons) == CAUSE_REASONS_MAX


def test_the_reasons_of_most_nodes_are_kept() -> None:
    counts = {f"rare {number}": 1 for number in range(100)} | {"frequent": 7}

    kept = most_frequent_reasons(counts)

    assert kept.pop("more reasons") == 101 - REASONS_MAX
    assert next(iter(kept)) == "frequent" and len(kept) == REASONS_MAX
    assert most_frequent_reasons({"one": 2}) == {"one": 2}


def reasons(lengths: list[int]) -> dict[str, int]:
    """As many nodes as reasons have the first, and so on to one."""
    return {
        f"{number:02}" + "x" * (length - 2): len(lengths) - number for number, length in enumerate(lengths)
    }


def test_of_long_reasons_the_most_frequent_ones_are_kept_whole() -> None:
    counts = reasons([900, 900, 900, 5])

    kept = most_frequent_reasons(counts)

    assert kept == {**dict(list(counts.items())[:2]), "more reasons": 2}
    assert most_frequent_reasons(kept) == kept
    assert "2 more reasons" in unavailable_message(10, counts)


def test_a_reason_that_is_too_long_itself_is_cut() -> None:
    (kept,) = most_frequent_reasons(reasons([REASONS_CHARACTERS_MAX + 1]))

    assert len(kept) == REASONS_CHARACTERS_MAX and kept.endswith("x ...")


LONG = {
    "messages of rules": "".join(
        f'filter f{n} when node.name == "n{n}" require node.pods < 0 says "{n:02}{"x" * 1_900}"\n'
        for n in range(4)
    ),
    "messages of rules and of preemption": "".join(
        f'filter f{n} require node.name != "n{n}" says "{n:02}{"x" * 1_900}"\n' for n in range(4)
    )
    + "preemption { victims = any }\n",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_message_of_a_pod_is_long_whatever_its_policy_says(text: str) -> None:
    rig = Rig(f"policy test version 1\n{text}", *(node(f"n{n}", cpu="2") for n in range(4)))
    rig.observe(pod("first", cpu="1", priority=1), pod("second", cpu="1"))
    rig.pass_time(400)

    kept = [pending.pending_message for pending in rig.scheduler.core.pods.values()]
    texts = [
        *kept,
        *(report.message for report in rig.of(c.ReportPending)),
        *(d.message for d in rig.scheduler.decisions),
    ]
    assert texts and max(map(len, texts)) <= MESSAGE_CHARACTERS_MAX
