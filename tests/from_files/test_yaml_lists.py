"""A List that is read item by item has the values that the whole text has."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policysched.from_files import yaml_lists
from policysched.from_files.cluster_files import read_cluster_files
from policysched.from_files.yaml_lists import read_list_by_items
from policysched.yaml_values import read_yaml_documents
from tests.builders import pod_manifest

TEXTS = (
    *("plain", "", "- a", "- a\n- b\n", "kind: x", "items:\n- z", " lead", "trail \n\n", "# c", "---", "..."),
    *("a: &b *b", "*x", "&x", "'q'", '"q"', "0x1", "null", "1_000", "line\n\n- line\n", "ü\t", "%TAG"),
)


def value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(6 if depth < 3 else 3)
    if kind == 0:
        return dice.choice((None, True, 7, -1.5, 10**20))
    if kind < 3:
        return dice.choice(TEXTS)
    if kind == 3:
        return [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(("kind", "items", "a", "b c", "- d")): value(dice, depth + 1) for _ in range(3)}


def whole(text: bytes) -> Any:
    (document,) = read_yaml_documents(text)
    return document.construct()


def check(seed: int) -> bool:
    """Whether the text has the form that is read by items."""
    dice = random.Random(seed)
    document = {
        "apiVersion": "v1",
        "items": [{"kind": "Pod", "spec": value(dice)} for _ in range(dice.randrange(1, 8))],
        "kind": "List",
        "metadata": value(dice),
    }
    style: Any = dice.choice((None, None, None, '"', "|"))
    text = yaml.safe_dump(
        document, default_style=style, width=dice.choice((20, 80)), allow_unicode=True
    ).encode()
    by_items = read_list_by_items(text)
    assert by_items is None or by_items == whole(text), text.decode()
    return by_items is not None


def check_all() -> None:
    assert sum(check(seed) for seed in range(200)) > 80


def test_items_have_the_values_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_lists, "_BYTES_PER_PART", 60)

    check_all()


def test_a_part_that_begins_inside_of_an_item_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: also an indented `- ` begins an item."""
    monkeypatch.setattr(yaml_lists, "_BYTES_PER_PART", 60)
    monkeypatch.setattr(yaml_lists, "_ITEM", re.compile(rb"^ *- ", re.MULTILINE))

    with pytest.raises(AssertionError):
        check_all()


@pytest.mark.parametrize(
    "text",
    [
        b"kind: List\nitems:\n- a: &x 1\n- a: *x\n",
        b"---\nitems:\n- a: 1\n---\nkind: Pod\n",
        b"items:\n- a: 1\nkind: List\nitems: []\n",
        b"items:\n- 'open\n- a: 1\nkind: List'\n",
        b"items:\n  - a: 1\n",
        b"items: [1, 2]\n",
        b"items:\n- a: [\nkind: List\n",
    ],
)
def test_another_form_is_read_whole(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_lists, "_BYTES_PER_PART", 1)

    assert read_list_by_items(text) is None


def test_the_progress_of_a_long_file_is_shown(tmp_path: Path) -> None:
    pods = [pod_manifest(f"p{index}", cpu="1") for index in range(2 * 2**20 // 400)]
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.dump({"kind": "List", "items": pods}, Dumper=yaml.CSafeDumper, sort_keys=True))
    shown: list[tuple[str, int, int]] = []

    files = read_cluster_files([str(file)], lambda *arguments: shown.append(arguments))

    assert len(files.pods) == len(pods)
    size = file.stat().st_size
    assert {(label, total) for label, _, total in shown} == {(f"reading {file}", size)}
    done = [number for _, number, _ in shown]
    assert done == sorted(done)
    assert len(done) > 3
    assert size / 2 < done[-1] < size
