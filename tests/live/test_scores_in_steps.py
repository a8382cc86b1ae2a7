"""The scores of an explanation are listed in steps, in which the cluster may change."""

import pytest

from policysched.evaluate import placement_explanation
from policysched.explanations import record
from policysched.model.identifiers import NodeName
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.scheduler.events import NodeDeleted
from tests.builders import node, pod
from tests.live.rendered import rendered
from tests.scheduler.rig import Rig

POLICY = (
    "policy test version 1\nfilter node_resources_fit\n"
    'input v: int = node.annotations["v"] default 0 invalid reject "no number"\n'
    "score high weight 2 higher v normalize max\n"
    "score spread weight 1 lower node.pods normalize range(0, 10)\n"
    "score some weight 3 prefer v == 3\n"
    "preemption never\n"
)


def test_scores_are_those_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """45 scores of 5,000 nodes kept the main loop busy for 0.4 s, and their JSON values for 0.2 s."""
    nodes = [
        node(f"n{number:02}", cpu="1" if number % 5 == 4 else "8", annotations={"v": str(number * 7 % 11)})
        for number in range(40)
    ]
    rig = Rig(POLICY, pod("p", cpu="2", spec={"schedulingGates": [{"name": "later"}]}), *nodes)
    endpoints = LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)
    before = rendered(endpoints.explain({"pod": "p"}))
    monkeypatch.setattr(placement_explanation, "SCORES_PER_STEP", 7)
    monkeypatch.setattr(record, "SCORES_PER_STEP", 7)

    steps = endpoints.explain({"pod": "p"})
    assert next(steps) is None
    for number in range(0, 40, 2):
        rig.handle(NodeDeleted(NodeName(f"n{number:02}")))
        rig.observe(node(f"n{number + 1:02}", annotations={"v": "99"}), node(f"new-{number}"))
    assert len(rendered(endpoints.explain({"pod": "p"}))["feasible"]) == 40, "the columns follow the changes"
    *pauses, page = steps

    assert isinstance(page, dict) and len(page["feasible"]) == 32
    assert len(pauses) >= 2 * 32 * 2 // 7, "in steps, also as JSON"
    for part in ("scores", "totals", "feasible", "selected", "rejected"):
        assert page[part] == before[part]
