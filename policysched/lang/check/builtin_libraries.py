"""Libraries that every policy can include by name: `include pod_groups`."""

from functools import cache

from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source

POD_GROUPS_TEXT = """\
library pod-groups version 1

gang by pod.group.name {
  min = pod.group.min
  timeout = pod.group.timeout else 5m
  on_timeout = requeue
  topology = pod.group.topology
  disruption = pod.group.disruption
}
"""
"""PodGroups as gangs. The timeout is that of kube-scheduler's gangs where the group has none."""

BUILTIN_LIBRARIES = {"pod_groups": POD_GROUPS_TEXT}
"""By name."""


@cache
def builtin_library(name: str) -> s.SyntaxTree:
    """The library, parsed."""
    document, diagnostics = parse(Source(name, BUILTIN_LIBRARIES[name]))
    assert not diagnostics, f"the library {name} has errors: {diagnostics}"
    return document
