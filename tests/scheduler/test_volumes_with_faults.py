"""Pods with volumes under faults: no pod is bound before its claims, no volume is reserved twice, and in
the end no pod waits that could be placed."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.scheduler.blame import RaisedFor
from policysched.scheduler.prebind import Prebinder
from tests.scheduler.volume_world import run_world


@pytest.mark.parametrize("seed", range(60))
def test_volumes_are_bound_once_and_before_their_pods(seed: int) -> None:
    assert run_world(seed) == []


@pytest.mark.parametrize(
    ("owner", "name", "bug", "complaint"),
    [
        (VolumeCache, "reserve", lambda *_: None, " is given to "),
        (VolumeCache, "unreserve", lambda *_: frozenset(), "which is not in PreBind"),
        (Prebinder, "_is_bound", lambda *_: True, "is bound before its claim"),
        (Prebinder, "_is_provisioned", lambda *_: True, "is bound before its claim"),
        (Prebinder, "abort", lambda *_: None, "is unknown, cannot be marked as prebound"),
        (Prebinder, "recheck", lambda *_, **__: None, "is pending although it fits"),
    ],
    ids=[
        "a volume is reserved twice",
        "a reservation is never released",
        "a pod is bound before its claims",
        "a pod is bound before its volume is provisioned",
        "prebinding of a deleted pod goes on",
        "events do not recheck prebinding pods",
    ],
)
def test_planted_bug_is_detected(
    owner: Any, name: str, bug: Callable[..., Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the complaint that the bug deserves: any other failure of the run is an error of the test."""
    monkeypatch.setattr(owner, name, bug)

    assert any(complaint in message for seed in range(60) for message in complaints(seed))


def complaints(seed: int) -> list[str]:
    """What is wrong in the world of this seed, or the assertion of the product that ended its run."""
    try:
        return run_world(seed)
    except AssertionError as error:
        return [str(error)]
    except RaisedFor as error:
        return [str(error.__cause__)]
