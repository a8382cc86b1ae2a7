"""The first explanation of a pod that was never attempted: what attempts do first is done in steps."""

from collections import Counter
from typing import Any

import pytest

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.plan import lowering
from policysched.model.identifiers import NodeName, PodUid
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.scheduler.events import NodeDeleted, PodDeleted
from policysched.serve.main_loop_reader import NoSuchEndpoint
from tests.builders import node, pod
from tests.live.rendered import rendered
from tests.scheduler.rig import Rig

POLICY = (
    "policy test version 1\nfilter node_resources_fit\nlayer all when pod.priority >= 0 {\n"
    + "".join(f"  score r{number} weight 1 lower node.pods normalize max\n" for number in range(20))
    + "}\npreemption never\n"
)
GATED = pod("p", cpu="2", spec={"schedulingGates": [{"name": "later"}]})


def rig_of(node_count: int) -> tuple[Rig, LiveEndpoints]:
    rig = Rig(POLICY, GATED, *[node(f"n{number:03}", cpu="8") for number in range(node_count)])
    return rig, LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)


def test_no_step_applies_many_changes_or_lowers_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 nodes took 0.6 s in one piece, and a layer of a large policy as long."""
    done = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any) -> Any:
            done[name] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, call)

    _, endpoints = rig_of(200)
    counted(Columns, "_write_row")
    counted(lowering, "_lower_score")
    longest, total = Counter[str](), Counter[str]()
    for _ in endpoints.explain({"pod": "p"}):
        longest |= done
        total += done
        done.clear()

    assert total == {"_write_row": 200, "_lower_score": 20}
    assert longest == {"_write_row": 50, "_lower_score": 1}


def test_changes_between_the_steps_are_in_the_explanation() -> None:
    rig, endpoints = rig_of(120)
    steps = endpoints.explain({"pod": "p"})
    assert next(steps) is None
    rig.handle(NodeDeleted(NodeName("n000")), NodeDeleted(NodeName("n119")))
    rig.observe(node("n001", cpu="1"), node("new", cpu="8"))

    page = rendered(steps)

    assert page == rendered(endpoints.explain({"pod": "p"}))
    assert {"n000", "n001", "n119"}.isdisjoint(page["feasible"]) and "new" in page["feasible"]
    assert len(page["feasible"]) == 118


def test_a_pod_that_is_deleted_between_the_steps_is_not_explained() -> None:
    rig, endpoints = rig_of(120)
    steps = endpoints.explain({"pod": "p"})
    assert next(steps) is None
    rig.handle(PodDeleted(PodUid("uid-default-p")))

    with pytest.raises(NoSuchEndpoint):
        rendered(steps)
