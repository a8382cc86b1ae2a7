"""A settings file that is changed while the process runs is reported, and not used."""

import logging
from pathlib import Path

import pytest

from policysched.config.settings import read_settings
from policysched.daemon.settings_watch import SettingsWatch


def test_a_changed_settings_file_is_reported_once_until_it_is_the_one_in_use_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "settings.yaml"
    file.write_text("policies: a/b\n")
    watch = SettingsWatch(read_settings(file, {}, {}).file)
    problems = []

    for content in ("policies: a/b\n", "policies: a/c\n", "policies: a/c\n", None, "policies: a/b\n"):
        file.unlink() if content is None else file.write_text(content)
        watch.poll()
        problems.append(bool(watch.problem))

    assert problems == [False, True, True, True, False]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.records[0].__dict__["file"] == str(file)


def test_without_a_settings_file_nothing_is_reported() -> None:
    watch = SettingsWatch(read_settings(None, {}, {"policies": "a/b"}).file)

    watch.poll()

    assert watch.problem == ""
