"""CONTRIBUTING's claim about built-ins: one folder, one line in the registry, one reference implementation."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.docs import ROOT

NAME = "node_ready"
EXAMPLE = ROOT / "tests" / "house" / "example_builtin"

CHECKS = f"""
import json
from unittest.mock import patch

from tests.evaluate.test_builtins_property import FILTERS, test_a_filter_and_its_kernel_agree_on_every_node as agree
from tests.house.builtins_doc import page

from policysched.builtins.{NAME} import kernel
from policysched.builtins.{NAME}.declaration import DECLARATION
from policysched.lang.check import check_text
from policysched.text import Severity

def fails():
    try:
        agree({NAME!r})
    except AssertionError:
        return True
    return False

agree({NAME!r})
with patch.object(kernel._Filter, "rejected", lambda self, view: view.column(kernel._READY)):
    planted_bug_is_found = fails()
checked = check_text("policy test version 1\\nfilter {NAME}\\n")
print(json.dumps({{
    "in_property_test": {NAME!r} in FILTERS,
    "planted_bug_is_found": planted_bug_is_found,
    "diagnostics": [d.code for d in checked.diagnostics if d.severity is Severity.ERROR],
    "rules": [rule.name for rule in checked.program.rules.filters],
    "on_page": f"## {NAME}" in page() and DECLARATION.summary in page(),
}}))
"""


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of the project to which the example is added as CONTRIBUTING says."""
    unused = shutil.ignore_patterns(
        "__pycache__", "cases", "golden", "e2e", "simulation", "upstream", "page", "soak"
    )
    for folder_name in ("grammar", "policies", "policysched", "tests"):
        shutil.copytree(ROOT / folder_name, tmp_path / folder_name, ignore=unused)

    folder = tmp_path / "policysched" / "builtins" / NAME
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(EXAMPLE / "declaration.py", folder)
    shutil.copy(EXAMPLE / "kernel.py", folder)
    shutil.copy(EXAMPLE / "reference.py", tmp_path / "tests" / "reference" / "builtins" / f"{NAME}.py")

    registry = tmp_path / "policysched" / "builtins" / "registry.py"
    lines = registry.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(lines.index('    "node_unschedulable",\n') + 1, f'    "{NAME}",\n')
    registry.write_text("".join(lines), encoding="utf-8")
    return tmp_path


def test_a_built_in_needs_one_folder_one_line_and_a_reference_implementation(extended: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", CHECKS], cwd=extended, capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stderr[:6000]
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "in_property_test": True,
        "planted_bug_is_found": True,
        "diagnostics": [],
        "rules": [NAME],
        "on_page": True,
    }
