"""How often `run` and `extender` make their app anew."""

import asyncio

import pytest

from policysched.config.settings import Settings, read_settings
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.process import run_until_exit

READ_AGAIN, STOPPED = (0, True), (0, False)


@pytest.mark.parametrize(
    ("results", "stops_at", "exit_code"),
    [
        ([STOPPED], None, 0),
        ([READ_AGAIN, READ_AGAIN, (3, False)], None, 3),
        ([READ_AGAIN, (4, True)], None, 4),
        ([READ_AGAIN, READ_AGAIN], 2, 0),
    ],
    ids=["stopped", "nothing to run", "the clock stepped as an object raised", "a signal as one raised"],
)
def test_the_next_app_gets_what_failed_until_one_ends_for_good(
    results: list[tuple[int, bool]], stops_at: int | None, exit_code: int
) -> None:
    given: list[FailedObjects] = []

    async def run_once(
        _settings: Settings, objects: FailedObjects, stop_requested: asyncio.Event
    ) -> tuple[int, bool]:
        given.append(objects)
        if len(given) == stops_at:
            stop_requested.set()
        return results[len(given) - 1]

    settings = read_settings(None, {}, {"policies": "kube-system/policies"})

    assert asyncio.run(run_until_exit(settings, run_once)) == exit_code
    assert given == [given[0]] * len(results)
