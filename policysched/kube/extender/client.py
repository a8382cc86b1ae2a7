"""Calling somebody else's extender: kube-scheduler's protocol from its other end.

Extenders were written in many years and ways. What is accepted: names of fields in any case, nodes that are dropped
without a word, refused nodes in either map, null for an empty list. What is not: an answer that names a node which was not asked
about, an empty object (it neither passes nor refuses anybody), anything that is no JSON of that shape, another status
than 200, a redirect. A score that is no whole number from 0 to 10, or stands twice, is missing.

Source of the order and meaning: `HTTPExtender` and `findNodesThatPassExtenders` in kubernetes' pkg/scheduler, v1.36.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from policysched.http_errors import describe_http_error
from policysched.kube.extender.protocol import EXTENDER_SCORE_MAX, field_ignoring_case
from policysched.lang.ir.extender_results import ExtenderRefusal
from policysched.text.sanitize import sanitize_line

Json = Mapping[str, Any]

RESPONSE_BASE_BYTES = 2**20
RESPONSE_BYTES_PER_NODE = 4096
"""Of a name and a reason, in each of the lists in which a node may stand."""
RESPONSE_PER_REQUEST_RATIO = 3
"""Whole nodes come back as they were sent, give or take white space."""
NO_REASON_MESSAGE = "node(s) rejected by extender {} without a reason"


class ExtenderCallFailed(Exception):
    """An extender that did not answer, or not in its protocol: words with its name."""


class BadExtenderSettings(Exception):
    """Settings of an extender that cannot be used: one line that says which and why."""


@dataclass(frozen=True, slots=True)
class ExtenderTls:
    """PEM files: whom to trust, and who we are. `insecure`: trust anybody."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ExtenderEndpoint:
    """An extender of the settings. `filter` and `prioritize` are verbs, as in kube-scheduler's configuration: put behind
    the URL. `whole_nodes`: it has no cache of its own. `resources`: asked about pods that ask for one of these."""

    name: str
    url: str
    filter: str | None = None
    prioritize: str | None = None
    timeout_s: float = 5.0
    ignorable: bool = False
    whole_nodes: bool = False
    resources: frozenset[str] = frozenset()
    at_once: int = 1
    tls: ExtenderTls = ExtenderTls()


@dataclass(frozen=True, slots=True)
class ExtenderFilterResult:
    passed: tuple[str, ...]
    refused: Mapping[str, ExtenderRefusal]


class ExtenderClient:
    """One peer, over a session that several share. Raises BadPeer where its URL is none or its certificates cannot be
    read."""

    def __init__(self, peer: ExtenderEndpoint, session: aiohttp.ClientSession) -> None:
        _check_url(peer)
        self.endpoint = peer
        self._session = session
        self._tls = _ssl_context(peer) if peer.url.startswith("https:") else None

    async def filter(
        self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]
    ) -> ExtenderFilterResult:
        """Which of the nodes pass. `whole` has their JSON where the peer wants it. Raises NoExtenderAnswer."""
        assert self.endpoint.filter is not None, f"{self.endpoint.name} filters nothing"
        answer = await self._call(self.endpoint.filter, self._arguments(pod, nodes, whole), len(nodes))
        if not isinstance(answer, dict):
            raise self._call_failed(f"{self.endpoint.filter}: the response is not an object")
        error = field_ignoring_case(answer, "Error")
        if error:
            raise self._call_failed(f"{self.endpoint.filter} failed: {sanitize_line(error)}")
        return self._decode_filter_result(answer, nodes)

    async def prioritize(self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]) -> dict[str, int]:
        """Scores of 0 to 10 for those of the nodes that have one. Raises NoExtenderAnswer."""
        assert self.endpoint.prioritize is not None, f"{self.endpoint.name} scores nothing"
        answer = await self._call(self.endpoint.prioritize, self._arguments(pod, nodes, whole), len(nodes))
        if answer is None:
            return {}
        if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
            raise self._call_failed(f"{self.endpoint.prioritize}: the response is not a list of scores")
        found: dict[str, int] = {}
        doubled: set[str] = set()
        for one in answer:
            host, score = field_ignoring_case(one, "Host"), field_ignoring_case(one, "Score")
            if not isinstance(host, str) or type(score) is not int or not 0 <= score <= EXTENDER_SCORE_MAX:
                continue
            doubled |= {host} & found.keys()
            found[host] = score
        return {node: score for node, score in found.items() if node in set(nodes) - doubled}

    def _arguments(self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]) -> bytes:
        if not self.endpoint.whole_nodes:
            return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        items = [whole[node] for node in nodes if node in whole]
        return orjson.dumps({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})

    def _decode_filter_result(self, answer: Json, nodes: Sequence[str]) -> ExtenderFilterResult:
        listed, named = field_ignoring_case(answer, "Nodes"), field_ignoring_case(answer, "NodeNames")
        failed, hopeless = (
            self._reasons(answer, "FailedNodes"),
            self._reasons(answer, "FailedAndUnresolvableNodes"),
        )
        if listed is None and named is None and not failed and not hopeless:
            raise self._call_failed(
                f"{self.endpoint.filter}: the response lists neither passed nor failed nodes"
            )
        passed = self._passed_names(listed, named)
        strangers = passed - set(nodes)
        if strangers:
            raise self._call_failed(
                f"{self.endpoint.filter}: the response names unknown node {sanitize_line(min(strangers))}"
            )
        refused = {}
        for node in nodes:
            if node in passed and node not in hopeless and node not in failed:
                continue
            words = hopeless.get(node) or failed.get(node) or NO_REASON_MESSAGE.format(self.endpoint.name)
            refused[node] = ExtenderRefusal(words, resolvable=node not in hopeless)
        return ExtenderFilterResult(tuple(node for node in nodes if node not in refused), refused)

    def _passed_names(self, listed: Any, named: Any) -> set[str]:
        names: Any = named
        if names is None:
            items = (
                (field_ignoring_case(listed, "Items") or [])
                if isinstance(listed, dict)
                else []
                if listed is None
                else None
            )
            if not isinstance(items, list):
                raise self._call_failed(f"{self.endpoint.filter}: Nodes is not a list")
            metas = [one.get("metadata") if isinstance(one, dict) else None for one in items]
            names = [one.get("name") if isinstance(one, dict) else None for one in metas]
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise self._call_failed(f"{self.endpoint.filter}: a node in the response has no name")
        return set(names)

    def _reasons(self, answer: Json, field: str) -> dict[str, str]:
        found = field_ignoring_case(answer, field) or {}
        if not isinstance(found, dict):
            raise self._call_failed(f"{self.endpoint.filter}: {field} is not a map")
        return {node: sanitize_line(words) for node, words in found.items()}

    async def _call(self, verb: str, body: bytes, nodes: int) -> Any:
        """What is longer than any answer about so many nodes is not read to its end: it would take this process's memory and
        time from all other decisions."""
        longest = RESPONSE_BASE_BYTES + RESPONSE_BYTES_PER_NODE * nodes
        if self.endpoint.whole_nodes:
            longest += RESPONSE_PER_REQUEST_RATIO * len(body)
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
                ) as answer,
            ):
                if answer.status != 200:
                    raise self._call_failed(f"{verb} returned status {answer.status}")
                text = await _read_limited(answer, longest)
        except TimeoutError:
            raise self._call_failed(f"{verb} timed out after {self.endpoint.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # Unicode: a name that DNS cannot have
            raise self._call_failed(f"{verb}: {sanitize_line(describe_http_error(error))}") from error
        if text is None:
            raise self._call_failed(f"{verb}: the response exceeds {longest:,} bytes for {nodes:,} nodes")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._call_failed(f"{verb}: the response is not JSON") from error

    def _call_failed(self, words: str) -> ExtenderCallFailed:
        return ExtenderCallFailed(f"extender {self.endpoint.name}: {words}")


async def _read_limited(answer: aiohttp.ClientResponse, longest: int) -> bytes | None:
    """None: it has more bytes than that."""
    found = bytearray()
    async for chunk in answer.content.iter_any():
        found += chunk
        if len(found) > longest:
            answer.close()
            return None
    return bytes(found)


def _check_url(peer: ExtenderEndpoint) -> None:
    try:
        parts = urlsplit(peer.url)
        host, _ = parts.hostname, parts.port
        if not host or any(char.isspace() for char in peer.url):
            raise ValueError("it has no host")
        host.encode("idna")
    except ValueError as error:  # also what a port that is no number, or a name that is none, raises
        raise BadExtenderSettings(f"extenders.{peer.name}.url: `{peer.url}` is not a URL: {error}") from error


def _ssl_context(peer: ExtenderEndpoint) -> ssl.SSLContext:
    tls = peer.tls
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        if tls.certificate is not None and tls.key is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise BadExtenderSettings(f"extenders.{peer.name}.tls: {error.strerror or error}") from error
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
