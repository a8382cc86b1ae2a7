"""Who may read what, by the reviews of an API server that answers from a table."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policysched.serve.access import (
    CACHE_TTL_S,
    AccessControl,
    AccessDecision,
    AccessDenied,
    ReviewFailed,
    TooManyReviews,
    User,
    certificate_user,
)
from policysched.serve.health import Health
from policysched.serve.server import HttpServerOptions
from tests.serve.served import get, served


class Reviews:
    """`prometheus` may get /metrics, and nobody else anything. Counts the reviews."""

    def __init__(self) -> None:
        self.users = {"prometheus": User("prometheus"), "visitor": User("visitor")}
        self.allowed = {("prometheus", "get", "/metrics")}
        self.counts: Counter[str] = Counter()
        self.answers = True

    async def review_token(self, token: str) -> User | None:
        await self._answer("token")
        return self.users.get(token)

    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision:
        await self._answer("access")
        return AccessDecision((user.name, verb, path) in self.allowed, "")

    async def client_ca(self) -> str | None:
        return ""

    async def _answer(self, kind: str) -> None:
        self.counts[kind] += 1
        await asyncio.sleep(0.01)
        if not self.answers:
            raise ReviewFailed("Connection refused")


def test_a_token_is_needed_for_everything_but_probes() -> None:
    reviews = Reviews()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Reviews]:
        yield reviews

    async def scenario(port: int) -> None:
        assert await asyncio.to_thread(get, port, "/metrics", "prometheus") == (200, "m 1\n")
        assert await asyncio.to_thread(get, port, "/policy", "prometheus") == (
            403,
            'user "prometheus" cannot get path "/policy"\n',
        )
        assert (await asyncio.to_thread(get, port, "/metrics", "visitor"))[0] == 403
        assert await asyncio.to_thread(get, port, "/metrics", "forged") == (
            401,
            "the bearer token is not valid\n",
        )
        status = await asyncio.to_thread(get, port, "/metrics", "\xff\xfe")  # no UTF-8, as a header is sent
        assert status == (401, "the bearer token is not valid\n")
        for path in ("/metrics", "/policy", "/decisions", "/quotas", "/configz", "/version", "/nothing"):
            assert (await asyncio.to_thread(get, port, path))[0] == 403
        for path in ("/livez", "/readyz", "/healthz"):
            assert (await asyncio.to_thread(get, port, path))[0] == 200
        reviews.answers = False
        assert await asyncio.to_thread(get, port, "/metrics", "new") == (
            503,
            "cannot authenticate or authorize this request with the API server: Connection refused\n",
        )
        assert (await asyncio.to_thread(get, port, "/metrics", "prometheus"))[0] == 200

    served(scenario, HttpServerOptions(open_reviewer=opened))


def test_reasons_of_failed_checks_are_shown_to_those_who_may_read_the_policies() -> None:
    reviews = Reviews()
    reviews.allowed.add(("visitor", "get", "/policy"))
    health = Health(
        live={"loop": lambda: ""},
        ready={"sync": lambda: "", "policies": lambda: "payments-prod is broken"},
        warnings={"canaries": lambda: "canary denser of policy payments-prod is rolled back"},
    )

    @asynccontextmanager
    async def opened() -> AsyncIterator[Reviews]:
        yield reviews

    async def scenario(port: int) -> None:
        withheld = (
            "[+]sync ok\n[-]policies failed: reason withheld\n"
            "[!]canaries warning: reason withheld\nreadyz check failed\n"
        )
        for path in ("/readyz?verbose", "/readyz"):
            assert await asyncio.to_thread(get, port, path) == (500, withheld)
        assert reviews.counts.total() == 0, "a probe waits for no review"
        for token in ("prometheus", "forged"):
            assert await asyncio.to_thread(get, port, "/readyz?verbose", token) == (500, withheld)
        _, shown = await asyncio.to_thread(get, port, "/readyz?verbose", "visitor")
        assert "[-]policies failed: payments-prod is broken\n" in shown
        assert "[!]canaries warning: canary denser of policy payments-prod is rolled back\n" in shown

    served(scenario, HttpServerOptions(open_reviewer=opened), health=health)


def test_headers_of_a_front_proxy_name_no_user() -> None:
    """Neither to a client without a token, nor in place of the token's user."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Reviews]:
        yield Reviews()

    async def scenario(port: int) -> None:
        proxied = {"X-Remote-User": "prometheus", "X-Remote-Group": "system:masters"}
        for token in (None, "visitor"):
            status, _ = await asyncio.to_thread(get, port, "/metrics", token, proxied)
            assert status == 403
        assert (await asyncio.to_thread(get, port, "/metrics", "prometheus", proxied))[0] == 200

    served(scenario, HttpServerOptions(open_reviewer=opened))


class ListReviews(Reviews):
    """Everybody may list the pods of every namespace. Counts the reviews of each user."""

    async def review_list_pods(self, user: User, namespace: str | None) -> AccessDecision:
        self.counts[user.name] += 1
        await asyncio.sleep(0)
        return AccessDecision(True, "")


def test_viewers_of_many_namespaces_drop_no_answers_of_others_and_each_has_a_limit() -> None:
    async def scenario() -> None:
        reviews, now_s = ListReviews(), 100.0
        access = AccessControl(reviews, lambda: now_s)
        viewers = [User(f"viewer-{number}") for number in range(20)]
        for _ in range(2):
            for user in viewers:
                assert all([await access.may_list_pods(user, f"n{number}") for number in range(65)])
        assert set(reviews.counts.values()) == {65}, "the second time from the cache"

        greedy = User("greedy")
        answers = await asyncio.gather(
            *(access.may_list_pods(greedy, f"n{number}") for number in range(2_000))
        )
        assert reviews.counts["greedy"] == answers.count(True) == 512
        assert await access.may_list_pods(viewers[0], "n0")
        assert reviews.counts["viewer-0"] == 65

        now_s += CACHE_TTL_S
        assert await access.may_list_pods(greedy, "n1999")
        for number in range(1_000):
            await access.may_list_pods(User(f"other-{number}"), None)
        assert len(access._pod_lists) == 128

    asyncio.run(scenario())


def test_reviews_are_cached_and_concurrent_ones_are_sent_once() -> None:
    async def scenario() -> None:
        reviews, now_s, turns = Reviews(), 100.0, 0

        async def wait_turn() -> None:
            nonlocal turns
            turns += 1

        access = AccessControl(reviews, lambda: now_s)

        async def check() -> User:
            return await access.check("prometheus", None, "get", "/metrics", wait_turn)

        await asyncio.gather(*(check() for _ in range(20)))
        assert reviews.counts == {"token": 1, "access": 1}
        turns = 0
        now_s += CACHE_TTL_S - 0.1
        assert (await check()).name == "prometheus"
        assert (reviews.counts, turns) == ({"token": 1, "access": 1}, 0)

        now_s += 0.2
        reviews.allowed.clear()
        with pytest.raises(AccessDenied):
            await check()
        assert (reviews.counts, turns) == ({"token": 2, "access": 2}, 2)

    asyncio.run(scenario())


def test_a_client_fills_no_queue_of_reviews_while_the_api_server_is_slow() -> None:
    async def scenario() -> None:
        reviews = _SlowReviews()
        access = AccessControl(reviews)

        async def at_once() -> None:
            pass

        async def check(token: str, client: str) -> User:
            return await access.check(token, None, "get", "/metrics", at_once, client)

        hostile = [asyncio.create_task(check(f"forged-{number}", "10.0.0.1")) for number in range(500)]
        await asyncio.sleep(0)
        for task in hostile[:400]:
            task.cancel()  # its client has left
        await asyncio.sleep(0)
        refused = [task for task in hostile if not task.cancelled() and task.done()]
        assert {type(task.exception()) for task in refused} == {TooManyReviews}

        reader = asyncio.create_task(check("prometheus", "10.0.0.2"))
        rounds = 0
        while not reader.done():
            rounds += 1
            reviews.answer()
            await asyncio.sleep(0.001)
        assert reader.result().name == "prometheus"
        assert rounds <= 10, "its token waits for at most 16 others, eight at a time"

    asyncio.run(scenario())


def test_many_addresses_with_forged_tokens_send_the_api_server_few_reviews_and_delay_no_reader() -> None:
    """1,174 reviews a second from 100 addresses."""

    async def scenario() -> None:
        reviews, now_s = _PromptReviews(), 100.0
        access = AccessControl(reviews, lambda: now_s)

        async def at_once() -> None:
            pass

        async def check(token: str, client: str) -> str:
            try:
                return (await access.check(token, None, "get", "/metrics", at_once, client)).name
            except (AccessDenied, TooManyReviews) as error:
                return type(error).__name__

        assert await check("prometheus", "10.0.0.1") == "prometheus"
        for second in range(20):
            for number in range(2_000):
                await check(f"forged-{second}-{number}", f"10.1.0.{number % 100}")
            assert await check("prometheus", "10.0.0.1") == "prometheus", "its reviews are made again in time"
            now_s += 1
        assert reviews.counts["token"] <= 2 * 25 * 22

        reviews.users["new"] = User("new")
        reviews.allowed.add(("new", "get", "/metrics"))
        now_s += 60
        for number in range(2_000):
            await check(f"forged-{number}", f"10.1.0.{number % 10}")
        assert await check("new", "10.0.0.2") == "new", (
            "an address with few reviews goes before those with many"
        )

    asyncio.run(scenario())


def test_reviews_of_paths_that_an_anonymous_client_makes_up_have_the_same_limit() -> None:
    async def scenario() -> None:
        reviews = _PromptReviews()
        access = AccessControl(reviews, lambda: 0.0)

        async def at_once() -> None:
            pass

        for number in range(1_000):
            with pytest.raises((AccessDenied, TooManyReviews)):
                await access.check(None, None, "get", f"/{number}", at_once, f"10.1.0.{number % 100}")
        assert reviews.counts["access"] <= 2 * 2 * 25

    asyncio.run(scenario())


class _PromptReviews(Reviews):
    async def _answer(self, kind: str) -> None:
        self.counts[kind] += 1


class _SlowReviews(Reviews):
    """Answers what is asked when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = asyncio.Event()

    def answer(self) -> None:
        self._turn.set()
        self._turn = asyncio.Event()

    async def _answer(self, kind: str) -> None:
        await self._turn.wait()


def test_the_user_of_a_certificate_is_its_common_name_and_its_groups_the_organizations() -> None:
    subject = ((("organizationName", "ops"),), (("organizationName", "dev"),), (("commonName", "ann"),))

    assert certificate_user({"subject": subject}) == User("ann", ("ops", "dev", "system:authenticated"))
    assert certificate_user({"subject": ((("commonName", "root"),), *subject)}) == certificate_user(
        {"subject": subject}
    )
    assert certificate_user({"subject": subject[:2]}) is None
    assert certificate_user({}) is None
