"""The generated parts of the documentation.

    python -m tests.house.docs [--update]

A whole page is made by a function; in a page that people write, a table stands between `<!-- generated: NAME -->` and
`<!-- end -->`. Without `--update` it lists what is out of date, and exits with 1 where something is.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.house import (
    attributes_doc,
    builtins_doc,
    commands_doc,
    coverage_doc,
    metrics_doc,
    offline_doc,
    rules_doc,
    settings_doc,
)

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m tests.house.docs --update"

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/attributes.md": attributes_doc.page,
    "docs/builtins.md": builtins_doc.page,
    "docs/commands.md": commands_doc.page,
    "docs/rules.md": rules_doc.page,
}
"""Made whole, by path."""

SECTIONS: Mapping[str, Callable[[], str]] = {
    "covered": coverage_doc.covered,
    "not carried out": coverage_doc.not_carried_out,
    "not covered": coverage_doc.not_covered,
    "explain": offline_doc.explain,
    "metrics": metrics_doc.table,
    "metrics of kube scheduler": metrics_doc.not_here,
    "settings": settings_doc.table,
    "show": offline_doc.show,
    "simulate": offline_doc.simulate,
    "test file": offline_doc.test_file,
    "test run": offline_doc.test_run,
    "units": attributes_doc.units,
}
"""Parts of pages, by the name in the mark."""

_MARKED = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written_pages() -> list[Path]:
    """What people read: the README and its like, and everything in docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def should_be(path: Path) -> str:
    """The page with everything that is generated made anew. KeyError: a mark names no section."""
    whole = PAGES.get(path.relative_to(ROOT).as_posix())
    if whole is not None:
        return whole()
    return _MARKED.sub(
        lambda match: f"{match[1]}\n{SECTIONS[match[2]]().strip()}\n\n{match[3]}",
        path.read_text(encoding="utf-8"),
    )


def marks() -> Iterator[str]:
    """The sections that are used somewhere."""
    for path in written_pages():
        yield from (match[2] for match in _MARKED.finditer(path.read_text(encoding="utf-8")))


def behind() -> list[Path]:
    paths = dict.fromkeys([*written_pages(), *(ROOT / page for page in PAGES)])
    return [
        path for path in paths if not path.exists() or path.read_text(encoding="utf-8") != should_be(path)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The generated parts of the documentation.")
    parser.add_argument("--update", action="store_true", help="write them")
    update = parser.parse_args(arguments).update
    out_of_date = behind()
    for path in out_of_date:
        if update:
            path.write_text(should_be(path), encoding="utf-8")
        print(f"{path.relative_to(ROOT)} {'written' if update else 'is out of date'}")
    return int(bool(out_of_date) and not update)


if __name__ == "__main__":
    sys.exit(main())
