"""The example in docs/moving-from-kube-scheduler.md is the program's output."""

import re

import yaml

from tests.house.docs import ROOT
from tests.migrate.helpers import imported, of_the_file

PAGE = (ROOT / "docs" / "moving-from-kube-scheduler.md").read_text(encoding="utf-8")


def test_the_output_for_the_example_is_that_of_the_page() -> None:
    config, policy, settings = re.findall(
        r"^```(?:yaml|policy)[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )

    done = imported(config)

    assert list(done.policies) == ["batch"]
    assert done.policies["batch"] == policy
    assert {"policies": "policysched/policies", **done.settings} == yaml.safe_load(settings)
    assert of_the_file(done.not_imported) == []
