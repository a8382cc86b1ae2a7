"""What a settings file says to the offline commands: how texts are checked, and what policies may do."""

from dataclasses import dataclass
from pathlib import Path

from policysched.config.settings import Settings, read_settings
from policysched.lang.ir.program import Program
from policysched.policy_files.checking import NO_SETTINGS, LoadRules
from policysched.scheduler.policies.policy_names import disallowed_name
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class SettingsRules:
    """The default is that of no settings file: every name is allowed, and no team owns one."""

    load: LoadRules = NO_SETTINGS
    permissions: PolicyPermissions = ANY_POLICY_NAME

    def problems(self, program: Program) -> tuple[Diagnostic, ...]:
        """Errors of a checked program that need the settings."""
        return disallowed_name(program, self.permissions)


def read_settings_rules(path: Path | None) -> SettingsRules:
    """Raises BadSettings."""
    if path is None:
        return SettingsRules()
    settings = read_settings(path, {}, {})
    return SettingsRules(load_rules(settings), settings.permissions)


def load_rules(settings: Settings) -> LoadRules:
    teams, permissions = settings.team_policies, settings.permissions
    return LoadRules(
        settings.params,
        settings.policy_cost_max,
        "" if teams is None else teams.required_base,
        settings.policy_cost_max if teams is None else teams.policy_cost_max,
        lambda policy: permissions.owner(policy) is not None,
    )
