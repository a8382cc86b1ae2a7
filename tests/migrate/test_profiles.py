"""KubeSchedulerConfiguration: from profiles to policies."""

import re

import pytest

from policysched.builtins.registry import BUILTINS
from policysched.config.settings import read_settings
from policysched.lang.ir import program as p
from policysched.migrate.alternatives import _KNOWN_ALTERNATIVES
from policysched.migrate.importer import ImportResult
from policysched.policy_files.source_set import UnusableFile
from tests.house.docs import ROOT
from tests.migrate.helpers import (
    builtin_filters,
    config,
    filters_of,
    imported,
    notes_of_the_file,
    of_the_file,
    only,
    params_of,
    program_of,
    rules,
    weights_of,
)

ALL_FILTERS = [name for name, builtin in BUILTINS.items() if builtin.filters]
DEFAULT_WEIGHTS = {
    name: builtin.default_weight for name, builtin in BUILTINS.items() if builtin.default_weight
}


def profile(body: str) -> str:
    """One profile called `web`, its fields indented by two."""
    return config("profiles:\n- schedulerName: web\n" + body)


def plugins(body: str) -> str:
    return profile("  plugins:\n" + body)


def test_the_default_configuration_is_kube_default_with_a_note_on_the_scheduler_name() -> None:
    done = imported(config())

    assert only(done) == (
        "# From scheduler.yaml, profile default-scheduler of a KubeSchedulerConfiguration (v1).\n"
        "\n"
        "# policysched: ignore[PS412] do not run kube-scheduler with this policy: both would place the same pods\n"
        "policy default-scheduler version 1\n"
        "\n"
        "include kube_default\n"
        "\n"
        "preemption { victims = any }\n"
    )
    assert done.not_imported == []
    assert notes_of_the_file(done) == []


def test_a_policy_can_be_called_otherwise_than_the_scheduler() -> None:
    done = imported(config(), **{"default-scheduler": "kube-like"})

    assert list(done.policies) == ["kube-like"]
    assert "PS412" not in only(done)


def test_other_weights_are_reweighted_and_a_missing_weight_is_1() -> None:
    done = imported(
        plugins(
            "    score:\n      enabled:\n"
            "      - {name: NodeResourcesBalancedAllocation, weight: 5}\n"
            "      - {name: NodeAffinity}\n"
            "      - {name: ImageLocality, weight: 1}\n"
        )
    )

    assert rules(done) == (
        "include kube_default\nreweight node_affinity 1\nreweight node_resources_balanced_allocation 5\n"
    )
    assert of_the_file(done.not_imported) == []


def test_a_plugin_that_is_off_everywhere_is_dropped() -> None:
    done = imported(
        plugins("    multiPoint:\n      disabled: [{name: TaintToleration}, {name: ImageLocality}]\n")
    )

    program = program_of("web", only(done))
    assert filters_of(program) == [name for name in ALL_FILTERS if name != "taint_toleration"]
    assert weights_of(program).keys() == DEFAULT_WEIGHTS.keys() - {"taint_toleration", "image_locality"}
    assert "ignore[PS407] TaintToleration does not filter" in only(done)


def test_a_score_alone_that_is_off_leaves_the_filter_in_its_place() -> None:
    done = imported(plugins("    score:\n      disabled: [{name: NodeAffinity}]\n"))

    program = program_of("web", only(done))
    assert filters_of(program) == ALL_FILTERS
    assert weights_of(program) == {k: v for k, v in DEFAULT_WEIGHTS.items() if k != "node_affinity"}


def test_a_filter_alone_that_is_off_leaves_the_score() -> None:
    done = imported(
        plugins(
            "    filter:\n      disabled: [{name: NodeAffinity}]\n    preFilter:\n      disabled: [{name: NodeAffinity}]\n"
        )
    )

    program = program_of("web", only(done))
    assert filters_of(program) == [name for name in ALL_FILTERS if name != "node_affinity"]
    assert weights_of(program) == DEFAULT_WEIGHTS


def test_with_all_plugins_disabled_only_the_enabled_ones_are_imported_by_name() -> None:
    done = imported(
        plugins(
            "    multiPoint:\n"
            "      enabled:\n"
            "      - name: PrioritySort\n"
            "      - name: NodeResourcesFit\n"
            "        weight: 4\n"
            "      - name: NodeName\n"
            "      - name: DefaultBinder\n"
            "      disabled:\n"
            '      - name: "*"\n'
        )
    )

    assert rules(done) == "filter node_resources_fit\nfilter node_name\n\nscore node_resources_fit weight 4\n"
    assert "preemption never" in only(done)
    assert (
        14,
        9,
        "profiles[0].plugins.multiPoint.disabled[0]",
        "SchedulingGates is disabled",
    ) in of_the_file(done.not_imported)


def test_scores_that_are_all_off_leave_every_filter() -> None:
    done = imported(
        plugins('    score:\n      disabled: [{name: "*"}]\n    preScore:\n      disabled: [{name: "*"}]\n')
    )

    program = program_of("web", only(done))
    assert filters_of(program) == ALL_FILTERS
    assert weights_of(program) == {}


def test_a_plugin_enabled_at_its_own_point_comes_first_as_in_kube_scheduler() -> None:
    done = imported(plugins("    filter:\n      enabled: [{name: NodeResourcesFit}, {name: NodePorts}]\n"))

    first = ["node_resources_fit", "node_ports"]
    assert builtin_filters(program_of("web", only(done))) == [
        *first,
        *(name for name in ALL_FILTERS if name not in first),
    ]


def test_two_profiles_are_two_policies() -> None:
    done = imported(
        config(
            "profiles:\n"
            "- schedulerName: spread\n"
            "- schedulerName: pack\n"
            "  pluginConfig:\n"
            "  - name: NodeResourcesFit\n"
            "    args:\n"
            "      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 2}, {name: nvidia.com/gpu}]}\n"
        )
    )

    assert list(done.policies) == ["spread", "pack"]
    assert "include kube_default\n\npreemption" in done.policies["spread"]
    assert (
        "include kube_default\n"
        "replace score node_resources_fit weight 1 {\n"
        "  strategy = most_allocated\n"
        '  resources = {"cpu" = 2, "nvidia.com/gpu" = 1}\n'
        "}\n"
    ) in done.policies["pack"]


def test_timeouts_of_the_device_plugin_are_imported_where_a_policy_has_them() -> None:
    arguments = (
        "  pluginConfig:\n  - name: DynamicResources\n    args: {{filterTimeout: {}, bindingTimeout: {}}}\n"
    )

    usual = imported(profile(arguments.format("10s", "10m")))
    changed = imported(profile(arguments.format("20s", "90s")))

    def lost(done: ImportResult) -> list[str]:
        return [row.subject for row in done.not_imported if "Timeout" in row.subject]

    assert "binding_timeout_seconds" not in only(usual)
    assert "replace filter dynamic_resources { binding_timeout_seconds = 90 }" in only(changed)
    assert (lost(usual), lost(changed)) == ([], ["filterTimeout 20s"])


def test_requested_to_capacity_ratio_keeps_its_shape() -> None:
    done = imported(
        profile(
            "  pluginConfig:\n"
            "  - name: NodeResourcesFit\n"
            "    args:\n"
            "      apiVersion: kubescheduler.config.k8s.io/v1\n"
            "      kind: NodeResourcesFitArgs\n"
            "      scoringStrategy:\n"
            "        type: RequestedToCapacityRatio\n"
            "        resources: [{name: intel.com/foo, weight: 3}]\n"
            "        requestedToCapacityRatio:\n"
            "          shape: [{utilization: 0, score: 0}, {utilization: 50, score: 3}, {utilization: 100, score: 10}]\n"
        )
    )

    assert params_of(program_of("web", only(done)), "node_resources_fit") == {
        "strategy": "requested_to_capacity_ratio",
        "resources": (("intel.com/foo", 3),),
        "shape": ((0, 0), (50, 3), (100, 10)),
    }
    assert of_the_file(done.not_imported) == []


def test_arguments_without_a_parameter_are_listed_at_their_places() -> None:
    done = imported(
        profile(
            "  pluginConfig:\n"
            "  - name: PodTopologySpread\n"
            "    args:\n"
            "      defaultingType: List\n"
            "      defaultConstraints:\n"
            "      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3}\n"
            "  - name: VolumeBinding\n"
            "    args: {bindTimeoutSeconds: 999999, shape: [{utilization: 0, score: 10}]}\n"
            "  - name: DefaultPreemption\n"
            "    args: {minCandidateNodesAbsolute: 7, minCandidateNodesPercentage: 10}\n"
        )
    )

    assert [(line, column, subject) for line, column, _, subject in of_the_file(done.not_imported)] == [
        (10, 75, "minDomains 3 of the default constraint on zone"),
        (12, 12, "bindTimeoutSeconds 999999"),
        (12, 40, "a shape for storage capacity"),
        (14, 12, "minCandidateNodesAbsolute 7"),
    ]
    assert "# - bindTimeoutSeconds 999999: " in only(done)


def test_resources_that_need_not_fit_become_a_parameter_of_the_filter() -> None:
    fit = "  - name: NodeResourcesFit\n    args: {ignoredResources: [example.com/b], ignoredResourceGroups: [x.org]}\n"
    extender = "extenders:\n- {urlPrefix: 'http://gpu.local', filterVerb: filter, managedResources: [{name: example.com/a, ignoredByScheduler: true}, {name: example.com/c}]}\n"

    done = imported(profile("  pluginConfig:\n" + fit) + extender)
    alone = imported(profile("") + extender)

    [rule] = [
        rule for rule in program_of("web", only(done)).rules.filters if rule.name == "node_resources_fit"
    ]
    [other] = [
        rule for rule in program_of("web", only(alone)).rules.filters if rule.name == "node_resources_fit"
    ]
    assert dict(rule.params) == {
        "ignored_resources": {"example.com/a", "example.com/b"},
        "ignored_resource_groups": {"x.org"},
    }
    assert dict(other.params) == {"ignored_resources": {"example.com/a"}, "ignored_resource_groups": set()}
    assert of_the_file(done.not_imported) == []


def test_the_bind_timeout_of_claims_becomes_a_parameter_of_the_filter() -> None:
    done = imported(profile("  pluginConfig:\n  - name: VolumeBinding\n    args: {bindTimeoutSeconds: 60}\n"))

    [binding] = [
        rule for rule in program_of("web", only(done)).rules.filters if rule.name == "volume_binding"
    ]
    assert dict(binding.params) == {"bind_timeout_seconds": 60}
    assert of_the_file(done.not_imported) == []


def test_default_constraints_become_parameters_of_the_filter_and_of_the_score() -> None:
    done = imported(
        profile(
            "  pluginConfig:\n"
            "  - name: PodTopologySpread\n"
            "    args:\n"
            "      defaultingType: List\n"
            "      defaultConstraints:\n"
            "      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}\n"
            "      - {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}\n"
            "  - name: InterPodAffinity\n"
            "    args: {ignorePreferredTermsOfExistingPods: true}\n"
        )
    )

    program = program_of("web", only(done))
    [refuses] = [rule for rule in program.rules.filters if rule.name == "pod_topology_spread"]
    assert dict(refuses.params)["default_constraints"] == (("rack", 2),)
    assert params_of(program, "pod_topology_spread")["default_constraints"] == (("zone", 1),)
    affinity = params_of(program, "inter_pod_affinity")
    assert affinity["ignore_preferred_terms_of_existing_pods"] == "yes"
    assert of_the_file(done.not_imported) == []


def test_a_list_without_constraints_spreads_nothing_by_default() -> None:
    done = imported(
        profile("  pluginConfig:\n  - name: PodTopologySpread\n    args: {defaultingType: List}\n")
    )

    assert params_of(program_of("web", only(done)), "pod_topology_spread")["default_constraints"] == "none"


@pytest.mark.parametrize(
    ("constraint", "wrong"),
    [
        (
            "{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}",
            "is not a whole number from 1",
        ),
        (
            "{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}, "
            "{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}",
            "a second constraint DoNotSchedule on rack",
        ),
    ],
)
def test_a_default_constraint_that_kube_scheduler_refuses_is_an_error(constraint: str, wrong: str) -> None:
    arguments = f"{{defaultingType: List, defaultConstraints: [{constraint}]}}"

    with pytest.raises(UnusableFile, match=wrong):
        imported(profile(f"  pluginConfig:\n  - name: PodTopologySpread\n    args: {arguments}\n"))


def test_hard_pod_affinity_weight_is_the_built_ins_own_parameter() -> None:
    done = imported(
        profile("  pluginConfig:\n  - name: InterPodAffinity\n    args: {hardPodAffinityWeight: 7}\n")
    )

    assert params_of(program_of("web", only(done)), "inter_pod_affinity")["hard_pod_affinity_weight"] == 7


def test_preemption_is_off_where_its_plugin_is() -> None:
    done = imported(plugins("    postFilter:\n      disabled: [{name: DefaultPreemption}]\n"))

    program = program_of("web", only(done))
    assert program.preemption == p.PreemptionSpec("never", None)


def test_a_plugin_disabled_at_one_extension_point_is_listed_as_not_imported() -> None:
    done = imported(plugins("    preFilter:\n      disabled: [{name: NodePorts}]\n"))

    assert [subject for *_, subject in of_the_file(done.not_imported)] == [
        "NodePorts is disabled at preFilter"
    ]


def test_older_versions_have_the_weights_of_their_time() -> None:
    beta2 = imported(config("profiles: [{schedulerName: web}]\n", "v1beta2"))
    beta3 = imported(config("profiles: [{schedulerName: web}]\n", "v1beta3"))

    old = weights_of(program_of("web", only(beta2)))
    assert [old[name] for name in ("taint_toleration", "node_affinity", "inter_pod_affinity")] == [1, 1, 1]
    assert weights_of(program_of("web", only(beta3))) == DEFAULT_WEIGHTS


def test_the_least_and_most_allocated_plugins_of_v1beta1_are_strategies() -> None:
    usual = imported(config("profiles: [{schedulerName: web}]\n", "v1beta1"))
    packed = imported(
        config(
            "profiles:\n- schedulerName: web\n  plugins:\n    score:\n"
            "      disabled: [{name: NodeResourcesLeastAllocated}, {name: NodePreferAvoidPods}]\n"
            "      enabled: [{name: NodeResourcesMostAllocated, weight: 9}]\n",
            "v1beta1",
        )
    )

    assert "plugin NodePreferAvoidPods" in notes_of_the_file(usual)
    assert usual.not_imported == []
    assert weights_of(program_of("web", only(usual)))["node_resources_fit"] == 1
    assert params_of(program_of("web", only(packed)), "node_resources_fit")["strategy"] == "most_allocated"
    assert weights_of(program_of("web", only(packed)))["node_resources_fit"] == 9
    assert of_the_file(packed.not_imported) == []


# ── third-party plugins ────────────────────────────────────────────────────────────────────────────────────────────


def test_network_traffic_is_listed_with_its_replacement() -> None:
    done = imported(
        config(
            "profiles:\n"
            "- schedulerName: custom-scheduler\n"
            "  plugins:\n"
            "    score:\n"
            "      enabled: [{name: NetworkTraffic}]\n"
            '      disabled: [{name: "*"}]\n'
            "  pluginConfig:\n"
            "  - name: NetworkTraffic\n"
            "    args: {ip: 'http://prometheus:9090', deviceName: eth0, timeRange: 60}\n",
            "v1beta1",
        )
    )

    assert filters_of(program_of("custom-scheduler", only(done))) == [
        name
        for name in ALL_FILTERS
        if name not in ("dynamic_resources", "node_declared_features")  # newer than v1beta1
    ]
    assert weights_of(program_of("custom-scheduler", only(done))) == {}
    assert of_the_file(done.not_imported) == [
        (7, 17, "profiles[0].plugins.score.enabled[0]", "plugin NetworkTraffic (score, weight 1)"),
        (
            11,
            5,
            "profiles[0].pluginConfig[0].args",
            "arguments of NetworkTraffic (ip, deviceName, timeRange)",
        ),
    ]
    assert "a `metric` with a rate of node_network_receive_bytes_total" in done.not_imported[0].reason
    assert "policies/network-traffic.policy" in done.not_imported[0].reason


RIYA = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: scheduler-config
  namespace: kube-system
data:
  scheduler-config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1alpha1
    kind: KubeSchedulerConfiguration
    schedulerName: riya-scheduler
    leaderElection:
      leaderElect: true
      lockObjectName: riya-scheduler
      lockObjectNamespace: kube-system
    plugins:
      queueSort:
        enabled:
        - name: "riya"
        disabled:
        - name: "*"
      preFilter:
        enabled:
        - name: "riya"
      pluginConfig:
      - name: "riya"
        args: {master: "master", kubeconfig: "kubeconfig"}
"""


def test_riyas_config_map_is_read_with_places_of_its_file() -> None:
    done = imported(RIYA)

    assert list(done.policies) == ["riya-scheduler"]
    assert done.settings == {"leader_election": {"lease": "kube-system/riya-scheduler"}}
    not_imported = of_the_file(done.not_imported)
    assert (24, 7, "plugins.pluginConfig", "this field") in of_the_file(done.notes)
    assert (18, 11, "plugins.queueSort.enabled[0]", "plugin riya (queueSort, preFilter)") in not_imported
    (reason,) = [item.reason for item in done.not_imported if item.subject.startswith("plugin riya")]
    assert "`queue by`" in reason and "policies/riya.policy" in reason


def test_yodas_plugin_is_listed_once_for_all_its_extension_points() -> None:
    points = "".join(
        f"    {point}: {{enabled: [{{name: yoda{', weight: 300' if point == 'score' else ''}}}]}}\n"
        for point in ("filter", "preScore", "score")
    )

    done = imported(plugins(points))

    (item,) = of_the_file(done.not_imported)
    assert item[3] == "plugin yoda (filter, preScore, score, weight 300)"
    assert "policies/yoda-scv.policy" in done.not_imported[0].reason


def test_an_unknown_plugin_gets_a_hint_for_its_extension_point() -> None:
    done = imported(
        plugins("    multiPoint: {enabled: [{name: Mine}]}\n    permit: {enabled: [{name: Theirs}]}\n")
    )

    whys = {item.subject: item.reason for item in done.not_imported}
    assert "a policy has no equivalent" in whys["plugin Mine (multiPoint)"]
    assert "instead: `gang by`" in whys["plugin Theirs (permit)"]


EXTENDERS = """\
extenders:
- urlPrefix: https://gpushare.kube-system.svc:32766/scheduler
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: 5
  nodeCacheCapable: true
  enableHTTPS: true
  httpTimeout: 1m0.5s
  ignorable: true
  managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]
  tlsConfig: {caFile: /ca.crt, certFile: /tls.crt, keyFile: /tls.key, serverName: gpu}
- urlPrefix: http://127.0.0.1:5402/scheduler
  prioritizeVerb: priorities/congestion
  weight: 1
- urlPrefix: http://gpushare.other.svc/
  filterVerb: f
- urlPrefix: https://bare
  filterVerb: f
  tlsConfig: {caData: aaaa}
"""


def test_extenders_become_settings_and_are_called_by_every_policy() -> None:
    done = imported(config(f"profiles: [{{schedulerName: a}}, {{schedulerName: b}}]\n{EXTENDERS}"))

    assert done.settings["extenders"] == {
        "gpushare": {
            "url": "https://gpushare.kube-system.svc:32766/scheduler",
            "filter": "filter",
            "prioritize": "prioritize",
            "timeout_s": 60.5,
            "ignorable": True,
            "resources": ["example.com/gpu"],
            "tls": {"ca": "/ca.crt", "certificate": "/tls.crt", "key": "/tls.key", "server_name": "gpu"},
        },
        "congestion": {
            "url": "http://127.0.0.1:5402/scheduler",
            "prioritize": "priorities/congestion",
            "send_node_objects": True,
        },
        "gpushare_2": {"url": "http://gpushare.other.svc/", "filter": "f", "send_node_objects": True},
        "bare": {"url": "https://bare", "filter": "f", "send_node_objects": True},
    }
    for name in ("a", "b"):
        program = program_of(name, done.policies[name])
        assert [(extender.name, extender.weight, extender.missing) for extender in program.extenders] == [
            ("gpushare", 5, 0),
            ("congestion", 1, 0),
            ("gpushare_2", None, None),
            ("bare", None, None),
        ]


def test_the_imported_settings_are_settings_of_run() -> None:
    done = imported(config(EXTENDERS))

    read = read_settings(None, {}, {"policies": "a/b", **done.settings})

    assert read.extenders["gpushare"].timeout_s == 60.5
    assert read.extenders["congestion"].send_node_objects


def test_unsupported_extender_fields_are_listed_at_their_places() -> None:
    done = imported(config(EXTENDERS))

    not_imported = {
        item.where: (item.subject, item.reason)
        for item in done.not_imported
        if item.where.startswith("extenders")
    }
    assert set(not_imported) == {
        "extenders[0].preemptVerb",
        "extenders[0].bindVerb",
        "extenders[3].tlsConfig.caData",
    }
    hints = {note.where: note.reason for note in done.notes}
    assert "policies/congestion.policy" in hints["extenders[1]"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("urlPrefix: ftp://x", "not an http or https URL"),
        ("urlPrefix: http://x\n  prioritizeVerb: p\n  weight: 0", "not between 1"),
        ("urlPrefix: http://x\n  httpTimeout: 5 seconds", "not a duration"),
        ("urlPrefix: https://x\n  tlsConfig: {certFile: /c}", "a certificate needs its key"),
    ],
)
def test_an_extender_that_kube_scheduler_rejects_is_rejected_at_its_place(more: str, words: str) -> None:
    with pytest.raises(UnusableFile, match=rf":\d+:\d+: .*{words}"):
        imported(config(f"extenders:\n- filterVerb: f\n  {more}\n"))


def test_a_plugin_without_a_rule_is_listed_where_it_is_enabled() -> None:
    done = imported(plugins("    permit: {enabled: [{name: GangScheduling}]}\n"))

    assert [
        (item.where, item.subject) for item in done.not_imported if item.subject == "plugin GangScheduling"
    ] != []


def test_what_this_version_lacks_of_the_defaults_is_one_note_and_nothing_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = {"VolumeZone": ["claims", "zones"], "NodeName": ["names"]}
    monkeypatch.setattr("policysched.migrate.profile.limitations", lambda plugin: lacking.get(plugin, []))

    two_profiles = imported(config("profiles: [{schedulerName: a}, {schedulerName: b}]\n"))
    off = imported(plugins("    multiPoint: {disabled: [{name: VolumeZone}, {name: NodeName}]}\n"))

    assert two_profiles.not_imported == []
    assert [(item.where, item.subject) for item in two_profiles.notes] == [
        ("profiles", "3 features of pods (NodeName, VolumeZone)")
    ]
    assert off.notes == []


# ── manifests ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_other_objects_of_a_manifest_are_skipped() -> None:
    around = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: riya-sa}\n---\n"
    after = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: riya-scheduler}\n"

    done = imported(around + RIYA + after)

    assert list(done.policies) == ["riya-scheduler"]
    assert [item.line for item in done.not_imported] == [
        item.line + 4 for item in imported(RIYA).not_imported
    ]


def test_a_list_of_objects_as_kubectl_prints_it_is_read() -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- kind: Secret\n- " + RIYA.replace("\n", "\n  ").rstrip(" ")

    done = imported(listed)

    assert list(done.policies) == ["riya-scheduler"]
    assert {item.line for item in done.not_imported} == {
        item.line + 4 for item in imported(RIYA).not_imported
    }


def test_a_manifest_without_a_configuration_says_what_it_has() -> None:
    with pytest.raises(UnusableFile) as caught:
        imported("kind: ServiceAccount\n---\nkind: Deployment\n---\nkind: Deployment\n")

    assert str(caught.value) == (
        "scheduler.yaml: contains no configuration; its 3 objects are of kind ServiceAccount, Deployment"
    )


@pytest.mark.parametrize("plugin", sorted(_KNOWN_ALTERNATIVES))
def test_a_policy_or_page_that_an_alternative_names_exists(plugin: str) -> None:
    named = re.findall(r"\b(?:policies|docs)/[\w./-]+\.(?:policy|md)", _KNOWN_ALTERNATIVES[plugin])

    assert [path for path in named if not (ROOT / path).is_file()] == []


# ── process-wide settings ──────────────────────────────────────────────────────────────────────────────────────────


ALLOWED = {"policy_permissions": {"policies_allowed": [{"name": "default-scheduler"}]}}
"""A policy of this name runs only if the settings list it."""


def test_leader_election_and_back_off_are_settings() -> None:
    done = imported(
        config(
            "leaderElection: {leaderElect: true, leaseDuration: 1m0.5s, renewDeadline: 30s, retryPeriod: 500ms,\n"
            "  resourceName: mine, resourceNamespace: team}\n"
            "clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf, qps: 50}\n"
            "podInitialBackoffSeconds: 2\n"
            "podMaxBackoffSeconds: 60\n"
            "percentageOfNodesToScore: 30\n"
            "delayCacheUntilActive: true\n"
        )
    )

    assert done.settings == {
        "kubeconfig": "/etc/kubernetes/scheduler.conf",
        "leader_election": {
            "lease_duration_s": 60.5,
            "renew_deadline_s": 30,
            "retry_period_s": 0.5,
            "lease": "team/mine",
            "delay_cache_until_active": True,
        },
        "scheduling": {"backoff_initial_s": 2, "backoff_max_s": 60},
        **ALLOWED,
    }
    assert [where for *_, where, _ in of_the_file(done.notes)] == [
        "percentageOfNodesToScore",
        "clientConnection.qps",
    ]


def test_the_lease_of_kube_scheduler_itself_is_not_taken() -> None:
    done = imported(
        config("leaderElection: {resourceName: kube-scheduler, resourceNamespace: kube-system}\n")
    )
    off = imported(config("leaderElection: {leaderElect: false}\n"))

    assert done.settings == ALLOWED
    assert notes_of_the_file(done) == ["kube-system/kube-scheduler"]
    assert off.settings == {"leader_election": {"enabled": False}, **ALLOWED}


# ── configurations that kube-scheduler rejects ─────────────────────────────────────────────────────────────────────

REFUSED = {
    "a field that it does not know": (
        plugins("    score: {enable: [{name: X}]}\n"),
        "scheduler.yaml:6:13: profiles[0].plugins.score.enable: kube-scheduler has no such field",
    ),
    "a weight that is no number": (
        plugins("    score: {enabled: [{name: NodeAffinity, weight: much}]}\n"),
        'scheduler.yaml:6:44: profiles[0].plugins.score.enabled[0].weight: "much" is not a whole number from 0',
    ),
    "a strategy that does not exist": (
        profile("  pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Random}}}]\n"),
        'scheduler.yaml:5:68: profiles[0].pluginConfig[0].args.scoringStrategy.type: "Random" is not LeastAllocated, '
        "MostAllocated or RequestedToCapacityRatio",
    ),
    "a plugin twice": (
        plugins("    filter: {enabled: [{name: NodeName}, {name: NodeName}]}\n"),
        "scheduler.yaml:6:42: profiles[0].plugins.filter.enabled[1]: `NodeName` is enabled twice",
    ),
    "a plugin where it has nothing to do": (
        plugins("    filter: {enabled: [{name: ImageLocality}]}\n"),
        "scheduler.yaml:6:24: profiles[0].plugins.filter.enabled[0]: `ImageLocality` does not implement filter",
    ),
    "no queueSort": (
        plugins('    queueSort: {disabled: [{name: "*"}]}\n'),
        "scheduler.yaml:5:3: profiles[0].plugins: 0 plugins at queueSort; kube-scheduler needs exactly one",
    ),
    "two profiles of one name": (
        config("profiles: [{schedulerName: a}, {schedulerName: a}]\n"),
        "scheduler.yaml:3:33: profiles[1].schedulerName: a policy `a` exists already; rename one with --name a=NAME",
    ),
    "a profile without a name beside another": (
        config("profiles:\n- schedulerName: a\n- plugins: {}\n"),
        "scheduler.yaml:5:3: profiles[1]: with several profiles, each needs a `schedulerName`",
    ),
    "a name that no policy can have": (
        config("profiles:\n- schedulerName: my.scheduler\n"),
        "scheduler.yaml:4:3: profiles[0].schedulerName: `my.scheduler` is not a valid policy name; "
        "choose another with --name my.scheduler=NAME",
    ),
    "a version from elsewhere": (
        config(version="v2"),
        "scheduler.yaml:1:1: apiVersion: is not kubescheduler.config.k8s.io/VERSION with VERSION one of v1, v1beta3, v1beta2, v1beta1, "
        "v1alpha2, v1alpha1",
    ),
    "a plugin of the days before v1": (
        plugins("    filter: {enabled: [{name: EBSLimits}]}\n"),
        "scheduler.yaml:6:24: profiles[0].plugins.filter.enabled[0]: `EBSLimits` was removed in v1",
    ),
    "multiPoint before there was one": (
        config("profiles:\n- plugins:\n    multiPoint: {}\n", "v1beta2"),
        "scheduler.yaml:5:5: profiles[0].plugins.multiPoint: v1beta2 has no multiPoint",
    ),
    "a field of v1alpha1": (
        config("schedulerName: a\n"),
        "scheduler.yaml:3:1: schedulerName: v1 has no such field at the top level",
    ),
    "a shape that falls back": (
        profile(
            "  pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n"
            "        type: RequestedToCapacityRatio\n        requestedToCapacityRatio:\n"
            "          shape: [{utilization: 50, score: 0}, {utilization: 50, score: 1}]\n"
        ),
        "scheduler.yaml:11:48: profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio.shape[1]: "
        "utilization must increase from point to point",
    ),
    "times that do not hold together": (
        config("leaderElection: {leaseDuration: 5s}\n"),
        "scheduler.yaml:3:1: leaderElection: kube-scheduler requires leaseDuration > renewDeadline > 1.2 * retryPeriod",
    ),
    "a duration that is none": (
        config("leaderElection: {leaseDuration: 15 sec}\n"),
        "scheduler.yaml:3:18: leaderElection.leaseDuration: `15 sec` is not a duration such as 15s or 1m30s",
    ),
    "a longest back-off below the first": (
        config("podInitialBackoffSeconds: 20\n"),
        "scheduler.yaml:1:1: podMaxBackoffSeconds: 10 is less than podInitialBackoffSeconds, 20",
    ),
    "a key twice": (config("profiles: []\nprofiles: []\n"), "scheduler.yaml:4:1: `profiles` is given twice"),
    "no YAML": (
        "kind: [\n",
        "scheduler.yaml:2:1: is neither YAML nor JSON: did not find expected node content",
    ),
    "something else": (
        "kind: Deployment\n",
        "scheduler.yaml:1:1: (top level): is neither a KubeSchedulerConfiguration nor a legacy Policy",
    ),
    "nothing": ("", "scheduler.yaml: contains no configuration"),
}


@pytest.mark.parametrize(("text", "line"), REFUSED.values(), ids=REFUSED)
def test_a_configuration_that_kube_scheduler_rejects_is_one_line_at_its_place(text: str, line: str) -> None:
    with pytest.raises(UnusableFile) as caught:
        imported(text)

    assert str(caught.value) == line


def test_a_null_field_is_absent_and_a_date_is_a_string() -> None:
    done = imported(
        config(
            "clientConnection: null\nleaderElection:\npodMaxBackoffSeconds: null\n"
            "profiles:\n"
            "- schedulerName: 2026-01-01\n"
            "  plugins: {score: null, multiPoint: {enabled: null, disabled: null}}\n"
            "  pluginConfig: [{name: NodeResourcesFit, args: null}, {name: Other, args: {a: 1}}]\n"
        )
    )

    assert list(done.policies) == ["2026-01-01"]
    assert of_the_file(done.not_imported) == []
    assert notes_of_the_file(done) == ["arguments of Other (a)"]


def test_a_rename_of_nothing_is_refused() -> None:
    with pytest.raises(UnusableFile, match=r"no profile is named `b` \(profiles: default-scheduler\)"):
        imported(config(), b="c")


def test_a_small_file_of_aliases_is_not_unfolded() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )

    with pytest.raises(UnusableFile, match="too large for a configuration"):
        imported(config(bomb))
