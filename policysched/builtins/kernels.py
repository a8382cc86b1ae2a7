"""The built-ins of kube-scheduler over columns, one module each, under the names that `builtins.registry` declares.

A module that filters has `bind_filter`, one that scores has `bind_score`; `COLUMNS`, where it has any, are the columns
that nearly every pod needs, made when a plan is prepared. The others are made when a pod first asks.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from policysched.builtins.registry import BUILTINS
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.kernel import Around, FilterKernel, Params, ScoreKernel
from policysched.model.objects import Pod

_MODULES = {name: import_module(f"policysched.builtins.{name}.kernel") for name in BUILTINS}

FILTERS: Mapping[str, Callable[[Pod, Params, Around], FilterKernel | None]] = {
    name: module.bind_filter for name, module in _MODULES.items() if BUILTINS[name].filters
}
SCORES: Mapping[str, Callable[[Pod, Params, Around], ScoreKernel | None]] = {
    name: module.bind_score for name, module in _MODULES.items() if BUILTINS[name].scores
}
COLUMNS: Mapping[str, tuple[ColumnKind, ...]] = {
    name: tuple(getattr(module, "COLUMNS", ())) for name, module in _MODULES.items()
}
