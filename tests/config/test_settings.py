"""Flags over variables over the file, and where a mistake is."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from policysched.config.http_settings import HttpSettings
from policysched.config.layers import BadSettings
from policysched.config.settings import NamespacedName, read_settings
from policysched.config.team_settings import TeamPolicySettings
from policysched.daemon.status_documents import configz_document
from policysched.kube.leader_election import LeaseSettings
from policysched.kube.write.bind import BindSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.metric_sources.annotations import AnnotationsSettings
from policysched.metric_sources.file import FileSettings
from policysched.metric_sources.metrics_api import MetricsApiSettings
from policysched.metric_sources.prometheus_transport import (
    BasicAuth,
    PrometheusSettings,
    PrometheusTls,
)
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import (
    AllowedPolicy,
    NamespaceSelection,
    PolicyPermissions,
    VictimCeiling,
)
from policysched.schemas import schema
from policysched.serve.server import ListenAddress


def test_flags_override_variables_and_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "policies: a/file\nhttp: :1\nbinding: {concurrent_binds_max: 7}\nlog: {format: json, level: error}\n"
    )
    environment = {"POLICYSCHED_HTTP": ":2", "POLICYSCHED_LOG__LEVEL": "debug", "PATH": "/bin"}

    settings = read_settings(file, environment, {"policies": "a/flag"})

    assert settings.policies == NamespacedName("a", "flag")
    assert settings.last_good == NamespacedName("a", "flag-last-good")
    assert settings.http == HttpSettings(ListenAddress("0.0.0.0", 2))
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    assert settings.binding.concurrent_binds_max == 7


def test_missing_settings_have_their_defaults() -> None:
    settings = read_settings(None, {}, {"policies": "a/b"})

    assert settings.lease == LeaseSettings()
    assert settings.reporting == ReporterSettings()
    assert settings.limits == SchedulerLimits()


def test_variables_are_parsed_as_numbers_and_booleans() -> None:
    environment = {
        "POLICYSCHED_POLICIES": "a/b",
        "POLICYSCHED_LEADER_ELECTION__ENABLED": "false",
        "POLICYSCHED_SCHEDULING__BINDS_IN_FLIGHT_MAX": "50",
        "POLICYSCHED_CONTEXT": "5",
    }

    settings = read_settings(None, environment, {})

    assert settings.lease is None
    assert settings.limits.binds_in_flight_max == 50
    assert settings.context == "5"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "policies: a/b\nbinding:\n  concurrent_binds_max: 0\n",
            "line 3: binding.concurrent_binds_max: 0 is less than the minimum of 1",
        ),
        ("policies: a/b\nbindings: {}\n", "line 2: bindings: is unknown here; did you mean `binding`?"),
        (
            "policies: a/b\nauthority: {policies: []}\n",
            "line 2: authority: is unknown here; its new name is `policy_permissions`",
        ),
        (
            "policies: a/b\nextenders:\n  gpu: {url: 'https://gpu', at_once: 2}\n",
            "line 3: extenders.gpu.at_once: is unknown here; its new name is `concurrent_calls_max`",
        ),
        ("policies: a/b\nat_once: 2\n", "line 2: at_once: is unknown here"),
        ("policies: here\n", "line 1: policies: is `here`, expected NAMESPACE/NAME"),
        ("policies: [\n", "not YAML"),
        (f"policies: {'9' * 5000}\n", "not YAML: Exceeds the limit"),
        ("- a\n", "(top level): is a list, expected a map"),
        ("http: :80\n", "no policies are configured"),
        (
            "policies: a/b\nleader_election: {lease_duration_s: 5}\n",
            "retry_period_s < renew_deadline_s < lease_duration_s",
        ),
        ("policies: a/b\nhttp: ':99999'\n", "`:99999` is not an address"),
    ],
)
def test_an_error_is_reported_with_its_position(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)

    with pytest.raises(BadSettings) as error:
        read_settings(file, {}, {})

    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_all_errors_are_reported_in_one_run_with_their_positions(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "policies: a/b\n"
        "http: ':99999'\n"
        "binding: {concurrent_binds_max: 0}\n"
        "leader_election:\n"
        "  lease_duration_s: 20\n"
        "  renew_deadline_s: 25\n"
        "sources:\n"
        "  one: {kind: prometheus}\n"
        "  two:\n"
        "    kind: annotations\n"
        "    time_zone: Mars/Olympus\n"
        "extenders:\n"
        "  gpu: {url: 'http://gpu'}\n"
        "bindings: {}\n"
    )
    environment = {
        "POLICYSCHED_BINDING__CONCURRENT_BIND_MAX": "5",
        "POLICYSCHED_DEFAULT_SOURCE": "three",
        "POLICYSCHED_LEADER_ELECTION__RETRY_PERIOD_S": "30",
    }

    with pytest.raises(BadSettings) as error:
        read_settings(file, environment, {"last_good": "nowhere"})

    order = "requires retry_period_s < renew_deadline_s < lease_duration_s"
    assert error.value.problems == (
        f"{file}: line 3: binding.concurrent_binds_max: 0 is less than the minimum of 1",
        f"{file}: line 8: sources.one: 'url' is a required property",
        f"{file}: line 14: bindings: is unknown here; did you mean `binding`?",
        "environment variable POLICYSCHED_BINDING__CONCURRENT_BIND_MAX: binding.concurrent_bind_max: is unknown here; did you mean `concurrent_binds_max`?",
        "flags: last_good: is `nowhere`, expected NAMESPACE/NAME",
        f"{file}: line 2: http: `:99999` is not an address: write HOST:PORT or :PORT",
        f"{file}: line 11: sources.two.time_zone: unknown time zone `Mars/Olympus`",
        "environment variable POLICYSCHED_DEFAULT_SOURCE: default_source: there is no source `three` under `sources`",
        f"{file}: line 6: leader_election.renew_deadline_s: {order}, but retry_period_s is 30, renew_deadline_s 25",
        f"{file}: line 5: leader_election.lease_duration_s: {order}, but renew_deadline_s is 25, lease_duration_s 20",
        f"{file}: line 13: extenders.gpu: no verb is configured: give `filter` or `prioritize`",
    )


def test_an_unreadable_file_does_not_hide_errors_of_flags_and_variables(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as error:
        read_settings(tmp_path / "nowhere.yaml", {"POLICYSCHED_HTTP": "here"}, {"context": ""})

    assert error.value.problems == (
        f"{tmp_path}/nowhere.yaml: no such file",
        "environment variable POLICYSCHED_HTTP: http: is `here`, expected HOST:PORT or :PORT for health, metrics and status.",
        "flags: context: is empty",
    )


def test_a_setting_that_violates_the_schema_is_not_checked_further(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "policies: a/b\nleader_election: {lease_duration_s: soon, retry_period_s: 12}\nsources: [a]\n"
    )

    with pytest.raises(BadSettings) as error:
        read_settings(file, {"POLICYSCHED_DEFAULT_SOURCE": "x"}, {})

    assert error.value.problems == (
        f"{file}: line 2: leader_election.lease_duration_s: is `soon`, expected a number",
        f"{file}: line 3: sources: is a list, expected a map",
    )


def test_an_unknown_home_directory_is_a_missing_file() -> None:
    settings = read_settings(None, {}, {"policies": "a/b", "kubeconfig": "~nobody-of-that-name/config"})

    assert settings.kubeconfig == Path("~nobody-of-that-name/config")


def test_an_unknown_variable_is_rejected_by_name() -> None:
    with pytest.raises(BadSettings, match="POLICYSCHED_BINDING__CONCURRENT_BIND_MAX: "):
        read_settings(None, {"POLICYSCHED_BINDING__CONCURRENT_BIND_MAX": "5"}, {"policies": "a/b"})


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("binding", BindSettings),
        ("reporting", ReporterSettings),
        ("scheduling", SchedulerLimits),
        ("leader_election", LeaseSettings),
    ],
)
def test_the_schema_has_only_existing_settings(section: str, kind: Any) -> None:
    offered = set(schema("settings")["properties"][section]["properties"]) - {
        "enabled",
        "lease",
        "delay_cache_until_active",
    }

    assert offered
    assert offered <= {field.name for field in fields(kind)}


# ── sources of samples ─────────────────────────────────────────────────────────────────────────────────────────────

SOURCES = """\
policies: a/b
default_source: prom
sources:
  prom:
    kind: prometheus
    url: https://prometheus:9090/base
    timeout_s: 3
    basic_auth: {username: me, password_file: /secrets/password}
    headers: {X-Scope-OrgID: team-a}
    header_files: {X-Key: /secrets/key}
    proxy: http://proxy:3128
    proxy_auth: {username: me, password_file: /secrets/proxy}
    tls: {ca_file: /ca.crt, cert_file: /me.crt, key_file: /me.key, server_name: prom, verify: false}
  crane: {kind: annotations, time_zone: Asia/Shanghai}
  usage: {kind: metrics-api, timeout_s: 5}
  hand: {kind: file, path: samples.yaml}
"""


def test_every_field_of_every_source_kind_is_read(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(SOURCES)

    samples = read_settings(file, {}, {}).samples

    assert samples.default == "prom"
    assert samples.sources == {
        "prom": PrometheusSettings(
            url="https://prometheus:9090/base",
            timeout_s=3,
            basic_auth=BasicAuth("me", Path("/secrets/password")),
            headers={"X-Scope-OrgID": "team-a"},
            header_files={"X-Key": Path("/secrets/key")},
            proxy="http://proxy:3128",
            proxy_auth=BasicAuth("me", Path("/secrets/proxy")),
            tls=PrometheusTls(Path("/ca.crt"), Path("/me.crt"), Path("/me.key"), "prom", verify=False),
        ),
        "crane": AnnotationsSettings("Asia/Shanghai"),
        "usage": MetricsApiSettings(5),
        "hand": FileSettings(Path("samples.yaml")),
    }


def test_tls_is_verified_by_default() -> None:
    given = {"policies": "a/b", "sources": {"p": {"kind": "prometheus", "url": "https://p"}}}

    (source,) = read_settings(None, {}, given).samples.sources.values()

    assert isinstance(source, PrometheusSettings)
    assert source.tls.verify


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{kind: prometheus}", "line 2: sources.p: 'url' is a required property"),
        ("{kind: promethoos}", "line 2: sources.p.kind: is `promethoos`, expected `prometheus` or "),
        ("{url: 'http://p'}", "line 2: sources.p: 'kind' is a required property"),
        ("{kind: annotations, url: 'http://p'}", "sources.p.url: is unknown here"),
        ("{kind: file}", "'path' is a required property"),
        (
            "{kind: prometheus, url: 'http://me:hunter2@p'}",
            "sources.p.url: expected http:// or https://",
        ),
        ("{kind: prometheus, url: 'p:9090'}", "sources.p.url: expected http:// or https://"),
        (
            "{kind: prometheus, url: 'http://p', basic_auth: {username: me, password: hunter2}}",
            "basic_auth.password: is unknown here; did you mean `password_file`?",
        ),
        (
            "{kind: prometheus, url: 'http://p', headers: {authorization: hunter2}}",
            "credentials must not be in the settings",
        ),
        (
            "{kind: prometheus, url: 'http://p', headers: {X-Key: \"hunter2\\n\"}}",
            "headers.X-Key: expected ",
        ),
        ("{kind: prometheus, url: 'http://p', headers: {'X Key': a}}", "'X Key' does not match"),
        (
            "{kind: prometheus, url: 'http://p', headers: {x-key: a}, header_files: {X-Key: b}}",
            "the header x-key is given twice",
        ),
        (
            "{kind: prometheus, url: 'http://p', bearer_token_file: a, header_files: {Authorization: b}}",
            "bearer_token_file and header_files conflict",
        ),
        (
            "{kind: prometheus, url: 'http://p', tls: {ca_file: a}}",
            "sources.p.tls: the url is not https",
        ),
        (
            "{kind: prometheus, url: 'https://p', tls: {cert_file: a}}",
            "'key_file' is a dependency of 'cert_file'",
        ),
        (
            "{kind: prometheus, url: 'https://p', proxy_auth: {username: a, password_file: b}}",
            "there is no proxy",
        ),
        ("{kind: annotations, time_zone: Mars/Olympus}", "unknown time zone `Mars/Olympus`"),
    ],
)
def test_an_unusable_source_is_rejected_without_showing_its_secrets(
    source: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"policies: a/b\nsources: {{p: {source}}}\n")

    with pytest.raises(BadSettings) as error:
        read_settings(file, {}, {})

    assert words in str(error.value)
    assert "hunter2" not in str(error.value)


def test_an_unknown_default_source_is_rejected() -> None:
    with pytest.raises(BadSettings, match="default_source: there is no source `p` under `sources`"):
        read_settings(None, {}, {"policies": "a/b", "default_source": "p"})


def test_headers_are_redacted_in_shown_settings() -> None:
    headers = {"X-Key": "hunter2"}
    given = {
        "policies": "a/b",
        "sources": {"p": {"kind": "prometheus", "url": "http://p", "headers": headers}},
    }

    page = configz_document(read_settings(None, {}, given))

    assert page["policysched"]["sources"]["p"]["headers"] == {"X-Key": "***"}
    assert given["sources"]["p"]["headers"] == headers  # type: ignore[index]


def test_the_authority_of_policies_is_read_and_is_narrow_by_default() -> None:
    given = {
        "policies_allowed": [
            {"name": "ml-*", "namespaces": ["ml-*", "train"], "namespace_labels": {"team": "ml"}},
            {"name": "default-scheduler"},
        ],
        "victims_allowed": {"namespaces": ["batch"], "priority_max": 7, "protected": ["kube-system"]},
    }

    settings = read_settings(None, {}, {"policies": "a/b", "policy_permissions": given})

    assert settings.permissions == PolicyPermissions(
        (
            AllowedPolicy("ml-*", NamespaceSelection(("ml-*", "train"), {"team": "ml"})),
            AllowedPolicy("default-scheduler"),
        ),
        VictimCeiling(NamespaceSelection(("batch",)), 7, frozenset({"kube-system"})),
    )
    default = read_settings(None, {}, {"policies": "a/b"}).permissions
    assert default == PolicyPermissions()
    assert default.victims.protected == {"kube-system", "static-pods", "daemonset-pods"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"policies_allowed": [{"namespaces": ["a"]}]}, "'name' is a required property"),
        (
            {"policies_allowed": [{"name": "ML?"}]},
            "is `ML?`, expected the name of a policy, or a pattern with *",
        ),
        ({"victims_allowed": {"protected": ["nobody"]}}, "is `nobody`, expected `kube-system`"),
        ({"victims_allowed": {"priority": 3}}, "priority: is unknown here"),
    ],
)
def test_mistakes_in_the_authority_of_policies_are_reported(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(problem)):
        read_settings(None, {}, {"policies": "a/b", "policy_permissions": given})


def test_teams_own_policies_only_with_a_base_and_names_of_their_own() -> None:
    owned = {"policies_allowed": [{"name": "*"}, {"name": "ml-*", "owner": "ml"}]}
    given = {
        "policies": "a/b",
        "policy_permissions": owned,
        "team_policies": {"required_base": "base.policy"},
    }

    settings = read_settings(None, {}, given)

    assert settings.team_policies == TeamPolicySettings(
        "base.policy", "policysched-policies", 8, 128 * 1024, 1_000
    )
    assert settings.permissions.owner("ml-a") == "ml" and settings.permissions.owners() == {"ml"}
    assert read_settings(None, {}, {"policies": "a/b"}).team_policies is None
    with pytest.raises(BadSettings, match=r"no entry of policy_permissions\.policies_allowed has an `owner`"):
        read_settings(None, {}, {**given, "policy_permissions": {}})
    both = {"policies_allowed": [{"name": "ml-*", "owner": "ml", "namespaces": ["web"]}]}
    with pytest.raises(BadSettings, match="serve only the namespace of their owner"):
        read_settings(None, {}, {**given, "policy_permissions": both})
