"""Flags over variables over the file, and where a mistake is."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from policysched.app.settings import BadSettings, Place, read_settings
from policysched.kube.bind import BindSettings
from policysched.kube.lease import LeaseSettings
from policysched.kube.report import ReportSettings
from policysched.schedule.limits import Limits
from policysched.schemas import schema
from policysched.serve.server import Address


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("policies: a/file\nhttp: :1\nbinding: {binders: 7}\nlog: {format: json, level: error}\n")
    environment = {"POLICYSCHED_HTTP": ":2", "POLICYSCHED_LOG__LEVEL": "debug", "PATH": "/bin"}

    settings = read_settings(file, environment, {"policies": "a/flag"})

    assert settings.policies == Place("a", "flag")
    assert settings.last_good == Place("a", "flag-last-good")
    assert settings.http == Address("0.0.0.0", 2)
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    assert settings.binding.binders == 7


def test_what_is_not_said_has_its_default() -> None:
    settings = read_settings(None, {}, {"policies": "a/b"})

    assert settings.lease == LeaseSettings()
    assert settings.reporting == ReportSettings()
    assert settings.limits == Limits()


def test_variables_are_numbers_and_truths_where_the_setting_is_one() -> None:
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
            "policies: a/b\nbinding:\n  binders: 0\n",
            "line 3: binding.binders: 0 is less than the minimum of 1",
        ),
        ("policies: a/b\nbindings: {}\n", "'bindings' was unexpected"),
        ("policies: here\n", "line 1: policies: `here` is not: NAMESPACE/NAME"),
        ("policies: [\n", "not YAML"),
        ("policies: 2026-99-99\n", "not YAML: month must be in 1..12"),
        ("- a\n", "(top level): ['a'] is not of type 'object'"),
        ("http: :80\n", "nothing says where the policies are"),
        ("policies: a/b\nleader_election: {duration_s: 5}\n", "retry_s < renew_deadline_s < duration_s"),
        ("policies: a/b\nhttp: ':99999'\n", "`:99999` is no address"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)

    with pytest.raises(BadSettings) as error:
        read_settings(file, {}, {})

    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_variable_is_refused_by_its_name() -> None:
    with pytest.raises(BadSettings, match="POLICYSCHED_BINDING__BINDER: "):
        read_settings(None, {"POLICYSCHED_BINDING__BINDER": "5"}, {"policies": "a/b"})


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("binding", BindSettings),
        ("reporting", ReportSettings),
        ("scheduling", Limits),
        ("leader_election", LeaseSettings),
    ],
)
def test_the_schema_offers_only_what_there_is(section: str, kind: Any) -> None:
    offered = set(schema("settings")["properties"][section]["properties"]) - {"enabled", "lease"}

    assert offered <= {one.name for one in fields(kind)}
