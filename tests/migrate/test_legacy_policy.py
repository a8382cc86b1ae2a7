"""The legacy Policy format: predicates, priorities and extenders by name."""

import pytest

from policysched.builtins.registry import BUILTINS
from policysched.policy_files.source_set import UnusableFile
from tests.migrate.helpers import (
    filters_of,
    imported,
    of_the_file,
    only,
    params_of,
    program_of,
    weights_of,
)

SAFE = """\
{
\t"kind": "Policy",
\t"apiVersion": "v1",
\t"predicates": [
\t\t{"name": "PodFitsHostPorts"},
\t\t{"name": "PodFitsResources"},
\t\t{"name": "MatchNodeSelector"},
\t\t{"name": "CheckNodeMemoryPressure"},
\t\t{"name": "HostName"}
\t],
\t"priorities": [
\t\t{"name": "MostRequestedPriority", "weight": 2},
\t\t{"name": "BalancedResourceAllocation", "weight": 1},
\t\t{"name": "ServiceSpreadingPriority", "weight": 1},
\t\t{"name": "EqualPriority", "weight": 1}
\t],
\t"extenders": [
\t\t{
\t\t\t"urlPrefix": "http://localhost:8888/scheduler",
\t\t\t"apiVersion": "v1beta1",
\t\t\t"filterVerb": "predicates/safe-overload",
\t\t\t"prioritizeVerb": "priorities/safe-overload",
\t\t\t"bindVerb": "",
\t\t\t"weight": 5,
\t\t\t"enableHttps": false,
\t\t\t"nodeCacheCapable": false
\t\t}
\t],
\t"hardPodAffinitySymmetricWeight": 10
}
"""


def test_predicates_are_filters_in_their_own_order_with_the_mandatory_ones() -> None:
    done = imported(SAFE, **{"default-scheduler": "safe"})

    assert filters_of(program_of("safe", only(done))) == [
        "node_unschedulable",
        "node_name",
        "node_ports",
        "node_affinity",
        "node_resources_fit",
        "taint_toleration",
    ]


def test_priorities_are_scores_with_their_weights() -> None:
    done = imported(SAFE, **{"default-scheduler": "safe"})

    program = program_of("safe", only(done))
    assert weights_of(program) == {"node_resources_fit": 2, "node_resources_balanced_allocation": 1}
    assert params_of(program, "node_resources_fit")["strategy"] == "most_allocated"


def test_unsupported_parts_of_kube_safe_scheduler_are_listed_with_lines_in_a_file_with_tabs() -> None:
    done = imported(SAFE, "policy.cfg")

    not_imported = {where: (line, subject) for line, _, where, subject in of_the_file(done.not_imported)}
    assert (20, "extenders[0].apiVersion") in {(line, where) for line, _, where, _ in of_the_file(done.notes)}
    assert not_imported["priorities[2]"] == (14, "plugin SelectorSpread")
    assert [subject for *_, where, subject in of_the_file(done.notes) if "extenders[0]" not in where] == [
        "predicate CheckNodeMemoryPressure",
        "priority EqualPriority",
        "arguments of InterPodAffinity",
    ]
    hint = next(note.reason for note in done.notes if note.where == "extenders[0]")
    assert "policies/safe.policy" in hint
    assert done.settings["extenders"]["safe_overload"]["url"] == "http://localhost:8888/scheduler"


def test_without_predicates_or_priorities_the_defaults_of_the_time_hold() -> None:
    done = imported("kind: Policy\napiVersion: v1\nhardPodAffinitySymmetricWeight: 7\n")

    program = program_of("default-scheduler", only(done))
    younger = {"dynamic_resources", "node_declared_features"}
    assert filters_of(program) == [
        name for name, builtin in BUILTINS.items() if builtin.filters and name not in younger
    ]
    assert weights_of(program)["taint_toleration"] == 1
    assert params_of(program, "inter_pod_affinity")["hard_pod_affinity_weight"] == 7
    assert "include kube_default" in only(done)


def test_no_predicates_at_all_leave_the_mandatory_ones() -> None:
    done = imported('{"predicates": [], "priorities": []}')

    program = program_of("default-scheduler", only(done))
    assert filters_of(program) == ["node_unschedulable", "taint_toleration"]
    assert weights_of(program) == {}


def test_labels_of_nodes_are_rules_of_their_own() -> None:
    done = imported(
        '{"predicates": [{"name": "Zoned", "argument": {"labelsPresence": {"labels": ["zone", "rack"], "presence": true}}},'
        '{"name": "NotOld", "argument": {"labelsPresence": {"labels": ["old"]}}}],'
        '"priorities": [{"name": "Fast", "weight": 4, "argument": {"labelPreference": {"label": "ssd", "presence": true}}}]}'
    )

    assert (
        'filter labels_1 require has node.labels["zone"] and has node.labels["rack"]\n'
        '  says "node(s) didn\'t have the requested labels"\n'
        'filter labels_2 require not has node.labels["old"] says "node(s) didn\'t have the requested labels"\n'
        'score label_1 weight 4 prefer has node.labels["ssd"]\n'
    ) in only(done)


def test_requested_to_capacity_ratio_keeps_shape_and_resources() -> None:
    done = imported(
        '{"predicates": [{"name": "GeneralPredicates"}], "priorities": [{"name": "Ratio", "weight": 2, "argument": '
        '{"requestedToCapacityRatioArguments": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 80, "score": 10}],'
        '"resources": [{"name": "memory", "weight": 1}]}}}]}'
    )

    program = program_of("default-scheduler", only(done))
    assert params_of(program, "node_resources_fit") == {
        "strategy": "requested_to_capacity_ratio",
        "resources": (("memory", 1),),
        "shape": ((0, 0), (80, 10)),
    }
    assert filters_of(program)[:2] == ["node_unschedulable", "node_resources_fit"]


def test_service_arguments_and_unknown_names_are_listed() -> None:
    done = imported(
        '{"predicates": [{"name": "Rack", "argument": {"serviceAffinity": {"labels": ["rack"]}}}, {"name": "Odd"}],'
        '"priorities": [{"name": "Spread", "weight": 1, "argument": {"serviceAntiAffinity": {"label": "zone"}}},'
        '{"name": "Odd", "weight": 1}, {"name": "NodePreferAvoidPodsPriority", "weight": 10000}]}'
    )

    assert [subject for *_, subject in of_the_file(done.not_imported) if "disabled" not in subject] == [
        "predicate Rack (serviceAffinity)",
        "predicate Odd",
        "priority Spread (serviceAntiAffinity)",
        "priority Odd",
        "plugin NodePreferAvoidPods",
    ]


def test_a_priority_twice_and_a_ratio_without_its_shape_are_refused() -> None:
    with pytest.raises(UnusableFile, match=r"^scheduler.yaml:1:\d+: priorities\[1\]: another priority"):
        imported('{"priorities": [{"name": "ImageLocalityPriority"}, {"name": "ImageLocalityPriority"}]}')
    with pytest.raises(UnusableFile, match="needs a shape"):
        imported('{"priorities": [{"name": "RequestedToCapacityRatioPriority", "weight": 1}]}')


# ── a configuration that refers to a Policy ────────────────────────────────────────────────────────────────────────

REFERRING = """\
apiVersion: v1
kind: ConfigMap
metadata: {{name: my-scheduler-config, namespace: kube-system}}
data:
  config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1alpha1
    kind: KubeSchedulerConfiguration
    schedulerName: my-scheduler
    algorithmSource: {{policy: {{configMap: {{namespace: {namespace}, name: my-scheduler-policy}}}}}}
    leaderElection: {{lockObjectName: my-scheduler, lockObjectNamespace: kube-system}}
{more}---
apiVersion: v1
kind: ConfigMap
metadata: {{name: my-scheduler-policy, namespace: kube-system}}
data:
  policy.cfg: |
    {{"kind": "Policy", "apiVersion": "v1", "extenders": [
      {{"urlPrefix": "http://localhost/scheduler", "prioritizeVerb": "priorities/congestion", "weight": 10}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: my-scheduler, namespace: kube-system}}
"""
"""The form of kube-safe-scheduler's manifests."""


def test_a_policy_in_a_config_map_of_the_manifest_belongs_to_the_scheduler_that_refers_to_it() -> None:
    done = imported(REFERRING.format(namespace="kube-system", more=""), "extender.yaml")

    assert list(done.policies) == ["my-scheduler"]
    assert "extender congestion weight 10" in only(done)
    assert done.not_imported == []
    assert done.settings["leader_election"] == {"lease": "kube-system/my-scheduler"}
    assert set(done.settings["extenders"]) == {"congestion"}
    (line,) = [note.line for note in done.notes if note.where == "extenders[0]"]
    assert line == 18, "the place in the manifest"


def test_a_policy_of_another_namespace_is_not_the_one_that_is_meant() -> None:
    done = imported(REFERRING.format(namespace="elsewhere", more=""))

    assert list(done.policies) == ["my-scheduler", "default-scheduler"]
    assert [item.where for item in done.not_imported] == ["algorithmSource.policy"]


def test_what_stands_beside_the_reference_is_imported_or_listed() -> None:
    more = (
        "    disablePreemption: true\n"
        "    hardPodAffinitySymmetricWeight: 5\n"
        "    plugins: {queueSort: {enabled: [{name: riya}]}}\n"
    )

    done = imported(REFERRING.format(namespace="kube-system", more=more))

    assert "preemption never" in only(done)
    assert [item.where for item in done.not_imported] == ["plugins", "hardPodAffinitySymmetricWeight"]
