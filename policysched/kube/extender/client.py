"""Calls an external extender, as kube-scheduler does.

Existing extenders vary. Accepted: field names in any case, nodes missing from all lists, failed nodes in either map,
null for an empty list. Rejected: unknown nodes, an empty object (it lists neither passed nor failed nodes), a body that
is not JSON of the expected form, any status but 200, redirects. A score that is not an integer from 0 to 10, or is
given twice, is missing.

Source of the order and meaning: `HTTPExtender` and `findNodesThatPassExtenders` in kubernetes' pkg/scheduler, v1.36.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import orjson

from policysched.http_errors import describe_http_error
from policysched.kube.extender.protocol import EXTENDER_SCORE_MAX, field_ignoring_case
from policysched.lang.ir.extender_results import ExtenderRejection
from policysched.text.sanitize import sanitize_line

Json = Mapping[str, Any]
Result = TypeVar("Result")

RESPONSE_BASE_BYTES = 2**20
RESPONSE_BYTES_PER_NODE = 4096
"""For a name and a reason in each of the lists that may contain a node."""
RESPONSE_PER_REQUEST_RATIO = 3
"""Node objects are returned as they were sent, apart from white space."""
VALUES_BASE = 10_000
VALUES_PER_NODE = 32
"""How many values a response may have, by its commas: parsing holds the interpreter, and a list takes three bytes."""
INLINE_BYTES_MAX = 64 * 1024
"""Larger responses are parsed and decoded on a thread: the event loop runs meanwhile."""
NO_REASON_MESSAGE = "node(s) rejected by extender {} without a reason"


class ExtenderCallFailed(Exception):
    """No response from an extender, or an invalid one. The message names the extender."""


class BadExtenderSettings(Exception):
    """Unusable settings of an extender. The message is one line."""


@dataclass(frozen=True, slots=True)
class ExtenderTls:
    """PEM files. `insecure`: do not verify the server."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ExtenderEndpoint:
    """A configured extender. `filter` and `prioritize` are verbs appended to the URL, as in kube-scheduler's
    configuration. `send_node_objects`: send node objects, since it has no cache. `resources`: call it only for pods that
    request one of these."""

    name: str
    url: str
    filter: str | None = None
    prioritize: str | None = None
    timeout_s: float = 5.0
    ignorable: bool = False
    send_node_objects: bool = False
    resources: frozenset[str] = frozenset()
    concurrent_calls_max: int = 1
    tls: ExtenderTls = ExtenderTls()


@dataclass(frozen=True, slots=True)
class ExtenderFilterResult:
    passed: tuple[str, ...]
    rejected: Mapping[str, ExtenderRejection]


class ExtenderClient:
    """One extender, over a shared session. Raises BadExtenderSettings for an invalid URL or unreadable certificates."""

    def __init__(self, endpoint: ExtenderEndpoint, session: aiohttp.ClientSession) -> None:
        _check_url(endpoint)
        self.endpoint = endpoint
        self._session = session
        self._tls = _ssl_context(endpoint) if endpoint.url.startswith("https:") else None

    async def filter(
        self, pod: Json, nodes: Sequence[str], node_objects: Mapping[str, Json]
    ) -> ExtenderFilterResult:
        """The nodes that pass. `node_objects` has their JSON if the extender needs it. Raises ExtenderCallFailed."""
        assert self.endpoint.filter is not None, f"{self.endpoint.name} has no filter verb"
        arguments = self._arguments(pod, nodes, node_objects)
        return await self._call(
            self.endpoint.filter, arguments, len(nodes), partial(self._decode_filter_result, nodes=nodes)
        )

    async def prioritize(
        self, pod: Json, nodes: Sequence[str], node_objects: Mapping[str, Json]
    ) -> dict[str, int]:
        """Scores from 0 to 10 of the nodes that have one. Raises ExtenderCallFailed."""
        assert self.endpoint.prioritize is not None, f"{self.endpoint.name} has no prioritize verb"
        arguments = self._arguments(pod, nodes, node_objects)
        return await self._call(
            self.endpoint.prioritize, arguments, len(nodes), partial(self._decode_scores, nodes=nodes)
        )

    def _decode_scores(self, response: Any, nodes: Sequence[str]) -> dict[str, int]:
        if response is None:
            return {}
        if not isinstance(response, list) or not all(isinstance(entry, dict) for entry in response):
            raise self._call_failed(f"{self.endpoint.prioritize}: the response is not a list of scores")
        scores: dict[str, int] = {}
        duplicates: set[str] = set()
        for entry in response:
            host, score = field_ignoring_case(entry, "Host"), field_ignoring_case(entry, "Score")
            if not isinstance(host, str) or type(score) is not int or not 0 <= score <= EXTENDER_SCORE_MAX:
                continue
            duplicates |= {host} & scores.keys()
            scores[host] = score
        wanted = set(nodes) - duplicates
        return {node: score for node, score in scores.items() if node in wanted}

    def _arguments(self, pod: Json, nodes: Sequence[str], node_objects: Mapping[str, Json]) -> bytes:
        if not self.endpoint.send_node_objects:
            return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        items = [node_objects[node] for node in nodes if node in node_objects]
        return orjson.dumps({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})

    def _decode_filter_result(self, response: Any, nodes: Sequence[str]) -> ExtenderFilterResult:
        if not isinstance(response, dict):
            raise self._call_failed(f"{self.endpoint.filter}: the response is not an object")
        error = field_ignoring_case(response, "Error")
        if error:
            raise self._call_failed(f"{self.endpoint.filter} failed: {sanitize_line(error)}")
        node_list, named = field_ignoring_case(response, "Nodes"), field_ignoring_case(response, "NodeNames")
        failed, unresolvable = (
            self._reasons(response, "FailedNodes"),
            self._reasons(response, "FailedAndUnresolvableNodes"),
        )
        if node_list is None and named is None and not failed and not unresolvable:
            raise self._call_failed(
                f"{self.endpoint.filter}: the response lists neither passed nor failed nodes"
            )
        passed = self._passed_names(node_list, named)
        unknown = passed - set(nodes)
        if unknown:
            raise self._call_failed(
                f"{self.endpoint.filter}: the response names unknown node {sanitize_line(min(unknown))}"
            )
        rejected = {}
        for node in nodes:
            if node in passed and node not in unresolvable and node not in failed:
                continue
            reason = sanitize_line(unresolvable.get(node, "")) or sanitize_line(failed.get(node, ""))
            message = reason or NO_REASON_MESSAGE.format(self.endpoint.name)
            rejected[node] = ExtenderRejection(message, resolvable=node not in unresolvable)
        return ExtenderFilterResult(tuple(node for node in nodes if node not in rejected), rejected)

    def _passed_names(self, node_list: Any, named: Any) -> set[str]:
        names: Any = named
        if names is None:
            items = (
                (field_ignoring_case(node_list, "Items") or [])
                if isinstance(node_list, dict)
                else []
                if node_list is None
                else None
            )
            if not isinstance(items, list):
                raise self._call_failed(f"{self.endpoint.filter}: Nodes is not a list")
            metas = [item.get("metadata") if isinstance(item, dict) else None for item in items]
            names = [meta.get("name") if isinstance(meta, dict) else None for meta in metas]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._call_failed(f"{self.endpoint.filter}: a node in the response has no name")
        return set(names)

    def _reasons(self, response: Json, field: str) -> dict[str, Any]:
        reasons = field_ignoring_case(response, field) or {}
        if not isinstance(reasons, dict):
            raise self._call_failed(f"{self.endpoint.filter}: {field} is not a map")
        return reasons

    async def _call(self, verb: str, body: bytes, nodes: int, decode: Callable[[Any], Result]) -> Result:
        """The decoded response. Reading stops beyond the size limit for this number of nodes: larger bodies would cost memory
        and time of all other decisions."""
        bytes_max = RESPONSE_BASE_BYTES + RESPONSE_BYTES_PER_NODE * nodes
        values_max = VALUES_BASE + VALUES_PER_NODE * nodes
        if self.endpoint.send_node_objects:
            bytes_max += RESPONSE_PER_REQUEST_RATIO * len(body)
            values_max += body.count(b",")
        url = f"{self.endpoint.url.rstrip('/')}/{verb}"
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self.endpoint.timeout_s),
                self._session.post(
                    url,
                    data=body,
                    headers=headers,
                    ssl=self._tls if self._tls is not None else True,
                    server_hostname=self.endpoint.tls.server_name,
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    raise self._call_failed(f"{verb} returned status {response.status}")
                text = await _read_limited(response, bytes_max)
        except TimeoutError:
            raise self._call_failed(f"{verb} timed out after {self.endpoint.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # Unicode: an invalid DNS name
            raise self._call_failed(f"{verb}: {sanitize_line(describe_http_error(error))}") from error
        if text is None:
            raise self._call_failed(f"{verb}: the response exceeds {bytes_max:,} bytes for {nodes:,} nodes")
        if text.count(b",") > values_max:
            raise self._call_failed(
                f"{verb}: the response has more than {values_max:,} values for {nodes:,} nodes"
            )

        def read() -> Result:
            try:
                response = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise self._call_failed(f"{verb}: the response is not JSON") from error
            return decode(response)

        return read() if len(text) <= INLINE_BYTES_MAX else await asyncio.to_thread(read)

    def _call_failed(self, reason: str) -> ExtenderCallFailed:
        return ExtenderCallFailed(f"extender {self.endpoint.name}: {reason}")


async def _read_limited(response: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """The body; None if it is longer."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > bytes_max:
            response.close()
            return None
    return bytes(body)


def _check_url(endpoint: ExtenderEndpoint) -> None:
    try:
        parts = urlsplit(endpoint.url)
        host, _ = parts.hostname, parts.port
        if not host or any(char.isspace() for char in endpoint.url):
            raise ValueError("it has no host")
        host.encode("idna")
    except ValueError as error:  # also raised for an invalid port or host name
        raise BadExtenderSettings(
            f"extenders.{endpoint.name}.url: `{endpoint.url}` is not a URL: {error}"
        ) from error


def _ssl_context(endpoint: ExtenderEndpoint) -> ssl.SSLContext:
    tls = endpoint.tls
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        if tls.certificate is not None and tls.key is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise BadExtenderSettings(f"extenders.{endpoint.name}.tls: {error.strerror or error}") from error
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
