"""Policies from files: read flat, offered when they change, kept when they cannot be read."""

from pathlib import Path

import pytest

from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.policy_files.folder import PolicyFolder, read_policy_folder
from policysched.policy_files.source_set import UnusableFile


class Offered:
    def __init__(self, *paths: Path) -> None:
        self.seen: list[ConfigMapUpdated] = []
        self.folder = PolicyFolder(paths, self.seen.append)

    def looked(self) -> list[dict[str, str]]:
        self.folder.poll()
        return [dict(config_map.data) for config_map in self.seen]


def test_a_change_is_offered_whole_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "a.policy").write_text("one")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.policy").write_text("not flat")
    offered = Offered(tmp_path)

    unchanged = offered.looked()
    (tmp_path / "b.params.yaml").write_text("two")
    added = offered.looked()
    (tmp_path / "b.params.yaml").unlink()
    removed = offered.looked()

    assert (unchanged, added, removed[1:]) == (
        [],
        [{"a.policy": "one", "b.params.yaml": "two"}],
        [{"a.policy": "one"}],
    )
    assert len({config_map.resource_version for config_map in offered.seen}) == 2


def test_a_configmap_as_the_kubelet_mounts_it_is_exchanged_in_one_step(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "a.policy").write_text(f"text {number}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.policy").symlink_to("..data/a.policy")
    offered = Offered(tmp_path)

    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")

    assert offered.looked() == [{"a.policy": "text 2"}]


def test_a_removal_is_a_file_and_may_be_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "a.policy").write_text("one")
    (tmp_path / "Not A Name.removed").write_text("not ours")
    offered = Offered(tmp_path)

    (tmp_path / "batch.removed").write_text("use batch-v2")
    (tmp_path / "a.policy").unlink()

    assert offered.looked() == [{"batch.removed": "use batch-v2"}]
    assert read_policy_folder([tmp_path / "batch.removed"]) == {"batch.removed": "use batch-v2"}


def test_a_temporarily_unreadable_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.policy"
    file.write_text("one")
    offered = Offered(tmp_path)

    file.write_bytes(b"\xff\xfe\xff")
    broken = offered.looked()
    file.unlink()
    gone = offered.looked()
    file.write_text("two")

    assert (broken, gone, offered.looked()) == ([], [], [{"a.policy": "two"}])


def test_a_start_without_policies_and_two_files_of_one_name_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.policy").write_text("one")
    with pytest.raises(UnusableFile, match=r"no file there ends in \.policy"):
        PolicyFolder([tmp_path], lambda _: None)
    with pytest.raises(UnusableFile, match="no such file"):
        read_policy_folder([tmp_path / "none"])
    with pytest.raises(UnusableFile, match="another file has the same name"):
        read_policy_folder([tmp_path / "x", tmp_path / "x" / "a.policy"])
