"""The reference implementation of kube-scheduler's built-ins: one module each, named as in
`builtins.registry`.

A filter has `filter_node`, a score has `score`; `prefilter` says why a pod is rejected on all
nodes, and `filter_node` then rejects each node with the same reason. The docstrings state the
rules; `docs/builtins.md` is generated from them.
"""

from importlib import import_module

from policysched.builtins.registry import BUILTINS
from tests.reference.builtin_interface import (
    AttemptErrorFunction,
    FilterFunction,
    PreFilterFunction,
    ScoreFunction,
)

_MODULES = {name: import_module(f"{__name__}.{name}") for name in BUILTINS}

FILTERS: dict[str, FilterFunction] = {
    name: module.filter_node for name, module in _MODULES.items() if BUILTINS[name].filters
}
PREFILTERS: dict[str, PreFilterFunction] = {
    name: module.prefilter for name, module in _MODULES.items() if hasattr(module, "prefilter")
}
ATTEMPT_ERRORS: dict[str, AttemptErrorFunction] = {
    name: module.attempt_error for name, module in _MODULES.items() if hasattr(module, "attempt_error")
}
SCORES: dict[str, ScoreFunction] = {
    name: module.score for name, module in _MODULES.items() if BUILTINS[name].scores
}
