"""Objects of which more is needed than was kept when they were decoded: they are read and decoded again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from policysched.kube.client.api import ApiErrors

CHECK_S = 1.0
"""How often such objects are looked for. All are visited only if the revision changed, or one was decoded with an older one."""
_VISITED_MAX = 1_000
"""Between two pauses."""
_REST_SHARE = 10
"""After they were read, none is read for so many times as long: a team can change what its policy reads all the time."""


@dataclass(slots=True)
class OutdatedObjects:
    """`params_to_read`, of what an object was decoded to: how to list it again; None: it is up to date. That changes with
    `revision`. `late`: how many were outdated when a thread had decoded them."""

    revision: Callable[[], int]
    params_to_read: Callable[[object], Mapping[str, str] | None]
    late: int = 0

    def decoded_beside(self, decoded: object) -> None:
        """A thread has decoded an object, and the revision may have changed meanwhile."""
        self.late += self.params_to_read(decoded) is not None


async def read_outdated(
    outdated: OutdatedObjects,
    decoded_objects: Callable[[], Mapping[str, object]],
    read_again: Callable[[str, Mapping[str, str]], Awaitable[None]],
) -> None:
    """Runs until cancelled. `decoded_objects`: what each object was decoded to, by key; empty before the first list. `read_again`
    may raise `ApiErrors`: then all are visited again."""
    visited = 0, 0
    while True:
        await asyncio.sleep(CHECK_S)
        current = outdated.revision(), outdated.late
        if current == visited or not (objects := decoded_objects()):
            continue
        began_s = asyncio.get_running_loop().time()
        with suppress(*ApiErrors):
            for number, (key, decoded) in enumerate(objects.items()):
                if (params := outdated.params_to_read(decoded)) is not None:
                    await read_again(key, params)
                elif number % _VISITED_MAX == 0:
                    await asyncio.sleep(0)
            visited = current
        await asyncio.sleep(_REST_SHARE * (asyncio.get_running_loop().time() - began_s))
