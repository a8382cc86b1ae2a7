"""Objects of which more is needed than was kept when they were decoded: they are read and decoded again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from policysched.kube.client.api import ApiErrors

CHECK_S = 1.0
"""How often such objects are looked for. All are visited only if the revision changed."""
_VISITED_MAX = 1_000
"""Between two pauses."""
_REST_SHARE = 10
"""After they were read, none is read for so many times as long: a team can change what its policy reads all the time."""


@dataclass(frozen=True, slots=True)
class OutdatedObjects:
    """`params_to_read`, of what an object was decoded to: how to list it again; None: it is up to date. That changes with
    `revision`."""

    revision: Callable[[], int]
    params_to_read: Callable[[object], Mapping[str, str] | None]


async def read_outdated(
    outdated: OutdatedObjects,
    decoded_objects: Callable[[], Mapping[str, object]],
    read_again: Callable[[str, Mapping[str, str]], Awaitable[None]],
) -> None:
    """Runs until cancelled. `decoded_objects`: what each object was decoded to, by key; empty before the first list. `read_again`
    may raise `ApiErrors`: then all are visited again."""
    visited_revision = 0
    while True:
        await asyncio.sleep(CHECK_S)
        revision = outdated.revision()
        if revision == visited_revision or not (objects := decoded_objects()):
            continue
        began_s = asyncio.get_running_loop().time()
        with suppress(*ApiErrors):
            for number, (key, decoded) in enumerate(objects.items()):
                if (params := outdated.params_to_read(decoded)) is not None:
                    await read_again(key, params)
                elif number % _VISITED_MAX == 0:
                    await asyncio.sleep(0)
            visited_revision = revision
        await asyncio.sleep(_REST_SHARE * (asyncio.get_running_loop().time() - began_s))
