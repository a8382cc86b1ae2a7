"""`policysched import-config` from end to end."""

import json
from pathlib import Path

import pytest
import yaml

from policysched.config.settings import read_settings
from policysched.schemas import findings
from tests.cli.builders import run, write
from tests.migrate.helpers import config

TWO = config(
    "leaderElection: {resourceName: ours, resourceNamespace: team}\n"
    "profiles:\n"
    "- schedulerName: spread\n"
    "- schedulerName: pack\n"
    "  plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 7}]}}\n"
)


@pytest.fixture(autouse=True)
def everything_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this version leaves out of the defaults is the matter of other tests."""
    monkeypatch.setattr("policysched.migrate.profile.limitations", lambda _plugin: [])


def test_a_single_profile_is_printed_as_its_policy(tmp_path: Path) -> None:
    (path,) = write(tmp_path, scheduler_yaml=config("profiles: [{schedulerName: web}]\n"))

    done = run("import-config", path)

    assert done.code == 0
    assert done.out == (
        f"# From {path}, profile web of a KubeSchedulerConfiguration (v1).\n\n"
        "policy web version 1\n\ninclude kube_default\n\npreemption { victims = any }\n"
    )
    assert done.err == "1 policy, 0 not imported, 0 notes\n"


def test_parts_that_are_not_imported_are_on_stderr_and_in_the_exit_code(tmp_path: Path) -> None:
    (path,) = write(
        tmp_path,
        scheduler_yaml=config(
            "percentageOfNodesToScore: 10\nextenders:\n- urlPrefix: http://x\n  bindVerb: b\n"
        ),
    )

    done = run("import-config", path)

    assert done.code == 1
    assert done.err == (
        f"{path}:6:3: not imported: extenders[0].bindVerb: verb b of extender http://x: policysched binds pods itself\n"
        f"{path}:3:1: note: percentageOfNodesToScore: all nodes are evaluated\n"
        f"{path}:5:3: note: extenders[0]: extender http://x: it neither filters nor scores\n"
        "note: use --settings FILE to write policy_permissions for `policysched run`\n"
        "1 policy, 1 not imported, 2 notes\n"
    )


def test_standard_input_with_another_name_for_the_policy() -> None:
    done = run("import-config", "-", "--name", "default-scheduler=mine", stdin=config())

    assert done.code == 0
    assert "policy mine version 1" in done.out


def test_a_folder_gets_one_file_per_policy_and_existing_files_are_kept(tmp_path: Path) -> None:
    (path,) = write(tmp_path, scheduler_yaml=TWO)
    folder = tmp_path / "policies"

    first = run("import-config", path, "--output-dir", str(folder))
    again = run("import-config", path, "--output-dir", str(folder))
    (folder / "pack.policy").write_text("edited")
    forced = run("import-config", path, "--output-dir", str(folder), "--force")

    assert (first.code, first.out) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == ["pack.policy", "spread.policy"]
    assert (again.code, again.err) == (
        2,
        f"policysched: {folder / 'spread.policy'}: the file exists; use --force to overwrite it\n",
    )
    assert forced.code == 0
    assert "reweight node_resources_fit 7" in (folder / "pack.policy").read_text()


def test_a_config_map_can_be_linted_and_holds_every_policy(tmp_path: Path) -> None:
    (path,) = write(tmp_path, scheduler_yaml=TWO)

    done = run("import-config", path, "--output-format", "configmap", "--config-map", "team/rules")

    made = yaml.safe_load(done.out)
    assert (made["kind"], made["metadata"]) == ("ConfigMap", {"name": "rules", "namespace": "team"})
    assert list(made["data"]) == ["spread.policy", "pack.policy"]
    lint = run("lint", "-", "--fail-level", "warning", stdin=done.out)
    assert lint.code == 0, lint.out


def test_json_fits_its_schema(tmp_path: Path) -> None:
    (path,) = write(
        tmp_path, scheduler_yaml=TWO + "extenders: [{urlPrefix: http://x, preemptVerb: p}]\nparallelism: 4\n"
    )

    done = run("import-config", path, "--output-format", "json")

    answer = json.loads(done.out)
    assert done.code == 1
    assert findings("import-config", answer) == []
    assert list(answer["policies"]) == ["spread", "pack"]
    assert answer["settings"] == {"leader_election": {"lease": "team/ours"}}
    assert [item["where"] for item in answer["not_imported"]] == ["extenders[0].preemptVerb"]
    assert [note["where"] for note in answer["notes"]] == ["parallelism", "extenders[0]"]


def test_the_settings_are_a_file_that_run_reads(tmp_path: Path) -> None:
    (path,) = write(tmp_path, scheduler_yaml=TWO)
    file = tmp_path / "settings.yaml"

    without = run("import-config", path)
    done = run("import-config", path, "--settings", str(file))

    settings = read_settings(file, {}, {})
    assert done.code == 0
    assert settings.lease is not None and (settings.lease.namespace, settings.lease.name) == ("team", "ours")
    assert str(settings.policies) == "policysched/policies"
    assert "note: use --settings FILE to write leader_election" in without.err


def test_unreadable_input_is_reported_in_one_line_with_exit_2(tmp_path: Path) -> None:
    bad, latin = write(tmp_path, bad_yaml=config("profiles: 3\n"), latin_yaml="")
    Path(latin).write_bytes(b"kind: \xe4\n")

    results = [run("import-config", file) for file in (bad, latin, str(tmp_path / "none.yaml"))]

    assert [result.code for result in results] == [2, 2, 2]
    assert results[0].err == f"policysched: {bad}:3:1: profiles: is 3, expected a list or null\n"
    assert results[1].err == f"policysched: {latin}: not UTF-8 text (byte 6)\n"
    assert results[2].err == f"policysched: {tmp_path / 'none.yaml'}: no such file\n"
    assert all(result.out == "" for result in results)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--name", "a"),
        ("--name", "a=b", "--name", "a=c"),
        ("--config-map", "x"),
        ("--output-dir", "d", "--output-format", "json"),
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...]) -> None:
    done = run("import-config", "-", *arguments, stdin=config())

    assert done.code == 2
    assert len(done.err.splitlines()) == 1
