"""The queue order, and gangs."""

from policysched.lang.ir.program import GangMode, OnTimeout, Program
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import namespace, pod
from tests.reference import GangTerms, gang_terms, order_key
from tests.reference.checked import program

NOW_NS = 100 * 10**9


def in_order(policy: Program, *pods: Pod, waited_s: dict[str, int] | None = None) -> list[str]:
    def key(candidate: Pod) -> tuple[object, ...]:
        facts = QueuedPodInfo(NOW_NS - (waited_s or {}).get(candidate.name, 0) * 10**9, 0)
        return order_key(policy, candidate, None, facts, NOW_NS)

    return [candidate.name for candidate in sorted(pods, key=key)]  # type: ignore[arg-type, return-value]


def test_order_keys_compare_in_turn_each_in_its_direction() -> None:
    policy = program("queue by pod.priority desc, pod.requests.cpu asc")

    order = in_order(
        policy, pod("low", cpu="1"), pod("big", cpu="2", priority=5), pod("small", cpu="1", priority=5)
    )

    assert order == ["small", "big", "low"]


def test_missing_keys_sort_last_in_either_direction() -> None:
    for direction in ("asc", "desc"):
        policy = program(
            'input wanted: int = pod.labels["wanted"] optional invalid default',
            f"queue by wanted {direction}",
        )

        order = in_order(policy, pod("a"), pod("b", labels={"wanted": "1"}), pod("c", labels={"wanted": "2"}))

        assert order[-1] == "a"


def test_the_uid_breaks_ties() -> None:
    policy = program("queue by pod.priority desc")

    assert in_order(policy, pod("x", uid="2"), pod("y", uid="1")) == ["y", "x"]


def test_the_default_order_is_priority_then_queueing_time() -> None:
    policy = program("include kube_default")

    order = in_order(
        policy, pod("new"), pod("old"), pod("urgent", priority=1), waited_s={"new": 1, "old": 9, "urgent": 0}
    )

    assert order == ["urgent", "old", "new"]


GANG = (
    'input team: string = pod.labels["team"] optional',
    'input least: int = pod.labels["least"] default 2 invalid default',
    "gang by team { min = least  timeout = 5m  on_timeout = fail }",
)


def test_a_gang_is_identified_by_namespace_and_key() -> None:
    member = pod("p", labels={"team": "red", "least": "8"}, namespace="ml")

    terms = gang_terms(program(*GANG), member, namespace("ml"))

    assert terms == GangTerms(("ml", "red"), 8, None, 300 * 10**9, OnTimeout.FAIL, GangMode.WHOLE)


def test_a_pod_without_the_gang_key_is_in_no_gang() -> None:
    assert gang_terms(program(*GANG), pod("p"), None) is None
    assert gang_terms(program("include kube_default"), pod("p", labels={"team": "red"}), None) is None
