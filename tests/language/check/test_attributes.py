"""The table of attributes beside the values that they are read from."""

from dataclasses import fields

from policysched.builtins.registry import BUILTINS
from policysched.cluster.node_usage import NodeUsage
from policysched.lang.ir.attributes import ATTRIBUTES, resource_type
from policysched.lang.ir.expr import Stage
from policysched.lang.types.kinds import BYTES, CPU, INT
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_groups import PodGroup
from policysched.model.pods import Pod, QueuedPodInfo
from tests.language.check.checking import codes, program

_OWNERS = {"pod": Pod, "victim": Pod, "other": Pod, "node": Node, "namespace": Namespace}


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_every_attribute_reads_a_field_that_is_there() -> None:
    readable = {
        "facts": names(QueuedPodInfo) | {"waited"},  # computed from `queued_ns` and the clock
        "usage": names(NodeUsage) | {"free"},  # computed from the node's `allocatable`
        "node": names(Node),  # that a counted pod is placed on
        "group": names(PodGroup) | {"name", "api"},  # parts of its key
        "quotas": {"share"},  # computed from the use of quotas
    }
    assert ATTRIBUTES
    for row in ATTRIBUTES.values():
        prefix, dot, rest = row.field.partition("[]")[0].rpartition(".")

        known = readable[prefix] if dot else names(_OWNERS[row.owner]) | {"share", "victim_share"}
        assert rest in known | {"taint_values"}, row.qualified_name  # a property of the node


def test_every_field_that_a_builtin_reads_is_there() -> None:
    assert BUILTINS
    for declaration in BUILTINS.values():
        assert set(declaration.pod_reads) <= names(Pod) | {"selected_labels", "siblings"}, declaration.name
        assert set(declaration.node_reads) <= names(Node) | {"usage", "cluster", "volumes"}, declaration.name


def test_a_value_that_can_change_has_requeue_events() -> None:
    changing = [
        row
        for row in ATTRIBUTES.values()
        if row.owner == "node" and row.path not in (("name",), ("created",))
    ]

    assert changing
    assert [row.path for row in changing if len(row.requeue_events) < 2] == []
    assert ATTRIBUTES["pod", ("waited",)].stage == Stage.POD | Stage.TIME


def test_resources_have_the_type_that_kubernetes_counts_them_in() -> None:
    assert resource_type("cpu") == CPU
    assert (
        resource_type("memory")
        == resource_type("hugepages-2Mi")
        == resource_type("ephemeral-storage")
        == BYTES
    )
    assert resource_type("nvidia.com/gpu") == resource_type("pods") == INT


def test_namespace_shares_are_read_only_where_they_may_change_between_decisions() -> None:
    gang = "gang by pod.owner.name { min = 2  timeout = 5m  max = floor(namespace.share.cpu * 10) }"

    assert codes("queue by namespace.share.memory desc, namespace.share.cpu / 50%, pod.created") == []
    assert codes("layer busy when namespace.share.cpu > 50% { drop image_locality }") == []
    assert codes("queue by namespace.share.cpu * pod.priority") == ["PS215"]
    assert codes(gang) == ["PS220"]
    assert codes("preemption { victims = victim.namespace.share.cpu > namespace.share.cpu }") == []
    assert codes("filter f reject victim.namespace.share.cpu > 50%") == ["PS220"]


def test_lists_are_tested_with_in() -> None:
    checked = program(
        'filter a reject "spot" in node.taints', 'filter b require "docker.io/library/a:1" in pod.images'
    )

    assert [rule.name for rule in checked.rules.filters][-2:] == ["a", "b"]
