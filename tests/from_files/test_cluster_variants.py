"""A cluster that is loaded once gives with each change what `simulate` gives on the changed files."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from policysched.from_files import cluster_variants as module
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.cluster_variants import ClusterVariants, NotTried
from policysched.from_files.simulate import SimulationResult, simulate
from policysched.lang.ir.program import Program
from policysched.offline.gang_proposals import (
    uncordoned,
    with_added_nodes,
    with_minimum,
    with_node,
    with_placed,
)
from tests.explanations.gang_scenes import PROGRAMS, Scene
from tests.scheduler.rig import START_NS

SEEDS = range(12)


def changes(scene: Scene, files: ClusterFiles) -> Iterator[tuple[Program, ClusterFiles]]:
    yield scene.program, files
    yield scene.program, with_added_nodes(files, files.nodes[0], 5)
    yield with_minimum(scene.program, 1), files
    for node in files.nodes:
        yield scene.program, with_node(files, uncordoned(node))
    for other in scene.others:
        yield scene.program, with_placed(files, {other.pod.full_name: scene.nodes[-1].name})
    yield scene.program, files


def differing(seed: int) -> list[int]:
    """The changes of a scene after which the result is another one than that of `simulate`."""
    scene = Scene(seed)
    files = scene.files(scene.minimum, scene.asked)
    variants = ClusterVariants(scene.program.name, files, {}, now_ns=START_NS)
    return [
        number
        for number, (program, changed) in enumerate(changes(scene, files))
        if variants.simulate(program, changed)
        != simulate(program, changed, samples={}, scope="named", now_ns=START_NS)
    ]


def test_forked_simulations_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORKED_FROM_OBJECTS", 0)

    assert [seed for seed in SEEDS if differing(seed)] == []


def test_a_simulation_that_changes_the_loaded_cluster_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORKED_FROM_OBJECTS", 0)
    monkeypatch.setattr(module, "_in_a_fork", lambda job, _deadline_s: job())

    assert any(differing(seed) for seed in SEEDS)


def _variants() -> tuple[ClusterVariants, ClusterFiles]:
    scene = Scene(0)
    files = scene.files(scene.minimum, scene.asked)
    return ClusterVariants(scene.program.name, files, {}, now_ns=START_NS), files


def _placing(monkeypatch: pytest.MonkeyPatch, does: Callable[[], None]) -> None:
    def place(*_arguments: object, **_named: object) -> SimulationResult:
        does()
        raise AssertionError("not reached")

    monkeypatch.setattr(module, "FORKED_FROM_OBJECTS", 0)
    monkeypatch.setattr(module, "place_pending", place)


def test_a_simulation_is_cut_off_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    _placing(monkeypatch, signal.pause)
    variants, files = _variants()

    with pytest.raises(NotTried, match="no time left"):
        variants.simulate(PROGRAMS[0], files, time.monotonic() + 0.3)


def test_nothing_is_tried_after_the_deadline() -> None:
    variants, files = _variants()

    with pytest.raises(NotTried, match="no time left"):
        variants.simulate(PROGRAMS[0], files, time.monotonic())


def test_a_process_that_is_killed_leaves_the_result_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    _placing(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))
    variants, files = _variants()

    with pytest.raises(NotTried, match="its process ended with -9"):
        variants.simulate(PROGRAMS[0], replace(files))
