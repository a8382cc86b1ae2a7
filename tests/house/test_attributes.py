"""The engine and the reference implementation read every attribute, with the value that the objects have."""

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import Mock

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compiled
from policysched.kube.decode.pods import decode_pod
from policysched.lang.check import check_text
from policysched.lang.ir.attributes import ATTRIBUTES, BuiltinAttribute
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.lang.types.kinds import TypeKind
from policysched.model.namespaces import Namespace
from policysched.model.pod_groups import PodGroup, PodGroupKey
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, placed, pod_manifest, world
from tests.reference import attributes as plain
from tests.reference import evaluate

DAY_NS = 86_400 * 10**9
NEW_YEAR_NS = 1_767_225_600 * 10**9  # 2026-01-01, when the objects of tests are created
NOW_NS = NEW_YEAR_NS + DAY_NS
FACTS = QueuedPodInfo(NOW_NS - 90 * 10**9, 3)
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "u", "controller": True}


def a_pod(name: str) -> Pod:
    manifest = pod_manifest(
        name,
        memory="1Gi",
        limits={"memory": "1Gi"},
        labels={"key": f"label of {name}"},
        annotations={"key": f"annotation of {name}"},
        priority=7,
        image="registry.example.com/app:1",
        tolerations=["dedicated=batch:NoSchedule"],
        spec={"serviceAccountName": "robot", "activeDeadlineSeconds": 600},
    )
    manifest["metadata"]["ownerReferences"] = [OWNER]
    group = PodGroup(
        PodGroupKey("scheduling.k8s.io", "default", "train"),
        uid="g",
        api_version="v1beta1",
        minimum=3,
        topology="rack",
        timeout_ns=600 * 10**9,
        disruption="all",
        workload="training",
    )
    return replace(decode_pod(manifest).pod, group=group)


def a_world() -> ClusterCache:
    home = node(
        "a",
        memory="8Gi",
        labels={"key": "label of a"},
        annotations={"key": "annotation of a"},
        taints=["dedicated=batch:NoSchedule"],
        images={"registry.example.com/app:1": 100_000_000},
    )
    space = Namespace("default", {"key": "label of default"}, {"key": "annotation of default"})
    cache = world([home], [placed(replace(a_pod("neighbour"), ready=True), "a")], [space])
    cache.put_node_object("key", home.name, "object of a")
    return cache


VALUES: Mapping[str, str] = {
    "pod.name": "web",
    "pod.namespace": "default",
    "pod.uid": "uid-default-web",
    "pod.labels": "label of web",
    "pod.annotations": "annotation of web",
    "pod.requests": "1Gi",
    "pod.limits": "1Gi",
    "pod.priority": "7",
    "pod.qos": "Burstable",
    "pod.created": "2026-01-01T00:00:00Z",
    "pod.queued": "2026-01-01T23:58:30Z",
    "pod.waited": "1m30s",
    "pod.attempts": "3",
    "pod.deadline": "10m",
    "pod.owner.kind": "ReplicaSet",
    "pod.owner.name": "web-5d",
    "pod.scheduler": "test",
    "pod.service_account": "robot",
    "pod.images": "registry.example.com/app:1",
    "pod.tolerations": "dedicated",
    "pod.group.name": "train",
    "pod.group.min": "3",
    "pod.group.topology": "rack",
    "pod.group.timeout": "10m",
    "pod.group.disruption": "all",
    "pod.group.workload": "training",
    "pod.group.api": "scheduling.k8s.io",
    "node.name": "a",
    "node.labels": "label of a",
    "node.annotations": "annotation of a",
    "node.objects": "object of a",
    "node.allocatable": "8Gi",
    "node.requested": "1Gi",
    "node.free": "7Gi",
    "node.pods": "1",
    "node.taints": "dedicated",
    "node.conditions": "True",
    "node.images": "registry.example.com/app:1",
    "node.created": "2026-01-01T00:00:00Z",
    "node.ready": "true",
    "node.unschedulable": "false",
    "namespace.name": "default",
    "namespace.labels": "label of default",
    "namespace.annotations": "annotation of default",
    "namespace.share": "12.5%",
}
"""The value of each attribute for `a_pod("web")` and its only node, as a policy's text writes it. A
new attribute needs a row here.
"""


def written(attribute: BuiltinAttribute) -> str:
    """The attribute as a policy reads it, with a key if it is a map."""
    key = {
        "texts": "Ready" if attribute.path == ("conditions",) else "key",
        "resources": "memory",
        "shares": "memory",
        "quotas": None,
        None: None,
    }[attribute.key_kind]
    return attribute.qualified_name if key is None else f'{attribute.qualified_name}["{key}"]'


def checked(rule: str) -> Program:
    checked = check_text(f"policy test version 1\n{rule}\n")
    assert checked.program is not None, [diagnostic.message for diagnostic in checked.diagnostics]
    return checked.program


def by_the_plan(program: Program) -> PlacementExplanation:
    return Evaluator(a_world()).explain(
        compiled(program), a_pod("web"), now_ns=NOW_NS, facts=FACTS, samples={}
    )


def by_the_oracle(program: Program) -> PlacementExplanation:
    return evaluate(program, a_pod("web"), a_world(), now_ns=NOW_NS, facts=FACTS, samples={})


def said_by(explanation: PlacementExplanation) -> list[str]:
    return [
        reason
        for refusals in explanation.rejections.values()
        for refusal in refusals
        for reason in refusal.reasons
    ]


def test_there_is_a_value_for_every_attribute_of_pods_nodes_and_namespaces() -> None:
    assert set(VALUES) == {
        attribute.qualified_name
        for attribute in ATTRIBUTES.values()
        if attribute.owner in ("pod", "node", "namespace")
        and attribute.key_kind != "quotas"  # for `queue by` only: tests/scheduler/test_quotas.py
    }


@pytest.mark.parametrize("name", VALUES)
def test_engine_and_reference_read_the_values_of_the_objects(name: str) -> None:
    builtin = next(attribute for attribute in ATTRIBUTES.values() if attribute.qualified_name == name)
    placeholder = written(builtin).replace('"', r"\"")
    program = checked(f'filter probe reject pod.name != "" says "it is {{{placeholder}}}"')

    plan, oracle = by_the_plan(program), by_the_oracle(program)

    assert said_by(oracle) == [f"it is {VALUES[name]}"]
    assert plan == oracle


NEIGHBOURS = {
    "name": "neighbour",
    "uid": "uid-default-neighbour",
    "labels": "label of neighbour",
    "annotations": "annotation of neighbour",
    "ready": "true",
}
"""The fields in which the counted pod differs from `a_pod("web")`."""


def condition_on(attribute: BuiltinAttribute) -> str:
    """A condition that holds for the neighbour, by the type of the attribute."""
    text, path = written(attribute), ".".join(attribute.path)
    value = NEIGHBOURS.get(path) or VALUES[f"pod.{path}"]
    if attribute.key_kind == "texts":
        return f'{text} else "" == "{value}"'
    match attribute.type.kind:
        case TypeKind.STRING:
            return f'{text} == "{value}"'
        case TypeKind.LIST:
            return f'"{value}" in {text}'
        case TypeKind.TIMESTAMP:
            return f"{text} == pod.created"
        case TypeKind.DURATION:
            return f"{text} else 0s == {value}"
        case _:
            return f"{text} == {value}"


COUNTED = [
    attribute
    for attribute in ATTRIBUTES.values()
    if attribute.owner == "other" and attribute.path[0] != "node"
]  # `other.node`: tests/evaluate/policies.py


@pytest.mark.parametrize("attribute", COUNTED, ids=[attribute.qualified_name for attribute in COUNTED])
def test_engine_and_reference_read_attributes_of_counted_pods(attribute: BuiltinAttribute) -> None:
    condition = condition_on(attribute)
    program = checked(
        f'filter found reject count(pods on node where {condition}) == 1 says "found"\n'
        f'filter none reject count(pods on node where not ({condition})) == 1 says "not found"'
    )

    plan, oracle = by_the_plan(program), by_the_oracle(program)

    assert said_by(oracle) == ["found"]
    assert plan == oracle


def test_a_wrongly_read_attribute_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    program = checked('filter probe reject pod.name != "" says "it is {node.pods}"')
    monkeypatch.setattr(plain, "_node_attribute", Mock(return_value=99))

    assert by_the_plan(program) != by_the_oracle(program)
