"""The kernels of all built-ins by name, imported from the folders that `registry` lists.

A filter's module has `specialize_filter`, a score's `specialize_score`. Its optional `COLUMNS` are
the columns that nearly every pod needs, built with the plan; the others are built when a pod first
reads them.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from policysched.builtins.registry import BUILTINS
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.kernel import ClusterContext, FilterKernel, KernelParams, ScoreKernel
from policysched.model.pods import Pod

_MODULES = {name: import_module(f"policysched.builtins.{name}.kernel") for name in BUILTINS}

FILTER_KERNELS: Mapping[str, Callable[[Pod, KernelParams, ClusterContext], FilterKernel | None]] = {
    name: module.specialize_filter for name, module in _MODULES.items() if BUILTINS[name].filters
}
SCORE_KERNELS: Mapping[str, Callable[[Pod, KernelParams, ClusterContext], ScoreKernel | None]] = {
    name: module.specialize_score for name, module in _MODULES.items() if BUILTINS[name].scores
}
KERNEL_COLUMNS: Mapping[str, tuple[ColumnKind, ...]] = {
    name: tuple(getattr(module, "COLUMNS", ())) for name, module in _MODULES.items()
}
