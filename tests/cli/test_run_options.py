"""Options of `run`, in the spelling of kube-scheduler too."""

import pytest
from click.testing import CliRunner

from policysched.cli.run import run
from policysched.config.settings import Settings
from policysched.runtime import program


@pytest.mark.parametrize(
    ("options", "elects"),
    [
        ([], True),
        (["--leader-elect"], True),
        (["--leader-elect=true"], True),
        (["--leader-elect=false"], False),
        (["--leader-elect", "false"], False),
        (["--no-leader-elect"], False),
        (["--leader-elect", "--http", ":0"], True),
    ],
)
def test_leader_election_is_switched_as_in_kube_scheduler(
    options: list[str], elects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Settings] = []
    monkeypatch.setattr(program, "run_program", lambda settings: started.append(settings) or 0)

    result = CliRunner().invoke(run, ["--policies", "kube-system/policies", *options])

    assert result.exit_code == 0, result.output
    assert [settings.lease is not None for settings in started] == [elects]


def test_another_value_is_an_error() -> None:
    result = CliRunner().invoke(run, ["--leader-elect=maybe"])

    assert result.exit_code == 2
    assert "'maybe' is not a valid boolean" in result.output
