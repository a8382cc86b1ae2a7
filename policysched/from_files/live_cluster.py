"""Reads a cluster from its API server, once, as if its objects were in a file."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from policysched.from_files.cluster_files import ClusterFiles
from policysched.kube.client.api import ApiClient, ApiStatusError, Forbidden, InvalidResponse, NotFound
from policysched.kube.client.session import BadKubeconfig, ConnectionSettings, connect
from policysched.kube.client.transport import TransportError
from policysched.kube.watch.resources import (
    DEVICE_RESOURCES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    POD_GROUP_RESOURCES,
    PODS,
    SELECTOR_OWNERS,
    STORAGE_RESOURCES,
    WatchedResource,
)
from policysched.policy_files.source_set import UnusableFile

_PAGE_SIZE = 500
_RESOURCES: tuple[WatchedResource[Any], ...] = (
    NODES,
    NAMESPACES,
    PODS,
    *SELECTOR_OWNERS,
    DISRUPTION_BUDGETS,
    *STORAGE_RESOURCES,
    *DEVICE_RESOURCES,
    *POD_GROUP_RESOURCES,
)
_NEEDED = frozenset({"Node", "Pod"})


def read_live_cluster(
    kubeconfig: Path | None,
    context: str | None,
    *,
    user_agent: str,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> tuple[ClusterFiles, list[str]]:
    """The objects that decisions read, and notes on kinds that may not be listed. Reads only. Raises UnusableFile if the
    cluster cannot be read, or its nodes and pods may not."""
    try:
        return asyncio.run(_read(ConnectionSettings(kubeconfig, context, user_agent=user_agent), progress))
    except BadKubeconfig as error:
        raise UnusableFile(str(error)) from None
    except (ApiStatusError, InvalidResponse, TransportError) as error:
        raise UnusableFile(
            f"the cluster cannot be read: {' '.join(str(error).split()) or 'no answer'}"
        ) from None


async def _read(
    connection: ConnectionSettings, progress: Callable[[str, int, int], None]
) -> tuple[ClusterFiles, list[str]]:
    files, notes = ClusterFiles(), list[str]()
    async with await connect(connection) as transport:
        api = ApiClient(transport)
        for number, resource in enumerate(_RESOURCES):
            progress("reading the cluster", number, len(_RESOURCES))
            note = await _read_kind(api, resource, files)
            notes += [] if note is None else [note]
    return files, notes


async def _read_kind(api: ApiClient, resource: WatchedResource[Any], files: ClusterFiles) -> str | None:
    """A note if the user may not list the kind. A kind that the server does not serve has no objects."""
    kind = resource.kind.partition(".")[0]
    for version in (resource, *resource.older):
        api_version = version.path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
        try:
            async for page in api.pages(version.path, version.params, page_size=_PAGE_SIZE):
                for item in page.items:
                    files.add({**item, "kind": kind, "apiVersion": api_version})
        except NotFound:
            continue
        except Forbidden as error:
            if kind in _NEEDED:
                raise
            return f"{kind} objects are left out: {' '.join(str(error).split())}"
        return None
    return None
