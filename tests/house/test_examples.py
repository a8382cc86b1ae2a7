"""The examples of a derandomized search are the same in each run."""

import importlib.util
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st


def test_the_examples_of_a_search_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    """Which modules are loaded depends on the tests that a worker has run before."""
    before = examples()

    source = tmp_path / "thousand_constants.py"
    source.write_text(f"CONSTANTS = {list(range(10**9, 10**9 + 1000))}", encoding="utf-8")
    load(source)

    assert examples() == before


def examples() -> list[int]:
    drawn = list[int]()

    @settings(max_examples=200, derandomize=True, database=None)
    @given(st.lists(st.integers()))
    def search(numbers: list[int]) -> None:
        drawn.extend(numbers)

    search()
    return drawn


def load(source: Path) -> None:
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None and spec.loader is not None
    sys.modules[source.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
