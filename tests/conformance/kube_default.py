"""The policy that says what kube-scheduler's default profile says, as far as built-ins cover it."""

from functools import cache

from policysched.lang.check import check_text
from policysched.lang.ir.program import Program


@cache
def kube_default() -> Program:
    """`include kube_default`, so that what it brings is compared as well, and kube-scheduler's rule of who may be evicted."""
    checked = check_text("policy test version 1\ninclude kube_default\npreemption { victims = any }\n")
    assert checked.program is not None, checked.diagnostics
    return checked.program
