"""Texts that cannot be kept: what the store says, to whom, how often, and what it keeps nevertheless."""

import asyncio
import base64
import lzma
from collections.abc import Awaitable, Callable
from random import Random
from threading import get_ident
from unittest.mock import patch

import orjson
import pytest

from policysched.config.settings import NamespacedName
from policysched.daemon import last_good_store
from policysched.daemon.last_good_store import WRITE_PAUSE_S, LastGoodStore
from policysched.daemon.metric_families import last_good_families
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.resources import ConfigMapUpdated, decode_config_map
from policysched.policy_files import last_good_format
from policysched.policy_files.last_good_format import (
    ARCHIVE_KEY,
    PackedTexts,
    UnreadableArchive,
    pack_texts,
    unpack_texts,
)
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import ReportPolicyEvent
from tests.kube.world import on_virtual_time

PLACE = NamespacedName("default", "kept")


def library_text(name: str, kib: int) -> str:
    """A policy that includes a library of this size, expanded."""
    return f"policy {name} version 1\n" + "# the same line in every policy, as a library has\n" * (20 * kib)


def noise(name: str, kib: int) -> str:
    """A text that no compression makes much smaller than three quarters."""
    return f"# {name}\n" + base64.b64encode(Random(name).randbytes(768 * kib)).decode()


class _Server:
    """The sandbox's API server in front of which an error can stand: `refusal` is the response to each write."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = ApiServer(now=loop.time, seed=1)
        self.local = LocalClient(self.server)
        self.refusal: ApiResponse | None = None
        self.config_map_bytes_max = 2**30
        self.writes = 0
        self._inner = MemoryTransport(self.server)
        self.reports: list[ReportPolicyEvent] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        if request.method != "GET":
            self.writes += 1
            if len(request.body) > self.config_map_bytes_max:
                self.refuse(413, "Request entity too large")
            elif self.config_map_bytes_max < 2**30:
                self.refusal = None
            if self.refusal is not None:
                return self.refusal
        return await self._inner.request(request)

    def store(self, run_beside: RunBeside | None = None) -> LastGoodStore:
        return LastGoodStore(
            ApiClient(self),  # type: ignore[arg-type]
            PLACE,
            random=Random(1),
            connectivity=Connectivity(lambda: 0.0),
            report=self.reports.append,
            run_beside=run_beside,
            owner_of=lambda policy: policy.partition("-")[0] if "-" in policy else None,
        )

    def refuse(self, status: int, message: str) -> None:
        body = {"kind": "Status", "code": status, "reason": "X", "message": message}
        self.refusal = ApiResponse(status, orjson.dumps(body), {})

    def config_map(self) -> ConfigMapUpdated:
        config_map = self.local.get("configmaps", PLACE.namespace, PLACE.name)
        assert config_map is not None
        return decode_config_map(config_map)

    def reasons(self) -> list[tuple[str, str]]:
        return [(report.type, report.reason) for report in self.reports]


def play(script: Callable[[_Server, LastGoodStore], Awaitable[None]]) -> _Server:
    servers: list[_Server] = []

    async def main() -> None:
        server = _Server()
        servers.append(server)
        store = server.store()
        await store.read()
        writing = asyncio.create_task(store.run())
        await script(server, store)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    on_virtual_time(main)
    return servers[0]


# ── what fits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sixty_policies_with_a_library_are_kept() -> None:
    """The property for which the planted bugs below are: 1.4 MB expanded, of which a ConfigMap takes 1 MiB."""
    texts = {f"p{number}": library_text(f"p{number}", 24) for number in range(60)}

    async def script(server: _Server, store: LastGoodStore) -> None:
        store.save_policies(texts)
        await asyncio.sleep(5.0)
        store.save_states({"p1": '{"learnt": 1}'})
        await asyncio.sleep(5.0)
        assert (store.problem, store.unsaved) == ("", ())
        successor = server.store()
        read = await successor.read()
        assert read == {f"{name}.policy": text for name, text in texts.items()}
        assert successor.states == {"p1": '{"learnt": 1}'}

    server = play(script)

    assert server.reports == []
    assert set(server.config_map().binary) == {ARCHIVE_KEY} and server.config_map().data == {}


def test_texts_of_teams_are_left_out_before_those_of_the_operator() -> None:
    """A team can make its texts long, and hard to compress."""
    team = "# team {}\n"
    texts = {f"ml-{number}.policy": team + noise(f"{number}", 200) for number in range(6)}
    texts["main.policy"] = noise("operator", 400)

    packed = pack_texts(texts)

    assert packed.omitted and all(key.startswith("ml-") for key in packed.omitted)


def test_the_team_with_the_largest_total_loses_its_largest_texts_first() -> None:
    """Many texts of middle size pushed out the one large text of another team."""
    texts = {f"ml-{number}.policy": "# team {}\n" + noise(f"{number}", 140 + number) for number in range(9)}
    texts["web-a.policy"] = "# team {}\n" + noise("web", 400)
    texts["main.policy"] = noise("operator", 200)

    packed = pack_texts(texts, owner_of=lambda policy: policy.partition("-")[0])

    kept = texts.keys() - set(packed.omitted)
    assert {"main.policy", "web-a.policy", "ml-0.policy"} <= kept
    assert "ml-8.policy" in packed.omitted


def test_a_team_is_told_of_its_own_policies_that_do_not_fit_and_when_they_do() -> None:
    """A text that is hard to compress takes the room of others."""
    team = "# team {}\n"
    small = {"main": "policy main version 1\n", "ml-a": team, "web-a": team}
    large = {**small, **{f"ml-{number}": team + noise(f"{number}", 400) for number in range(4)}}

    async def script(_server: _Server, store: LastGoodStore) -> None:
        for texts in (small, large, {**large, "web-b": team}, small):
            store.save_policies(texts)
            await asyncio.sleep(30.0)

    told = [report for report in play(script).reports if report.owner is not None]

    assert [(report.reason, report.owner) for report in told] == [
        ("LastGoodNotSaved", "ml"),
        ("LastGoodSaved", "ml"),
    ]
    assert "do not fit" in told[0].message and "ml-3" in told[0].message and "web" not in told[0].message


def test_states_of_teams_are_left_out_before_those_of_the_operator() -> None:
    """A team can have a state for each policy, each smaller than the operator's."""
    texts = {"main.policy": noise("operator", 1), "main.state.json": noise("learnt", 500)}
    for number in range(8):
        texts |= {f"ml-{number}.policy": "# team {}\n", f"ml-{number}.state.json": noise(f"{number}", 150)}

    packed = pack_texts(texts)

    assert packed.omitted and all(key.startswith("ml-") for key in packed.omitted)


def test_sixty_policies_with_a_library_are_kept() -> None:
    sixty_policies_with_a_library_are_kept()


def test_a_planted_bug_that_never_compresses_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(texts: dict[str, str], *_: object) -> PackedTexts:
        return PackedTexts(texts, {})

    monkeypatch.setattr(last_good_store, "pack_texts", plain)

    with pytest.raises(AssertionError):
        sixty_policies_with_a_library_are_kept()


def test_texts_are_compressed_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressing 15 MiB takes seconds, and each edit of a team asks for it."""
    threads = list[int]()

    def packed(texts: dict[str, str], *_: object) -> PackedTexts:
        threads.append(get_ident())
        return pack_texts(texts)

    monkeypatch.setattr(last_good_store, "pack_texts", packed)

    async def main() -> None:
        server = _Server()
        store = server.store(asyncio.to_thread)
        writing = asyncio.create_task(store.run())
        store.save_policies({"big": library_text("big", 600)})
        while store.has_pending_write:
            await asyncio.sleep(0.001)
        writing.cancel()
        assert set(server.config_map().binary) == {ARCHIVE_KEY}

    asyncio.run(main())

    assert threads and get_ident() not in threads


def test_saves_that_follow_one_another_are_written_with_pauses() -> None:
    """Of many teams one may edit at any time, and each write has the texts of all: etcd keeps its versions for minutes."""

    async def script(server: _Server, store: LastGoodStore) -> None:
        for number in range(200):
            store.save_policies({"p": f"policy p version {number}\n"})
            await asyncio.sleep(0.05)
        assert server.writes <= 10 / WRITE_PAUSE_S + 2
        await asyncio.sleep(WRITE_PAUSE_S)
        assert server.config_map().data == {"p.policy": "policy p version 199\n"}
        assert not store.has_pending_write

    play(script)


def test_small_texts_are_plain_keys_that_kubectl_shows() -> None:
    async def script(_server: _Server, store: LastGoodStore) -> None:
        store.save_policies({"big": library_text("big", 600)})
        await asyncio.sleep(5.0)
        store.save_policies({"a": "policy a version 1"})
        await asyncio.sleep(5.0)

    config_map = play(script).config_map()

    assert (config_map.data, config_map.binary) == ({"a.policy": "policy a version 1"}, {})


def test_the_largest_texts_are_left_out_where_nothing_helps_and_named() -> None:
    texts = {**{name: f"policy {name} version 1" for name in "abc"}, "noise": noise("noise", 1700)}

    async def script(server: _Server, store: LastGoodStore) -> None:
        store.save_policies(texts)
        await asyncio.sleep(5.0)
        assert store.unsaved == ("noise",)
        assert (await server.store().read()).keys() == {"a.policy", "b.policy", "c.policy"}
        store.save_policies({"a": texts["a"]})
        await asyncio.sleep(5.0)
        assert store.problem == ""

    server = play(script)

    assert server.reasons() == [("Warning", "LastGoodNotSaved"), ("Normal", "LastGoodSaved")]
    assert "not saved: noise;" in server.reports[0].message
    assert "do not fit into a ConfigMap" in server.reports[0].message


def test_states_are_left_out_before_policies() -> None:
    state = {"b.state.json": noise("b", 800), "c.state.json": noise("c", 100)}

    packed = pack_texts({"a.policy": noise("a", 900), **state})

    assert packed.omitted == ("b.state.json",)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def archive(raw: bytes) -> ConfigMapUpdated:
    return ConfigMapUpdated({}, "1", "uid", {ARCHIVE_KEY: raw})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"this is not the format xz", "Input format not supported"),
        (lzma.compress(b'{"a.policy": "x"}')[:-8], "is truncated"),
        (lzma.compress(b'{"a.policy": 1}'), "is not a JSON object of strings"),
        (lzma.compress(b"\xff"), "UTF-8"),
        (lzma.compress(bytes(17 * 2**20), preset=1), "unpacks to more than"),
    ],
)
def test_a_damaged_or_hostile_archive_is_not_read(raw: bytes, reason: str) -> None:
    with pytest.raises(UnreadableArchive, match=reason):
        unpack_texts(archive(raw))


def test_an_archive_that_needs_much_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_good_format, "_UNPACK_MEMORY_MAX", 2**20)

    with pytest.raises(UnreadableArchive, match="Memory usage limit"):
        unpack_texts(archive(lzma.compress(b"{}")))


def test_an_unreadable_archive_is_reported() -> None:
    async def script(server: _Server, _store: LastGoodStore) -> None:
        body = {
            "metadata": {"name": PLACE.name},
            "binaryData": {ARCHIVE_KEY: base64.b64encode(b"x").decode()},
        }
        server.local.create("configmaps", PLACE.namespace, body)
        assert await server.store().read() == {}

    assert play(script).reasons() == [("Warning", "LastGoodNotRead")]


def test_plain_keys_of_an_earlier_version_override_the_archive() -> None:
    packed = lzma.compress(b'{"a.policy": "old", "b.policy": "b"}')

    texts = unpack_texts(ConfigMapUpdated({"a.policy": "new"}, "1", "uid", {ARCHIVE_KEY: packed}))

    assert texts == {"a.policy": "new", "b.policy": "b"}


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_refused_save_is_reported(status: int) -> None:
    async def script(server: _Server, store: LastGoodStore) -> None:
        store.save_policies({"a": "policy a version 1", "b": "policy b version 1"})
        await asyncio.sleep(5.0)
        server.refuse(status, "no room for this")
        store.save_policies({"b": "policy b version 2", "c": "policy c version 1"})
        await asyncio.sleep(3.0)
        (report,) = server.reports
        assert f"({status}): no room for this" in report.message
        assert "not saved: b, c;" in report.message
        assert "removed, but not deleted yet: a" in report.message
        assert store.problem == report.message and store.unsaved == ("b", "c")
        (unsaved,) = [family for family in last_good_families(store) if family.name.endswith("_unsaved")]
        assert unsaved.samples == [("", (("policy", name),), 1.0) for name in ("b", "c")]
        await asyncio.sleep(600.0)
        assert len(server.reports) == 1, "the same refusal is reported once"
        assert 10 <= server.writes <= 60, "it is repeated with backoff"
        assert not store.has_pending_write, "a stop does not wait for it"
        server.refusal = None
        await asyncio.sleep(61.0)
        assert (store.problem, store.unsaved) == ("", ())

    server = play(script)

    assert server.reasons() == [("Warning", "LastGoodNotSaved"), ("Normal", "LastGoodSaved")]
    assert unpack_texts(server.config_map()).keys() == {"b.policy", "c.policy"}


def test_what_a_lower_limit_refuses_is_compressed() -> None:
    async def script(server: _Server, store: LastGoodStore) -> None:
        server.config_map_bytes_max = 20_000
        store.save_policies({"a": library_text("a", 100)})
        await asyncio.sleep(5.0)
        assert store.problem == ""

    server = play(script)

    assert (server.reports, set(server.config_map().binary)) == ([], {ARCHIVE_KEY})


@pytest.mark.parametrize("status", [403, 413, 422])
def test_a_refused_save_is_reported_at_once_and_repeated(status: int) -> None:
    a_refused_save_is_reported(status)


def test_a_planted_bug_that_retries_in_silence_is_caught() -> None:
    with (
        patch.object(LastGoodStore, "_note_failure", lambda *_: None),
        pytest.raises((AssertionError, ValueError)),
    ):
        a_refused_save_is_reported(422)


def test_another_cause_is_reported_again() -> None:
    async def script(server: _Server, store: LastGoodStore) -> None:
        for status in (422, 413):
            server.refuse(status, "no")
            store.save_policies({"a": "policy a version 1"})
            await asyncio.sleep(100.0)

    reports = play(script).reports

    assert ["(422)" in reports[0].message, "(413)" in reports[1].message, len(reports)] == [True, True, 2]


def test_a_smaller_content_is_tried_at_once_after_a_refusal() -> None:
    async def script(server: _Server, store: LastGoodStore) -> None:
        server.refuse(422, "no")
        store.save_policies({"a": "policy a version 1"})
        await asyncio.sleep(300.0)
        server.refusal = None
        store.save_policies({"b": "policy b version 1"})
        await asyncio.sleep(0.1)
        assert store.problem == ""

    play(script)


def test_a_server_that_does_not_answer_is_reported_after_a_while() -> None:
    async def script(server: _Server, store: LastGoodStore) -> None:
        server.refuse(500, "etcdserver: mvcc: database space exceeded")
        store.save_policies({"a": "policy a version 1"})
        await asyncio.sleep(20.0)
        assert server.reports == [] and store.has_pending_write
        await asyncio.sleep(100.0)

    (report,) = play(script).reports

    assert "not saved: a;" in report.message and "database space exceeded" in report.message
