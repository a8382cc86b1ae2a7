"""Cached data follows the current state and does not grow with the number of changes."""

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.evaluate import Evaluator
from policysched.model.identifiers import NodeName
from policysched.scheduler import events as e
from tests.builders import node, pod
from tests.scheduler.rig import Rig

EDITIONS = 30
TEXT = """\
policy test version 1
input wish: int = node.annotations["wish-{edition}"] default 0 invalid default
metric load: ratio {{
  query = "load{edition}"
  unit = "1"
  join = node
  every = 15s
  stale = 90s
}}
filter node_resources_fit
filter cool require load < 85% missing pass
filter wished require wish < 10
filter pooled require node.labels["pool-{edition}"] else "open" != "closed"
preemption never
"""
OUTAGE = "outage { above = 50% then = disable }\n"


def held_after(editions: int) -> dict[str, int]:
    """How much of each kind, once so many texts of one policy have each decided about a pod."""
    rig = Rig(TEXT.format(edition=0), node("a"), node("b"))
    for edition in range(editions):
        rig.apply_policies(TEXT.format(edition=edition))
        rig.settle()
        rig.observe(pod(f"web-{edition}"))
        rig.settle()
    evaluator = rig.scheduler._core.evaluator
    return {
        "columns": len(evaluator._columns._plan_columns),
        "metrics": len(evaluator._snapshots._metric_columns),
        "plans": len({key[0] for key in evaluator._evaluations._evaluations}),
    }


def test_a_policy_edited_many_times_holds_no_more_than_one_edited_twice() -> None:
    assert held_after(EDITIONS) == held_after(2)


def test_columns_that_are_never_released_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "retain_only", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_policy_edited_many_times_holds_no_more_than_one_edited_twice()


def test_columns_of_other_policies_and_of_a_text_in_preparation_are_kept() -> None:
    other = TEXT.replace("policy test", "policy other")
    rig = Rig(
        {"test.policy": TEXT.format(edition=0), "other.policy": other.format(edition=0)},
        node("a"),
        pod("first"),
    )
    rig.settle()
    columns = rig.scheduler._core.evaluator._columns
    before = set(columns._plan_columns)

    rig.apply_policies({"test.policy": TEXT.format(edition=1), "other.policy": other.format(edition=0)})
    rig.settle()
    rig.observe(pod("web"), pod("beside", scheduler="other"))
    rig.settle()

    assert len(before & set(columns._plan_columns)) == len(before), (
        "the other policy reads what the old text read"
    )
    assert {"web", "beside"} <= rig.placements().keys()


def test_an_outage_ends_silently_when_its_metric_is_removed() -> None:
    rig = Rig(TEXT.format(edition=0) + OUTAGE, node("a"))
    known = MetricSamples({NodeName("x"): Sample(0.5, rig.now_ns)}, polled_ns=rig.now_ns)
    rig.handle(e.SamplesArrived("test", "load", known))
    outages = rig.scheduler._outages
    during = outages.active()

    rig.apply_policies("policy test version 1\nfilter node_resources_fit\n")
    rig.settle()

    assert (during, outages.active()) == ([("test", "load")], [])


def test_a_policy_with_a_repeatedly_renamed_key_is_known_by_the_last_key() -> None:
    rig = Rig({"key-0.policy": TEXT.format(edition=0)}, node("a"))

    for number in range(EDITIONS):
        rig.apply_policies({f"key-{number}.policy": TEXT.format(edition=0)})

    assert list(rig.scheduler._core.policies._name_of_key) == [f"key-{EDITIONS - 1}.policy"]
