"""A policy that is equal to kube-scheduler's default profile, as far as built-ins cover it."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from policysched.builtins.registry import KUBE_DEFAULT_VERSION
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program


@cache
def kube_default(release: str = KUBE_DEFAULT_VERSION) -> Program:
    """The policy includes `kube_default`, so that its rules are compared as well, and allows
    preemption as kube-scheduler does.
    """
    checked = check_text(
        f'policy test version 1\ninclude kube_default "{release}"\npreemption {{ victims = any }}\n'
    )
    assert checked.program is not None, checked.diagnostics
    return checked.program


def default_of_case(case: Mapping[str, Any]) -> Program:
    """That of the release that decided the case, which its `source` names; else of the newest."""
    recorded = re.search(r"kube-scheduler v(1\.\d+)\.", str(case.get("source", "")))
    return kube_default(recorded.group(1)) if recorded else kube_default()
