"""Pods of a megabyte take as little memory beside `policysched shadow` as in a scheduler."""

from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT
from policysched.scheduler.events import PodUpdated
from policysched.shadow.program import watched_resources
from tests.builders import pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.reference.checked import program


def test_of_a_large_pod_shadow_keeps_what_a_scheduler_keeps() -> None:
    (pods,) = [
        each
        for each in watched_resources(DECISION_BUDGET_DEFAULT, program("include kube_default"))
        if each.kind == "Pod"
    ]
    assert pods.decode_update is not None
    obj = pod_manifest("large", node="a", spec=HOSTILE_SPECS["tolerations"](2_500))

    event, _ = pods.decode_update(obj, None)

    assert isinstance(event, PodUpdated)
    assert (event.pod.node, event.pod.pod.tolerations) == ("a", ())
