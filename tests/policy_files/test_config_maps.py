"""ConfigMaps in YAML: how long a file may be, and what is read of one."""

import pytest

from policysched.policy_files import config_maps
from policysched.policy_files.config_maps import DOCUMENT_CHARACTERS_MAX, read_config_maps
from policysched.policy_files.source_set import UnusableFile

CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: policies}
data:
  a.policy: |
    policy a version 1
"""


def long_document(characters: int) -> str:
    """A ConfigMap with as many short values as fit: the parser makes an object of each."""
    return CONFIG_MAP + "  k: v\n" * ((characters - len(CONFIG_MAP)) // 7 + 1)


def test_a_document_that_no_configmap_can_be_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 6 MB the parser made 1.2 GB."""
    text = f"{CONFIG_MAP}---\n{long_document(DOCUMENT_CHARACTERS_MAX)}"
    monkeypatch.setattr(config_maps, "read_yaml_documents", lambda _: pytest.fail("it is parsed"))

    with pytest.raises(UnusableFile, match=r"p\.yaml:7: a document of 2,097,\d\d\d characters, .* 1 MiB"):
        list(read_config_maps(text, "p.yaml"))


def test_a_file_may_have_many_configmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_maps, "DOCUMENT_CHARACTERS_MAX", 200)

    sets = list(read_config_maps("---\n".join([CONFIG_MAP] * 20), "p.yaml"))

    assert [list(source_set.sources) for source_set in sets] == [["a.policy"]] * 20
