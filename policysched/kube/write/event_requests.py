"""The requests that write events: one that creates the object, and those that count its repetitions."""

from typing import Any

import orjson

from policysched.kube.client.api import STRATEGIC_PATCH, ApiClient
from policysched.kube.client.transport import METADATA_ONLY
from policysched.kube.leader_election import micro_time
from policysched.kube.write.report_content import EventContent, EventObject, truncate_note
from policysched.kube.write.report_queue import EventSeries
from policysched.text.sanitize import escape_unprintable

Json = dict[str, Any]
TIMEOUT_S = 10.0


class EventRequests:
    """`instance` identifies this process in events."""

    def __init__(self, api: ApiClient, instance: str) -> None:
        self._api = api
        self._instance = instance

    async def create(self, content: EventContent, series: EventSeries) -> None:
        regarding = content.regarding
        now = micro_time(series.last_ns)
        note = truncate_note(escape_unprintable(content.note))
        body: Json = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": regarding.namespace},
            "eventTime": now,
            "reportingController": content.scheduler,
            "reportingInstance": self._instance,
            "action": content.action,
            "reason": content.reason,
            "type": content.type,
            "note": note,
            "regarding": _reference(regarding),
        }
        if content.related is not None:
            body["related"] = _reference(content.related)
        if series.count > 1:
            body["series"] = {"count": series.count, "lastObservedTime": now}
        await self._api.post_discarding_response(
            _events_path(regarding), orjson.dumps(body), params={}, timeout_s=TIMEOUT_S
        )

    async def patch_count(self, content: EventContent, series: EventSeries) -> None:
        body: Json = {"series": {"count": series.count, "lastObservedTime": micro_time(series.last_ns)}}
        path = f"{_events_path(content.regarding)}/{series.name}"
        # Metadata only: anyone who may write events can make this one as large as etcd accepts.
        await self._api.patch(path, body, STRATEGIC_PATCH, accept=METADATA_ONLY)


def _reference(regarding: EventObject) -> Json:
    return {
        "apiVersion": "v1",
        "kind": regarding.kind,
        "namespace": regarding.namespace,
        "name": regarding.name,
        "uid": regarding.uid,
    }


def _events_path(regarding: EventObject) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{regarding.namespace}/events"
