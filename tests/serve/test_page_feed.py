"""What the page costs, sends again, and shows to whom."""

import asyncio
import gzip
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from policysched.serve import page_feed
from policysched.serve.access import AccessDecision, User
from policysched.serve.main_loop_reader import NoSuchEndpoint
from policysched.serve.page_files import is_loopback_host
from policysched.serve.server import HttpServerOptions
from policysched.serve.status_routes import StatusEndpoints
from tests.serve.served import PAGES, burn, get, served, serving

PODS = {
    "pods": [{"namespace": "shop", "pod": "shop/web"}, {"namespace": "bank", "pod": "bank/db"}],
    "causes": [
        {
            "cause": "both",
            "namespaces": ["shop", "bank"],
            "examples": [{"namespace": "bank", "pod": "bank/db"}],
        },
        {"cause": "theirs", "namespaces": ["bank"], "examples": []},
    ],
    "story": [
        {"namespace": "shop", "would_fit": [{"text": "move bank/db", "namespaces": ["*"]}, {"text": "wait"}]}
    ],
}


class TenantReviewer:
    """ada may list all pods, tom those of shop; the token is the name."""

    async def review_token(self, token: str) -> User | None:
        return User(token)

    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision:
        return AccessDecision(user.name != "eve", "")

    async def review_list_pods(self, user: User, namespace: str | None) -> AccessDecision:
        return AccessDecision(user.name == "ada" or (user.name == "tom" and namespace == "shop"), "")

    async def client_ca(self) -> str | None:
        return ""


@asynccontextmanager
async def reviewer() -> AsyncIterator[Any]:
    yield TenantReviewer()


SECURED = HttpServerOptions(open_reviewer=reviewer)


def feeding(
    value: Mapping[str, Any], share: float = 0.5, took_s: float = 0.0
) -> tuple[StatusEndpoints, list[int]]:
    """Endpoints with one document, and how often it was made."""
    made = [0]

    def page(_query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        made[0] += 1
        burn(took_s)
        yield value

    return replace(PAGES, page_feeds={"/page/pods": (page, share)}), made


def shown_to(name: str) -> tuple[int, Any]:
    answers: list[tuple[int, str]] = []

    async def scenario(port: int) -> None:
        answers.append(await asyncio.to_thread(get, port, "/page/pods", name))

    served(scenario, SECURED, pages=feeding(PODS)[0])
    status, body = answers[0]
    return status, json.loads(body) if status == 200 else body


def test_a_user_who_may_list_all_pods_sees_all_rows() -> None:
    assert shown_to("ada") == (200, PODS)


def test_a_tenant_sees_the_rows_of_the_namespaces_whose_pods_he_may_list() -> None:
    status, page = shown_to("tom")

    assert status == 200
    assert page == {
        "pods": [{"namespace": "shop", "pod": "shop/web"}],
        "causes": [{"cause": "both", "namespaces": ["shop"], "examples": []}],
        "story": [{"namespace": "shop", "would_fit": [{"text": "wait"}]}],
        "hidden_rows": 4,
    }


def test_a_tenant_does_not_learn_whether_a_pod_of_another_namespace_exists() -> None:
    """The pod is there, it is decided by another scheduler, or there is none: one answer."""

    def story(query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        asked.append(query["pod"])
        if query["pod"] == "bank/db":
            yield {"explained": [{"namespace": "bank", "message": "fits"}]}
        raise NoSuchEndpoint(f"{query['pod']} is on node-7")

    asked: list[str] = []
    answers: dict[tuple[str, str], tuple[int, str]] = {}

    async def scenario(port: int) -> None:
        for user in ("tom", "ada"):
            for name in ("bank%2Fdb", "bank%2Fplaced", "+bank%2Fnone", "shop%2Fnone"):
                path = f"/page/pod?pod={name}"
                answers[user, name] = await asyncio.to_thread(get, port, path, user)
        assert answers["tom", "shop%2Fnone"][0] == 404 == answers["ada", "bank%2Fplaced"][0]
        assert answers["ada", "bank%2Fdb"][0] == 200
        refusal = 403, "you may not list the pods of namespace bank\n"
        assert [answers["tom", name] for name in ("bank%2Fdb", "bank%2Fplaced", "+bank%2Fnone")] == [
            refusal
        ] * 3
        assert asked[0] == "shop/none", "the main loop does nothing for it"

    served(scenario, SECURED, pages=replace(PAGES, page_feeds={"/page/pod": (story, 0.5)}))


def test_planted_bug_a_filter_that_keeps_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_feed, "_keep", lambda value, _allowed, _hidden: value)

    assert "bank/db" in json.dumps(shown_to("tom")[1])


def test_a_document_is_filtered_once_for_all_viewers_with_equal_permissions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filtered: list[frozenset[str]] = []
    visible_in = page_feed.visible_in

    def counted(value: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
        filtered.append(allowed)
        return visible_in(value, allowed)

    monkeypatch.setattr(page_feed, "visible_in", counted)
    pages, made = feeding(PODS)

    async def scenario(port: int) -> None:
        for name in ("tom", "ann", "tom", "bob", "ada") * 4:
            assert (await asyncio.to_thread(get, port, "/page/pods", name))[0] == 200

    served(scenario, SECURED, pages=pages)
    assert filtered.count(frozenset({"shop"})) <= made[0]
    assert filtered.count(frozenset()) <= made[0], "ann and bob may both list none"


def test_a_user_without_permission_for_the_path_sees_nothing_of_the_page() -> None:
    assert shown_to("eve")[0] == 403


def test_many_viewers_cost_no_more_than_the_share() -> None:
    """A document of 50 ms with a share of 5 % is made at most once a second."""

    async def scenario(port: int) -> None:
        began_s = time.monotonic()
        answers = await asyncio.gather(*(asyncio.to_thread(get, port, "/page/pods") for _ in range(30)))
        assert {status for status, _ in answers} == {200}
        assert made[0] <= 1 + (time.monotonic() - began_s) / 0.9

    pages, made = feeding({"rows": []}, share=0.05, took_s=0.05)
    served(scenario, pages=pages)
    assert made[0] >= 1


def test_an_unchanged_document_is_sent_once_and_compressed() -> None:
    async def scenario(port: int) -> None:
        def ask(**headers: str) -> tuple[int, Mapping[str, str], bytes]:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/page/pods", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.headers, error.read()

        _, headers, body = await asyncio.to_thread(lambda: ask(**{"Accept-Encoding": "gzip"}))
        assert headers["Content-Encoding"] == "gzip" and len(body) < 2000
        assert json.loads(gzip.decompress(body)) == {"rows": ["x" * 100] * 100}
        status, _, body = await asyncio.to_thread(lambda: ask(**{"If-None-Match": headers["ETag"]}))
        assert (status, body) == (304, b"")

    served(scenario, pages=feeding({"rows": ["x" * 100] * 100})[0])


@pytest.mark.parametrize(("host", "allowed"), [("127.0.0.1:1", True), ("localhost", True), ("[::1]:8", True), ("evil.example:80", False), ("127.0.0.1.evil.example", False)])  # fmt: skip
def test_an_open_port_answers_with_the_page_to_loopback_names_alone(host: str, allowed: bool) -> None:
    assert is_loopback_host(host) is allowed

    async def scenario(port: int) -> None:
        status, _ = await asyncio.to_thread(get, port, "/", None, {"Host": host})
        assert status == (200 if allowed else 403)

    served(scenario, pages=feeding(PODS)[0])


def test_the_files_have_a_policy_that_runs_no_script_of_others() -> None:
    async def scenario() -> None:
        async with serving(pages=feeding(PODS)[0]) as port:
            for path in ("/", "/page/files/page.js", "/page/files/vendor/uplot.min.js"):
                with await asyncio.to_thread(
                    urllib.request.urlopen, f"http://127.0.0.1:{port}{path}"
                ) as answer:
                    policy = answer.headers["Content-Security-Policy"]
                    assert "default-src 'none'" in policy and "unsafe" not in policy
                    assert "require-trusted-types-for 'script'" in policy
            assert (await asyncio.to_thread(get, port, "/page/files/../server.py"))[0] == 404

    asyncio.run(scenario())
