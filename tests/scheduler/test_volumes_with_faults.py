"""Pods with volumes under faults: no pod is bound before its claims, no volume is reserved twice, and in
the end no pod waits that could be placed."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.scheduler.prebind import Prebinder
from tests.scheduler.volume_world import run_world


@pytest.mark.parametrize("seed", range(60))
def test_volumes_are_bound_once_and_before_their_pods(seed: int) -> None:
    assert run_world(seed) == []


@pytest.mark.parametrize(
    ("where", "part", "planted"),
    [
        (VolumeCache, "reserve", lambda *_: None),
        (VolumeCache, "unreserve", lambda *_: frozenset()),
        (Prebinder, "_is_bound", lambda *_: True),
        (Prebinder, "_is_provisioned", lambda *_: True),
        (Prebinder, "abort", lambda *_: None),
        (Prebinder, "recheck", lambda *_, **__: None),
    ],
    ids=[
        "a volume is given twice",
        "what is promised is never given back",
        "nobody waits for a claim",
        "nobody waits for a volume to be made",
        "a pod that is gone is waited for",
        "what the watch shows is not looked at",
    ],
)
def test_a_planted_bug_is_found(
    where: Any, part: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, part, planted)

    mistakes = False
    for seed in range(60):
        try:
            mistakes = bool(run_world(seed))
        except (AssertionError, KeyError):
            mistakes = True
        if mistakes:
            break

    assert mistakes
