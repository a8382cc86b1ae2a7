"""A built-in has a declaration, a kernel and a reference, and its page matches them."""

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
    assert all(files >= {"declaration", "kernel"} for files in modules.values())


def test_filters_and_scores_match_the_declarations() -> None:
    assert set(FILTERS) == {name for name, builtin in BUILTINS.items() if builtin.filters}
    assert set(SCORES) == {name for name, builtin in BUILTINS.items() if builtin.scores}


def test_the_page_of_the_built_ins_is_up_to_date() -> None:
    written = PAGE.read_text(encoding="utf-8")

    assert written == page(), "run: python -m tests.house.builtins_doc --update"


@pytest.mark.parametrize("name", list(BUILTINS))
def test_the_page_names_every_built_in_and_its_parameters(name: str) -> None:
    section = page().partition(f"## {name}\n")[2].partition("\n## ")[0]

    assert BUILTINS[name].source in section
    assert all(f"`{parameter.name}`" in section for parameter in BUILTINS[name].parameters)


@pytest.mark.parametrize("name", list(BUILTINS))
def test_the_page_describes_inputs_scoring_and_source_of_each_built_in(name: str) -> None:
    section = page().partition(f"## {name}\n")[2].partition("\n## ")[0]

    builtin = BUILTINS[name]
    for field in (*builtin.pod_reads, *builtin.node_reads):
        assert f"`{field}`" in section
    if builtin.filters and builtin.scores:
        assert "\nFilter" in section
    if builtin.scores:
        assert "\nScore" in section
    assert re.search(
        r"^- source: kubernetes v1\.36\.\d pkg/scheduler/framework/plugins/\w+", section, re.MULTILINE
    )


@pytest.mark.parametrize(
    "version", [version for version in KUBE_SCHEDULER_RELEASES if version != KUBE_DEFAULT_VERSION]
)
def test_the_page_lists_all_differences_of_an_older_release(version: str) -> None:
    (line,) = [one for one in page().splitlines() if one.startswith(f'| `"{version}"`')]

    release = KUBE_SCHEDULER_RELEASES[version]
    for name in (*release.missing_builtins, *release.builtins_without_score, *release.score_parameter_values):
        assert f"`{name}" in line
