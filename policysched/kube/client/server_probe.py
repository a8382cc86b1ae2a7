"""Distinguishes a server that does not answer from a namespace whose webhook does not.

    answered ──a write of a namespace has no answer──► doubted ──GET /version──► answered
                                                          └── no answer ──► failed, asked again each second

A webhook can keep a write unanswered, or make the server close its connection, for as long as it likes, and there may be
nothing else to write. No webhook can delay a read, so `/readyz` and the log judge the server by its answer to one.
"""

import asyncio

from policysched.kube.client.api import ApiClient, ApiStatusError, InvalidResponse, ServerError, Unauthorized
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import TransportError

RETRY_S = 1.0
INTERVAL_S = 5.0
"""From an answered probe to the next, however many writes have no answer."""
_TIMEOUT_S = 5.0
_ACTIVITY = "asking the server for its version"


class ServerProbe:
    """While it exists, `connectivity` does not count the unanswered writes of a namespace as an outage."""

    def __init__(self, api: ApiClient, connectivity: Connectivity) -> None:
        self._api = api
        self._connectivity = connectivity
        self._doubted = asyncio.Event()
        connectivity.on_doubt = self._doubted.set

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            while not await self._is_answered():
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(INTERVAL_S)

    async def _is_answered(self) -> bool:
        try:
            await self._api.get("/version", timeout_s=_TIMEOUT_S)
        except (TransportError, InvalidResponse, Unauthorized, ServerError) as error:
            self._connectivity.record_failure(_ACTIVITY, error)
            return False
        except ApiStatusError:
            pass  # "forbidden" is an answer too
        self._connectivity.record_success(_ACTIVITY)
        return True
