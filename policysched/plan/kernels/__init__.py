"""The built-ins of kube-scheduler over columns, one module each, under the names that `lang.builtins` declares.

A module that filters has `bind_filter`, one that scores has `bind_score`; `COLUMNS`, where it has any, are the columns
that nearly every pod needs, made when a plan is prepared. The others are made when a pod first asks.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from policysched.cluster.objects import Pod
from policysched.lang.builtins import BUILTINS
from policysched.plan.column_kinds import ColumnKind
from policysched.plan.kernel import Around, FilterKernel, Params, ScoreKernel

_MODULES = {name: import_module(f"{__name__}.{name}") for name in BUILTINS}

FILTERS: Mapping[str, Callable[[Pod, Params, Around], FilterKernel | None]] = {
    name: module.bind_filter for name, module in _MODULES.items() if BUILTINS[name].filters
}
SCORES: Mapping[str, Callable[[Pod, Params, Around], ScoreKernel | None]] = {
    name: module.bind_score for name, module in _MODULES.items() if BUILTINS[name].scores
}
COLUMNS: Mapping[str, tuple[ColumnKind, ...]] = {
    name: tuple(getattr(module, "COLUMNS", ())) for name, module in _MODULES.items()
}
