"""From a file to policies, settings and the report: the whole way, for one file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.migrate.draft import can_name_a_policy, policy_text
from policysched.migrate.extenders import Extenders, extenders_of
from policysched.migrate.merging import merge
from policysched.migrate.old_policy import OldPolicy
from policysched.migrate.plugins import GROUP, VERSIONS, VOLUME_LIMITS, Version
from policysched.migrate.process_settings import settings_of
from policysched.migrate.profile import Arguments, Profile
from policysched.migrate.reading import Located, Path, check, documents, kind_of
from policysched.migrate.report import Item, Report
from policysched.policy_files.sources import UnusableFile

DEFAULT_NAME = "default-scheduler"


@dataclass(slots=True)
class Imported:
    """`policies` are texts by the policy's name, in the file's order. `settings` fit `schemas/settings.json`."""

    policies: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    not_imported: list[Item] = field(default_factory=list)
    notes: list[Item] = field(default_factory=list)


def import_config(text: str, name: str, renames: Mapping[str, str] | None = None) -> Imported:
    """`name` is what the file is called in messages; `renames` gives policies other names than the schedulerName.

    Raises UnusableFile, one line with a place, for what kube-scheduler itself would not start with.
    """
    importer = _Importer(dict(renames or {}))
    for document in documents(text, name):
        importer.take(document)
    unused = [old for old in importer.renames if old not in importer.renamed]
    if unused:
        known = ", ".join(importer.names) or "none"
        raise UnusableFile(f"{name}: no profile is called `{unused[0]}` (profiles: {known})")
    return importer.imported


@dataclass(slots=True)
class _Importer:
    renames: Mapping[str, str]
    imported: Imported = field(default_factory=Imported)
    renamed: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    extenders: Extenders = field(default_factory=Extenders)

    def take(self, document: Located) -> None:
        report = Report(document)
        match kind_of(document.value):
            case "Policy":
                self._old_policy(report)
            case "KubeSchedulerConfiguration":
                self._configuration(report)
            case _:
                raise document.fault((), "is neither a KubeSchedulerConfiguration nor an old Policy")
        self.imported.not_imported += report.not_imported
        self.imported.notes += report.notes

    def _old_policy(self, report: Report) -> None:
        _see_to_form(report, "kube-scheduler-policy", strict=False)
        given = report.document.value
        report.profile = 0
        self._take_extenders(report, given)
        name = self._name(report, (), DEFAULT_NAME)
        draft = OldPolicy(report, given, self.extenders.ignored_resources).draft(
            name, f"From {report.document.name}, an old Policy of kube-scheduler."
        )
        draft.extenders = self.extenders.statements
        self.imported.policies[name] = policy_text(draft)

    def _take_extenders(self, report: Report, given: Mapping[str, Any]) -> None:
        """They are asked by every policy of the file, as kube-scheduler asks them for every profile."""
        taken = self.extenders.settings  # of other documents in the file, whose policies ask their own
        self.extenders = extenders_of(report, given.get("extenders") or [], taken)
        if self.extenders.settings:
            self.imported.settings["extenders"] = self.extenders.settings

    def _configuration(self, report: Report) -> None:
        document, given = report.document, report.document.value
        version = VERSIONS.get(given.get("apiVersion"))
        if version is None:
            known = ", ".join(one.name for one in VERSIONS.values())
            raise document.fault(("apiVersion",), f"is not {GROUP}/ and one of {known}")
        _see_to_form(report, "kube-scheduler-configuration", strict=version.strict)
        _see_to_fields(report, given, version)
        self.imported.settings.update(settings_of(report, given))
        self._take_extenders(report, given)
        profiles = given.get("profiles") or [{}]
        at_top = not given.get("profiles")
        if at_top and not version.strict:
            _algorithm_source(report, given)
            profiles = [given]  # v1alpha1 has one profile, whose fields stand at the top
        for index, profile in enumerate(profiles):
            path: Path = () if at_top else ("profiles", index)
            self._profile(report, path, index, profile, version, alone=len(profiles) == 1)

    def _profile(
        self,
        report: Report,
        path: Path,
        index: int,
        given: Mapping[str, Any],
        version: Version,
        *,
        alone: bool,
    ) -> None:
        scheduler = given.get("schedulerName") or (DEFAULT_NAME if alone else None)
        if scheduler is None:
            raise report.document.fault(path, "one of several profiles needs a `schedulerName`")
        report.profile = index
        if path and "percentageOfNodesToScore" in given:
            report.note(
                (*path, "percentageOfNodesToScore"), "percentageOfNodesToScore", "all nodes are looked at"
            )
        name = self._name(report, (*path, "schedulerName"), scheduler)
        plugins = given.get("plugins") or {}
        if version.name == "v1":
            _no_old_limits(report, (*path, "plugins"), plugins)
        points = merge(report.document, (*path, "plugins"), plugins, version)
        config = _plugin_config(report, (*path, "pluginConfig"), given.get("pluginConfig") or [])
        if "hardPodAffinitySymmetricWeight" in given:
            weight = {"hardPodAffinityWeight": given["hardPodAffinitySymmetricWeight"]}
            config.setdefault(
                "InterPodAffinity", Arguments((*path, "hardPodAffinitySymmetricWeight"), weight)
            )
        shared: Path = ("profiles",) if path else ()
        left = self.extenders.ignored_resources
        draft = Profile(report, path, shared, points, config, left).draft(
            name,
            f"From {report.document.name}, profile {scheduler} of a KubeSchedulerConfiguration ({version.name}).",
        )
        if given.get("disablePreemption"):
            draft.preemption = "never"
        draft.extenders = self.extenders.statements
        self.imported.policies[name] = policy_text(draft)
        report.profile = None

    def _name(self, report: Report, path: Path, scheduler: str) -> str:
        name = self.renames.get(scheduler, scheduler)
        self.names.append(scheduler)
        self.renamed.add(scheduler)
        if not can_name_a_policy(name):
            raise report.document.fault(
                path, f"`{name}` cannot name a policy: give it another name, --name {scheduler}=NAME"
            )
        if name in self.imported.policies:
            raise report.document.fault(
                path, f"there is a policy `{name}` already: give one another name by --name"
            )
        return name


def _see_to_form(report: Report, schema_name: str, *, strict: bool) -> None:
    """What is not as the schema has it. Old versions pass over fields that they do not know; these are listed."""
    for one in check(report.document, schema_name):
        if strict or not one.unknown:
            raise report.document.fault(one.path, one.why)
        report.lose(one.path, "this field", one.why)


_ONLY_ALPHA = (
    "schedulerName",
    "algorithmSource",
    "hardPodAffinitySymmetricWeight",
    "disablePreemption",
    "bindTimeoutSeconds",
    "plugins",
    "pluginConfig",
)


def _see_to_fields(report: Report, given: Mapping[str, Any], version: Version) -> None:
    """Fields that only some versions have."""
    for name in _ONLY_ALPHA:
        if version.strict and name in given:
            raise report.document.fault((name,), f"{version.name} has no such field at the top")
    for index, one in enumerate([given, *(given.get("profiles") or ())]):
        path: Path = () if index == 0 else ("profiles", index - 1)
        plugins = one.get("plugins") or {}
        if "multiPoint" in plugins and not version.multi_point:
            raise report.document.fault((*path, "plugins", "multiPoint"), f"{version.name} has no multiPoint")
        if "unreserve" in plugins:
            if version.strict:
                raise report.document.fault(
                    (*path, "plugins", "unreserve"), f"{version.name} has no such point"
                )
            report.lose(
                (*path, "plugins", "unreserve"),
                "plugins at unreserve",
                "a policy has nothing for what they do there",
            )


def _no_old_limits(report: Report, path: Path, plugins: Mapping[str, Any]) -> None:
    for point, one in plugins.items():
        for index, plugin in enumerate((one or {}).get("enabled") or ()):
            if plugin["name"] in VOLUME_LIMITS:
                raise report.document.fault(
                    (*path, point, "enabled", index), f"`{plugin['name']}` is gone since v1"
                )


def _plugin_config(report: Report, path: Path, given: list[Mapping[str, Any]]) -> dict[str, Arguments]:
    found: dict[str, Arguments] = {}
    for index, one in enumerate(given):
        if one["name"] in found:
            raise report.document.fault((*path, index), f"`{one['name']}` has arguments already")
        found[one["name"]] = Arguments((*path, index, "args"), one.get("args") or {})
    return found


def _algorithm_source(report: Report, given: Mapping[str, Any]) -> None:
    source = given.get("algorithmSource") or {}
    provider = source.get("provider")
    if provider not in (None, "DefaultProvider"):
        report.lose(
            ("algorithmSource", "provider"),
            f"provider {provider}",
            "only the plugins of DefaultProvider are known; ClusterAutoscalerProvider packs, as "
            "`replace score node_resources_fit weight 1 { strategy = most_allocated }`",
        )
    if "policy" in source:
        report.lose(("algorithmSource", "policy"), "a Policy in another place", "import that file by itself")
