"""The terms of a PodGroup's members are computed once for pods that are alike, and never taken for those of others."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from policysched.evaluate.plan.gang_terms import CompiledGang, GangTerms
from policysched.evaluate.plan.plan import Plan
from policysched.model.pod_groups import PodGroup, PodGroupKey
from policysched.model.pods import Pod
from tests.builders import pod
from tests.evaluate.test_evaluate import plan_of

GROUP = PodGroup(PodGroupKey("scheduling.k8s.io", "default", "train"), "g1", "v1beta1", 2, {"cpu": 1000})
BY_LABEL = (
    'input size: int = pod.labels["size"] default 1 invalid default',
    "gang by pod.group.name { min = size }",
)


def member(group: PodGroup, *, cpu: str = "1", labels: Mapping[str, str] | None = None) -> Pod:
    return replace(pod("a", cpu=cpu, labels=labels or {}), group=group)


def terms(plan: Plan, value: Pod) -> GangTerms:
    computed = plan.gang(value, None)
    assert computed is not None
    return computed


def test_members_that_differ_in_labels_share_their_terms() -> None:
    plan = plan_of("include pod_groups")

    with patch.object(
        CompiledGang, "_compute", autospec=True, side_effect=CompiledGang._compute
    ) as computing:
        first = terms(plan, member(GROUP))
        second = terms(plan, member(GROUP, labels={"zone": "z"}))

    assert (first.minimum, first.requests) == (2, (1000,))
    assert first is second and computing.call_count == 1


def test_a_changed_group_another_group_and_other_requests_have_terms_of_their_own() -> None:
    plan = plan_of("include pod_groups")
    other = replace(GROUP, key=GROUP.key._replace(name="serve"), minimum=5)

    for _ in range(2):
        assert terms(plan, member(GROUP)).minimum == 2
        assert terms(plan, member(replace(GROUP, minimum=3))).minimum == 3
        assert terms(plan, member(other)).key == ("default", "serve")
        assert terms(plan, member(GROUP, cpu="7")).requests == (7000,)
    assert plan.gang(pod("a"), None) is None


def test_earlier_versions_of_a_group_are_not_held() -> None:
    """With its conditions each can have megabytes, and a tenant can write a thousand of them."""
    plan = plan_of("include pod_groups")
    key = GROUP.key._replace(name="often written")

    for minimum in range(50):
        terms(plan, member(replace(GROUP, key=key, minimum=minimum)))

    gc.collect()
    held = [value for value in gc.get_objects() if isinstance(value, PodGroup) and value.key == key]
    assert len(held) < 5


def test_terms_of_pods_with_many_requests_are_not_kept() -> None:
    plan = plan_of("include pod_groups")
    requests = {f"example.com/r{number}": "1" for number in range(100)}

    computed = terms(plan, replace(pod("a", resources=requests), group=GROUP))

    assert computed.key == ("default", "train")
    assert plan._gangs._kept == {}


def test_terms_that_read_labels_are_those_of_each_member() -> None:
    plan = plan_of(*BY_LABEL)

    assert [terms(plan, member(GROUP, labels={"size": size})).minimum for size in "345"] == [3, 4, 5]


def test_planted_terms_of_another_members_labels_are_detected() -> None:
    with (
        patch("policysched.evaluate.plan.gang_terms._is_of_group", return_value=True),
        pytest.raises(AssertionError),
    ):
        test_terms_that_read_labels_are_those_of_each_member()
