"""While a large object is decoded, the event loop has most of the interpreter."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from policysched.kube.decode import rests
from policysched.kube.decode.pods import decode_pod
from policysched.kube.decode.rests import ITEMS_PER_PIECE, in_pieces, rests_between_pieces
from tests.builders import pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.kube.test_reflector import ReflectorHarness
from tests.kube.world import Script, event, listed, on_virtual_time, running, until, versioned

LONG = range(10 * ITEMS_PER_PIECE)
AFFINITY = "anti-affinity by host that selects nothing"


@pytest.fixture
def rested_s() -> Iterator[list[float]]:
    rested: list[float] = []
    with patch.object(rests.time, "sleep", rested.append):
        yield rested


def test_a_thread_that_rests_does_so_after_each_piece_of_a_long_list(rested_s: list[float]) -> None:
    with rests_between_pieces():
        assert list(in_pieces(LONG)) == list(LONG)

    assert len(rested_s) == 10 and min(rested_s) > 0


def test_short_lists_and_other_threads_do_not_rest(rested_s: list[float]) -> None:
    with rests_between_pieces():
        assert list(in_pieces(LONG[:ITEMS_PER_PIECE])) == list(LONG[:ITEMS_PER_PIECE])
        assert list(in_pieces(None)) == []
        thread = threading.Thread(target=lambda: list(in_pieces(LONG)))
        thread.start()
        thread.join()
    assert list(in_pieces(LONG)) == list(LONG)

    assert rested_s == []


@pytest.mark.parametrize(
    "kind", [AFFINITY, "preferred affinity by zone", "tolerations", "hard spread constraints"]
)
def test_the_lists_that_take_long_are_decoded_with_rests(kind: str, rested_s: list[float]) -> None:
    manifest = {**pod_manifest("large"), "spec": HOSTILE_SPECS[kind](1_000)}
    with rests_between_pieces():
        decoded = decode_pod(manifest)

    assert len(rested_s) >= 1_000 // ITEMS_PER_PIECE
    assert decoded == decode_pod(manifest)


async def beside(function: Callable[[], Any], /) -> Any:
    return function()


def test_the_reflector_decodes_large_objects_with_rests(rested_s: list[float]) -> None:
    def versions(number: int) -> dict[str, object]:
        return versioned({**pod_manifest(f"large-{number}"), "spec": HOSTILE_SPECS[AFFINITY](1_000)}, number)

    async def scenario() -> None:
        expired = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
        transport = Script(
            [listed(10), listed(20, versions(19))], [[expired], [event("ADDED", versions(21))], []]
        )
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: len(harness.events) == 2, "both")

    on_virtual_time(scenario)

    assert len(rested_s) >= 2 * (1_000 // ITEMS_PER_PIECE)
