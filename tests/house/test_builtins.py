"""Each built-in has a declaration, a kernel and a reference, and a section in docs/builtins.md."""

import re
from pathlib import Path
from pkgutil import iter_modules

import pytest

from policysched import builtins
from policysched.builtins.registry import BUILTINS, KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES
from tests import reference
from tests.house.builtins_doc import PAGE, page
from tests.reference.builtins import FILTERS, SCORES


def test_every_built_in_is_a_folder_with_a_declaration_a_kernel_and_a_reference() -> None:
    folders = {folder.name for folder in Path(builtins.__file__).parent.iterdir() if folder.is_dir()}
    modules = {
        folder: {file.stem for file in (Path(builtins.__file__).parent / folder).glob("*.py")}
        for folder in folders - {"__pycache__"}
    }
    references = {module.name for module in iter_modules([str(Path(reference.__file__).parent / "builtins")])}

    assert modules.keys() == references == set(BUILTINS)
    assert {name for name, files in modules.items() if not files >= {"declaration", "kernel"}} == set()


def test_the_references_filter_and_score_as_the_built_ins_are_declared() -> None:
    assert set(FILTERS) == {name for name, builtin in BUILTINS.items() if builtin.filters}
    assert set(SCORES) == {name for name, builtin in BUILTINS.items() if builtin.scores}


def test_the_page_of_the_built_ins_is_up_to_date() -> None:
    assert written_page() == page(), "run: python -m tests.house.builtins_doc --update"


@pytest.mark.parametrize("name", list(BUILTINS))
def test_the_page_names_every_built_in_and_its_parameters(name: str) -> None:
    section = section_of(name)

    assert BUILTINS[name].source in section
    declared = {
        parameter.name for parameter in (*BUILTINS[name].filter_parameters, *BUILTINS[name].parameters)
    }
    assert set(re.findall(r"^- `(\w+)`(?: of the \w+)? \(", section, re.MULTILINE)) == declared


@pytest.mark.parametrize("name", list(BUILTINS))
def test_the_page_says_what_each_built_in_reads_how_it_scores_and_its_source(name: str) -> None:
    section = section_of(name)

    builtin = BUILTINS[name]
    (reads,) = re.findall(r"^- reads of the pod: .+", section, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", reads)) == {*builtin.pod_reads, *builtin.node_reads}
    assert ("\nfilter " in section, "\nscore " in section) == (builtin.filters, builtin.scores)
    if builtin.filters and builtin.scores:
        assert "\nFilter" in section
    if builtin.scores:
        assert "\nScore" in section
    assert re.search(
        r"^- source: kubernetes v1\.37\.\d pkg/scheduler/framework/plugins/\w+", section, re.MULTILINE
    )


def test_the_page_lists_every_difference_of_a_release() -> None:
    header, *rows = [
        line.strip("| ").split(" | ") for line in section_of("Releases").splitlines() if "|" in line
    ]
    assert header == [f'`"{version}"`' for version in KUBE_SCHEDULER_RELEASES]
    table = {title: dict(zip(KUBE_SCHEDULER_RELEASES, cells, strict=True)) for title, *cells in rows[1:]}

    first = table.pop("first filters")
    for version, release in KUBE_SCHEDULER_RELEASES.items():
        assert first[version] == ", ".join(f"`{name}`" for name in release.default_filters[:2])
        for name in release.missing_builtins:
            assert table[f"`{name}`"][version] == "no"
        for name in release.builtins_without_score:
            assert table[f"score of `{name}`"][version] == "no"
        values = (*release.filter_parameter_values.items(), *release.score_parameter_values.items())
        for name, words in values:
            for parameter, word in words.items():
                assert table[f"`{name} {{ {parameter} }}`"][version] == f"`{word}`"
    assert table, "the releases differ by more than their first filters"
    newest = {title: cells[KUBE_DEFAULT_VERSION] for title, cells in table.items()}
    assert "no" not in [word for title, word in newest.items() if not title.startswith("message")]
    assert all(len(set(cells.values())) > 1 for cells in table.values())


def written_page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section_of(name: str) -> str:
    """The section of a built-in in the page as committed, not as generated now."""
    _, heading, rest = written_page().partition(f"## {name}\n")
    assert heading, f"{PAGE.name} has no section `{name}`"
    return rest.partition("\n## ")[0]
