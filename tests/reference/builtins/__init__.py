"""The built-ins of kube-scheduler, one plain module each, under the names that `builtins.registry` declares.

A module that filters has `refuse`, one that scores has `score`; `prefilter` says why a pod is refused whatever the
node, and `refuse` says the same of each. Each docstring gives the formula, and
`docs/builtins.md` is made from it.
"""

from importlib import import_module

from policysched.builtins.registry import BUILTINS
from tests.reference.builtin_interface import FilterFunction, PreFilterFunction, ScoreFunction

_MODULES = {name: import_module(f"{__name__}.{name}") for name in BUILTINS}

FILTERS: dict[str, FilterFunction] = {
    name: module.filter_node for name, module in _MODULES.items() if BUILTINS[name].filters
}
PREFILTERS: dict[str, PreFilterFunction] = {
    name: module.prefilter for name, module in _MODULES.items() if hasattr(module, "prefilter")
}
SCORES: dict[str, ScoreFunction] = {
    name: module.score for name, module in _MODULES.items() if BUILTINS[name].scores
}
