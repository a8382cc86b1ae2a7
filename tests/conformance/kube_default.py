"""A policy that is equal to kube-scheduler's default profile, as far as built-ins cover it."""

from functools import cache

from policysched.lang.check import check_text
from policysched.lang.ir.program import Program


@cache
def kube_default() -> Program:
    """The policy includes `kube_default`, so that its rules are compared as well, and allows
    preemption as kube-scheduler does.
    """
    checked = check_text("policy test version 1\ninclude kube_default\npreemption { victims = any }\n")
    assert checked.program is not None, checked.diagnostics
    return checked.program
