"""Converts one configuration file to policies, settings and a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.migrate.draft import is_policy_name, policy_text
from policysched.migrate.extenders import ImportedExtenders, import_extenders
from policysched.migrate.legacy_policy import LegacyPolicyImporter
from policysched.migrate.located_document import (
    ConfigMapKey,
    LocatedDocument,
    Path,
    check_schema,
    config_map_key,
    configuration_kind,
    parse_documents,
)
from policysched.migrate.plugin_merge import merge_plugins
from policysched.migrate.plugins import API_GROUP, VERSIONS, VOLUME_LIMITS_PLUGINS, ConfigVersion
from policysched.migrate.process_settings import import_process_settings
from policysched.migrate.profile import PluginArguments, ProfileImporter
from policysched.migrate.report import ImportNote, ImportReport
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.policy_permissions import DEFAULT_SCHEDULER


@dataclass(slots=True)
class ImportResult:
    """`policies` are texts by name, in the order of the file. `settings` follow `schemas/settings.json`."""

    policies: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    not_imported: list[ImportNote] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)


def import_config(text: str, name: str, renames: Mapping[str, str] | None = None) -> ImportResult:
    """Import a configuration. `name` names the file in messages; `renames` maps a schedulerName to a policy name.

    Raises UnusableFile, one line with the position, for a configuration that kube-scheduler rejects.
    """
    documents = parse_documents(text, name)
    importer = _Importer(dict(renames or {}), _legacy_policies(documents))
    used = {_policy_config_map(document.value) for document in documents} & importer.legacy_policies.keys()
    for document in documents:
        if document.config_map not in used or configuration_kind(document.value) != "Policy":
            importer.import_document(document)
    unused = [old for old in importer.renames if old not in importer.renamed]
    if unused:
        names = ", ".join(importer.names) or "none"
        raise UnusableFile(f"{name}: no profile is named `{unused[0]}` (profiles: {names})")
    if DEFAULT_SCHEDULER in importer.result.policies:  # allowed only by an entry of its own
        allowed = [{"name": policy} for policy in importer.result.policies]
        importer.result.settings["policy_permissions"] = {"policies_allowed": allowed}
    return importer.result


@dataclass(slots=True)
class _Importer:
    """`legacy_policies` by the ConfigMap that holds them: a configuration can refer to one of its own manifest."""

    renames: Mapping[str, str]
    legacy_policies: Mapping[ConfigMapKey, LocatedDocument]
    result: ImportResult = field(default_factory=ImportResult)
    renamed: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    extenders: ImportedExtenders = field(default_factory=ImportedExtenders)

    def import_document(self, document: LocatedDocument) -> None:
        report = ImportReport(document)
        match configuration_kind(document.value):
            case "Policy":
                self._import_legacy_policy(report)
            case _:
                self._import_configuration(report)
        self._keep(report)

    def _keep(self, report: ImportReport) -> None:
        self.result.not_imported += report.not_imported
        self.result.notes += report.notes

    def _import_legacy_policy(self, report: ImportReport, configuration: Mapping[str, Any] = {}) -> None:
        """A Policy, with the `configuration` that refers to it."""
        _report_schema_violations(report, "kube-scheduler-policy", strict=False)
        policy = report.document.value
        report.profile = 0
        self._import_extenders(report, policy)
        name = self._policy_name(report, (), configuration.get("schedulerName") or DEFAULT_SCHEDULER)
        draft = LegacyPolicyImporter(report, policy, self.extenders.ignored_resources).draft(
            name, f"From {report.document.name}, a legacy Policy of kube-scheduler."
        )
        if configuration.get("disablePreemption"):
            draft.preemption = "never"
        draft.extenders = self.extenders.statements
        self.result.policies[name] = policy_text(draft)

    def _import_extenders(self, report: ImportReport, config: Mapping[str, Any]) -> None:
        """Import the extenders. Every policy of the file calls them, as every profile of kube-scheduler does."""
        taken = self.extenders.settings  # the extenders of earlier documents in the file
        self.extenders = import_extenders(report, config.get("extenders") or [], taken)
        if self.extenders.settings:
            self.result.settings["extenders"] = self.extenders.settings

    def _import_configuration(self, report: ImportReport) -> None:
        document, config = report.document, report.document.value
        version = VERSIONS.get(config.get("apiVersion"))
        if version is None:
            versions = ", ".join(known_version.name for known_version in VERSIONS.values())
            raise document.unusable_file(
                ("apiVersion",), f"is not {API_GROUP}/VERSION with VERSION one of {versions}"
            )
        _report_schema_violations(
            report, "kube-scheduler-configuration", strict=version.rejects_unknown_fields
        )
        _report_version_fields(report, config, version)
        self.result.settings.update(import_process_settings(report, config))
        self._import_extenders(report, config)
        profiles = config.get("profiles") or [{}]
        at_top = not config.get("profiles")
        if at_top and not version.rejects_unknown_fields:
            key = _policy_config_map(config)
            if key is not None and key in self.legacy_policies:
                _report_fields_beside_a_policy(report, config)
                of_policy = ImportReport(self.legacy_policies[key])
                self._import_legacy_policy(of_policy, config)
                self._keep(of_policy)
                return
            _report_algorithm_source(report, config)
            profiles = [config]  # v1alpha1 has one profile, with its fields at the top level
        for index, profile in enumerate(profiles):
            path: Path = () if at_top else ("profiles", index)
            self._import_profile(report, path, index, profile, version, alone=len(profiles) == 1)

    def _import_profile(
        self,
        report: ImportReport,
        path: Path,
        index: int,
        profile: Mapping[str, Any],
        version: ConfigVersion,
        *,
        alone: bool,
    ) -> None:
        scheduler = profile.get("schedulerName") or (DEFAULT_SCHEDULER if alone else None)
        if scheduler is None:
            raise report.document.unusable_file(path, "with several profiles, each needs a `schedulerName`")
        report.profile = index
        if path and "percentageOfNodesToScore" in profile:
            report.add_note(
                (*path, "percentageOfNodesToScore"), "percentageOfNodesToScore", "all nodes are evaluated"
            )
        name = self._policy_name(report, (*path, "schedulerName"), scheduler)
        plugins = profile.get("plugins") or {}
        if version.name == "v1":
            _reject_volume_limits_plugins(report, (*path, "plugins"), plugins)
        points = merge_plugins(report.document, (*path, "plugins"), plugins, version)
        config = _plugin_config(report, (*path, "pluginConfig"), profile.get("pluginConfig") or [])
        if "hardPodAffinitySymmetricWeight" in profile:
            weight = {"hardPodAffinityWeight": profile["hardPodAffinitySymmetricWeight"]}
            config.setdefault(
                "InterPodAffinity", PluginArguments((*path, "hardPodAffinitySymmetricWeight"), weight)
            )
        shared: Path = ("profiles",) if path else ()
        left = self.extenders.ignored_resources
        draft = ProfileImporter(report, path, shared, points, config, left).draft(
            name,
            f"From {report.document.name}, profile {scheduler} of a KubeSchedulerConfiguration ({version.name}).",
        )
        if profile.get("disablePreemption"):
            draft.preemption = "never"
        draft.extenders = self.extenders.statements
        self.result.policies[name] = policy_text(draft)
        report.profile = None

    def _policy_name(self, report: ImportReport, path: Path, scheduler: str) -> str:
        name = self.renames.get(scheduler, scheduler)
        self.names.append(scheduler)
        self.renamed.add(scheduler)
        if not is_policy_name(name):
            raise report.document.unusable_file(
                path, f"`{name}` is not a valid policy name; choose another with --name {scheduler}=NAME"
            )
        if name in self.result.policies:
            raise report.document.unusable_file(
                path, f"a policy `{name}` exists already; rename one with --name {scheduler}=NAME"
            )
        return name


def _report_schema_violations(report: ImportReport, schema_name: str, *, strict: bool) -> None:
    """Check the document against its schema. Old API versions ignore unknown fields; these are reported."""
    for violation in check_schema(report.document, schema_name):
        if strict or not violation.is_unknown_field:
            raise report.document.unusable_file(violation.path, violation.message)
        report.add_note(violation.path, "this field", f"{violation.message}, and ignored it")


_ONLY_ALPHA = (
    "schedulerName",
    "algorithmSource",
    "hardPodAffinitySymmetricWeight",
    "disablePreemption",
    "bindTimeoutSeconds",
    "plugins",
    "pluginConfig",
)


def _report_version_fields(report: ImportReport, config: Mapping[str, Any], version: ConfigVersion) -> None:
    """Report fields that the API version does not have."""
    for name in _ONLY_ALPHA:
        if version.rejects_unknown_fields and name in config:
            raise report.document.unusable_file((name,), f"{version.name} has no such field at the top level")
    for index, section in enumerate([config, *(config.get("profiles") or ())]):
        path: Path = () if index == 0 else ("profiles", index - 1)
        plugins = section.get("plugins") or {}
        if "multiPoint" in plugins and not version.multi_point:
            raise report.document.unusable_file(
                (*path, "plugins", "multiPoint"), f"{version.name} has no multiPoint"
            )
        if "unreserve" in plugins:
            if version.rejects_unknown_fields:
                raise report.document.unusable_file(
                    (*path, "plugins", "unreserve"), f"{version.name} has no such extension point"
                )
            report.add_not_imported(
                (*path, "plugins", "unreserve"),
                "plugins at unreserve",
                "a policy has no equivalent",
            )


def _legacy_policies(documents: Sequence[LocatedDocument]) -> dict[ConfigMapKey, LocatedDocument]:
    return {
        document.config_map: document
        for document in documents
        if document.config_map is not None and configuration_kind(document.value) == "Policy"
    }


def _policy_config_map(configuration: Mapping[str, Any]) -> ConfigMapKey | None:
    """The ConfigMap with the Policy that a v1alpha1 configuration refers to."""
    source = configuration.get("algorithmSource")
    policy = source.get("policy") if isinstance(source, dict) else None
    return config_map_key(policy.get("configMap")) if isinstance(policy, dict) else None


def _report_fields_beside_a_policy(report: ImportReport, config: Mapping[str, Any]) -> None:
    for name in ("plugins", "pluginConfig", "hardPodAffinitySymmetricWeight"):
        if config.get(name):
            report.add_not_imported((name,), name, "only the Policy that `algorithmSource` names is imported")


def _reject_volume_limits_plugins(report: ImportReport, path: Path, plugins: Mapping[str, Any]) -> None:
    for point, plugin_set in plugins.items():
        for index, plugin in enumerate((plugin_set or {}).get("enabled") or ()):
            if plugin["name"] in VOLUME_LIMITS_PLUGINS:
                raise report.document.unusable_file(
                    (*path, point, "enabled", index), f"`{plugin['name']}` was removed in v1"
                )


def _plugin_config(
    report: ImportReport, path: Path, entries: list[Mapping[str, Any]]
) -> dict[str, PluginArguments]:
    arguments: dict[str, PluginArguments] = {}
    for index, entry in enumerate(entries):
        if entry["name"] in arguments:
            raise report.document.unusable_file((*path, index), f"`{entry['name']}` has arguments already")
        arguments[entry["name"]] = PluginArguments((*path, index, "args"), entry.get("args") or {})
    return arguments


def _report_algorithm_source(report: ImportReport, config: Mapping[str, Any]) -> None:
    source = config.get("algorithmSource") or {}
    provider = source.get("provider")
    if provider not in (None, "DefaultProvider"):
        report.add_not_imported(
            ("algorithmSource", "provider"),
            f"provider {provider}",
            "only the plugins of DefaultProvider are imported; to pack pods as ClusterAutoscalerProvider does, use "
            "`replace score node_resources_fit weight 1 { strategy = most_allocated }`",
        )
    if "policy" in source:
        report.add_not_imported(
            ("algorithmSource", "policy"), "a Policy in another file or ConfigMap", "import it separately"
        )
