"""What all tests share: fixture plugins, and the tiers.

`make test` runs everything. `make check`, for every save, leaves out the folders that need a
control plane, processes or minutes (`SLOW_TIERS` in the Makefile) and the modules listed here:
random searches, planted bugs and commands as processes.
"""

import gc
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

from policysched.gc_tuning import raise_gc_thresholds
from tests.order import in_order_for_workers, is_waiting

pytest_plugins = [
    "tests.controlplane.fixtures",
    "tests.helm.fixtures",
    "tests.page.fixtures",
    "tests.prometheus.fixtures",
    "tests.upstream.fixtures",
    "tests.workloads.fixtures",
    "tests.language.update_golden",
]

SEARCHES = {
    "cli/test_closed_pipe.py",
    "cli/test_demo.py",
    "cli/test_diff_recording.py",
    "cli/test_grammar_cache.py",
    "cli/test_kubectl.py",
    "cli/test_kubectl_clients.py",
    "cli/test_moving_over.py",
    "cli/test_tutorial.py",
    "comparison/test_causes.py",
    "comparison/test_recordings.py",
    "daemon/test_policy_checker.py",
    "evaluate/test_builtins_property.py",
    "evaluate/test_devices_property.py",
    "evaluate/test_invariants.py",
    "evaluate/test_reference_property.py",
    "evaluate/test_reference_property_bugs.py",
    "evaluate/test_refresh.py",
    "evaluate/test_shadow_rules.py",
    "evaluate/test_totals_in_steps.py",
    "evaluate/test_volumes_property.py",
    "evaluate/test_volumes_property_bugs.py",
    "explanations/test_gang_proposals.py",
    "explanations/test_proposals.py",
    "from_files/test_cluster_variants.py",
    "house/test_extending.py",
    "house/test_packaging.py",
    "kube/test_pod_resources_property.py",
    "kube/test_shapes.py",
    "language/check/test_never_raises.py",
    "language/check/test_soundness.py",
    "language/check/test_strategies.py",
    "live/test_live_and_offline.py",
    "live/test_page_proxy.py",
    "live/test_pages.py",
    "recording/test_replay.py",
    "scheduler/test_victim_selection.py",
    "scheduler/test_gang_bind_failures.py",
    "scheduler/test_no_overtaking.py",
    "scheduler/test_nominated.py",
    "scheduler/test_order_over_time.py",
    "scheduler/test_pauses.py",
    "scheduler/test_quota_histories.py",
    "scheduler/test_running_gangs.py",
    "scheduler/test_state_machine.py",
    "scheduler/test_steps.py",
    "scheduler/test_volumes_with_faults.py",
    "shadow/test_rights.py",
}
HERE = Path(__file__).parent

raise_gc_thresholds()  # as a command does; with Python's thresholds a test run takes more CPU time
# Hypothesis also draws the constants of all loaded modules of the product. Which are loaded depends on the tests that the
# worker has run, so without this a derandomized search has other examples in each run and misses a planted bug in some.
providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _module_of(item) in SEARCHES:
            item.add_marker(pytest.mark.search)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        for item in items:
            if item.get_closest_marker("control_plane") and not is_waiting(_module_of(item)):
                raise pytest.UsageError(
                    f"{item.nodeid} has a control plane: name its module in tests/order.py"
                )
        items[:] = in_order_for_workers(items, _module_of, workers)


def _module_of(item: pytest.Item) -> str:
    return _below_tests(item.path)


@cache
def _below_tests(path: Path) -> str:
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else path.as_posix()


def pytest_collection_finish() -> None:
    # Thousands of tests and their modules, which every full collection would visit.
    gc.collect()
    gc.freeze()
