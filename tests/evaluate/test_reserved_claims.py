"""A node with a nominated pod that uses the same claim."""

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.model.identifiers import NodeName
from policysched.model.pods import QueuedPodInfo
from tests import reference
from tests.builders import node, pod
from tests.conformance.kube_default import kube_default
from tests.volumes import claim, using, volume

NOW_NS = 10**18


@pytest.mark.parametrize(("mode", "left"), [("ReadWriteOncePod", {"b"}), ("ReadWriteOnce", {"a", "b"})])
def test_a_read_write_once_pod_claim_is_kept_for_the_nominated_pod(mode: str, left: set[str]) -> None:
    cache = ClusterCache()
    for name in ("a", "b"):
        cache.put_node(node(name))
    cache.volumes.put_claim(claim("data", bound_to="pv", mode=mode))
    cache.volumes.put_volume(volume("pv", claim="data"))
    nominated = pod("first", spec=using("data"))
    arguments = {
        "now_ns": NOW_NS,
        "facts": QueuedPodInfo(NOW_NS, 0),
        "samples": {},
        "nominated_pods": [(nominated, NodeName("a"))],
    }

    second = pod("second", spec=using("data"))
    verdict = Evaluator(cache).evaluate(compile_program(kube_default()), second, **arguments)
    explanation = reference.evaluate(kube_default(), second, cache, **arguments)

    assert set(explanation.feasible) == left
    assert verdict.feasible_count == len(left)
