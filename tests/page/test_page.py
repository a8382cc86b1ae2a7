"""The page in Chromium: hostile texts stay texts, 5,000 nodes are smooth, keys work, a lost server is said."""

import asyncio
import io
import pickle
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from policysched.comparison.try_worker import tried
from policysched.live.connection import LiveChannel, LiveTarget
from policysched.live.page_proxy import PageProxy
from policysched.runtime.policy_tries import WorkerTries
from tests.builders import node, pod
from tests.page.fixtures import Tab
from tests.page.served_page import Json, document, serving_documents
from tests.scheduler.rig import FIT, Rig

VIEWS = ("health", "pending", "queue", "nodes", "policy", "pod/default%2Fhuge")
PATHS = [f"/page/{name}" for name in ("overview", "pending", "queue", "nodes", "policies", "pod")]
UPDATE_MS_MAX = 100
"""Of the main thread, for one update."""
ATTACK = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script><b>bold</b>"


@cache
def rig() -> Rig:
    gang = [pod("huge", cpu="64", memory="1Gi"), pod("huge-2", cpu="64")]
    small = Rig(FIT, node("a", cpu="4"), node("b", cpu="500m", unschedulable=True), pod("fine"), *gang)
    small.settle()
    small.confirm_binds()
    return small


def of_rig(path: str, query: Mapping[str, str]) -> Json:
    return document(rig(), path, query)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    rig()  # not in the first request, which the server gives five seconds
    with serving_documents(of_rig, PATHS) as served:
        yield served


def test_the_pending_pod_and_its_story_are_a_click_apart(tab: Tab, url: str) -> None:
    tab.open(f"{url}/#pending")

    assert "Insufficient cpu" in tab.page.inner_text("article.cause")
    tab.page.click("article.cause a >> text=default/huge")
    tab.page.wait_for_selector("text=What would make it fit")

    assert tab.page.inner_text("h1").startswith("default/huge")
    assert "node_resources_fit" in tab.page.inner_text("main")


def test_the_page_of_the_command_works_below_its_key(tab: Tab, url: str) -> None:
    channel = tab.servers.enter_context(closing(LiveChannel(LiveTarget(url=url))))
    proxy = tab.servers.enter_context(PageProxy(0, channel.ask, channel.ask))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    tab.servers.callback(proxy.shutdown)
    for view in VIEWS:
        tab.open(f"{proxy.url}#{view}")
        tab.page.wait_for_selector("main h1")

    assert "node_resources_fit" in tab.page.inner_text("main")


def test_a_replica_that_follows_says_who_knows_what_is_pending(tab: Tab) -> None:
    empty = Rig(FIT)

    def of_standby(path: str, query: Mapping[str, str]) -> Json:
        leader = {"leader": {"leads": False, "holder": "pod-2_b"}} if path == "/page/overview" else {}
        return document(empty, path, query) | leader

    standby_url = tab.servers.enter_context(serving_documents(of_standby, PATHS))
    for view in ("pending", "queue"):
        tab.open(f"{standby_url}/#{view}")
        tab.until("document.querySelector('main').innerText.includes('pod-2_b shows the pending pods')")
        assert "No pod is pending" not in tab.page.inner_text("main")


def test_every_view_is_reached_by_its_key_and_has_a_heading(tab: Tab, url: str) -> None:
    tab.open(url)

    for key, title in enumerate(("Health", "Pending", "Queue", "Nodes", "Policy", "Pod", "Try"), start=1):
        tab.page.keyboard.press(str(key))
        tab.until(f"document.title.startsWith('{title}')")
        tab.page.wait_for_selector("main h1")
        assert tab.page.locator("main h1").count() == 1
        assert tab.page.locator('nav a[aria-current="page"]').inner_text().startswith(title)


def test_the_map_of_the_nodes_tells_the_chosen_one_to_the_keyboard(tab: Tab, url: str) -> None:
    tab.open(f"{url}/#nodes")
    tab.page.focus("canvas[tabindex]")

    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")

    detail = tab.page.inner_text(".detail")
    assert detail.startswith("b") and "of 0.5 cores" in detail and "cordoned" in detail


def test_a_policy_has_the_count_of_its_rule_in_the_margin(tab: Tab, url: str) -> None:
    tab.open(f"{url}/#policy")
    tab.page.wait_for_selector(".gutter b")

    margin = tab.page.locator(".row:has(.gutter b)")
    assert margin.count() == 1
    assert "alone" in margin.inner_text() and "fit" in margin.inner_text()
    assert "µs" in margin.inner_text()


class Tries:
    """The worker's answers, from this process; `attack` is added to each of their texts."""

    def __init__(self, attack: str = "") -> None:
        self._attack = attack

    def look(self, policy: str, *, simulates: bool) -> Any:
        app: Any = SimpleNamespace(
            scheduler=rig().scheduler, policy_feed=SimpleNamespace(texts={"main.policy": FIT})
        )
        return WorkerTries(app, 2**40, lambda: rig().now_ns).look(policy, simulates=simulates)

    async def run(self, visible: Any, text: str, *, placed: bool) -> Json:
        job = replace(visible.job, text=text, placed_max=500 if placed else 0)
        parts = [pickle.dumps(part) for part in (*visible.cluster.items(), None)]
        answer = await asyncio.to_thread(tried, job, io.BytesIO(b"".join(parts)))
        if self._attack and answer["comparison"]:
            for row in answer["comparison"]["pods"]:
                row |= {name: f"{row[name]}{self._attack}" for name in row}
        return answer


@pytest.mark.parametrize("more", ["\n" * 200_000, "1," * 90_000])
def test_the_longest_text_of_a_team_is_shown_in_a_moment(tab: Tab, more: str) -> None:
    """Its first lines, and a long line without colours: each row and each token is elements."""

    def long(path: str, query: Mapping[str, str]) -> Json:
        page = of_rig(path, query)
        if path == "/page/policies":
            page["policies"][0]["text"] = FIT + more
        return page

    url = tab.servers.enter_context(serving_documents(long, PATHS))
    tab.open(f"{url}/#policy")

    assert tab.page.locator(".code").locator("*").count() < 60_000
    assert "policy test" in tab.page.inner_text(".code .row >> nth=0")
    assert ("more lines" in tab.page.locator(".code").inner_text()) == ("\n" in more)


EDITOR_TEXT = "document.querySelector('.editor')?.shadowRoot.querySelector('.cm-content').innerText ?? ''"


LINTED = "[...document.querySelector('.editor').shadowRoot.querySelectorAll('.cm-lintRange-error')].map(each => each.innerText).join()"


def type_policy(tab: Tab, text: str) -> None:
    """In place of the text in the editor."""
    tab.page.click(".cm-content")
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.press("Delete")
    tab.page.keyboard.insert_text(text)


CLOSED = 'filter none reject node.name != "c" says "closed"'


def test_a_changed_policy_is_checked_as_one_types_and_simulated(tab: Tab) -> None:
    """Also when each text of the comparison is an attack."""
    url = tab.servers.enter_context(serving_documents(of_rig, PATHS, policy_tries=Tries(ATTACK)))
    tab.open(f"{url}/#try")
    tab.until(f"({EDITOR_TEXT}).includes('policy test')")
    assert tab.page.locator(".cm-line", has_text="policy test").locator("span").count() > 0, "no colours"
    tab.page.click(".cm-content")
    tab.page.keyboard.press("Control+End")
    tab.page.keyboard.type(f"# \N{GRINNING FACE}\n{CLOSED.replace('node.name', 'node.nam')} # 1/2")
    tab.until(f"{LINTED} === 'nam'")  # a slow machine also checks what is half typed
    tab.page.click(".diagnostic.error")

    assert (
        tab.page.evaluate("document.querySelector('.editor').shadowRoot.getSelection().toString()") == "nam"
    )
    tab.page.hover(".cm-lint-marker-error")
    assert "nam" in tab.page.locator(".cm-tooltip .cm-diagnostic-error").inner_text()

    type_policy(tab, FIT + CLOSED + "\n")
    tab.page.check("#placed-again")
    tab.page.focus(".cm-content")
    tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_selector("section table:not([hidden]) tbody tr")

    row = tab.page.locator("section table tbody tr").inner_text()
    assert "default/fine" in row and "become pending" in row and "filter none (line 4)" in row
    assert tab.page.evaluate("window.attacked") is None
    assert tab.page.locator("main img, main script").count() == 0


class RepeatedTries(Tries):
    async def run(self, visible: Any, text: str, *, placed: bool) -> Json:
        answer = await super().run(visible, text, placed=placed)
        return {**answer, "diagnostics": answer["diagnostics"] * 100}


COUNT_READS = """
globalThis.reads = 0;
const iterate = String.prototype[Symbol.iterator];
String.prototype[Symbol.iterator] = function () { reads += this.length > 1000; return iterate.call(this); };
"""


def test_the_text_is_read_once_for_all_diagnostics(tab: Tab) -> None:
    """500 warnings about 128 KiB stopped the tab for seconds."""
    url = tab.servers.enter_context(serving_documents(of_rig, PATHS, policy_tries=RepeatedTries()))
    tab.open(f"{url}/#try")
    tab.until(f"({EDITOR_TEXT}).includes('policy test')")
    tab.page.evaluate(COUNT_READS)
    comment = "# \N{GRINNING FACE}" + "x" * 2000 + "\n"
    type_policy(tab, FIT + comment + CLOSED.replace("node.name", "node.nam") + "\n")
    tab.until("document.querySelectorAll('.diagnostic.error').length >= 100")

    assert tab.page.locator(".cm-lintRange-error").first.inner_text() == "nam"
    assert 1 <= tab.page.evaluate("reads") <= 20, (
        "each check reads it once, and a slow machine checks more often"
    )


def test_an_edit_survives_a_look_at_another_view(tab: Tab) -> None:
    url = tab.servers.enter_context(serving_documents(of_rig, PATHS, policy_tries=Tries()))
    tab.open(f"{url}/#try")
    tab.until(f"({EDITOR_TEXT}).includes('policy test')")
    type_policy(tab, FIT + "# mine\n")
    tab.page.evaluate("location.hash = 'health'")
    tab.until("document.title.startsWith('Health')")
    tab.page.evaluate("location.hash = 'try'")
    tab.until(f"({EDITOR_TEXT}).includes('# mine')")

    tab.page.click("text=Back to the running text")

    assert "# mine" not in tab.page.evaluate(EDITOR_TEXT)


def hostile(value: Any) -> Any:
    """The same document with an attack in each text that is shown."""
    if isinstance(value, dict):
        return {name: hostile(part) for name, part in value.items()}
    if isinstance(value, list):
        return [hostile(part) for part in value]
    return f"{value}{ATTACK}" if isinstance(value, str) else value


def test_text_of_a_tenant_is_never_markup(tab: Tab) -> None:
    def attacked(path: str, query: Mapping[str, str]) -> Json:
        page = of_rig(path, query)
        kept = {name: page[name] for name in ("by", "type") if name in page}
        return hostile(page) | kept

    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")  # a change draws the charts again
    attacked_url = tab.servers.enter_context(serving_documents(attacked, PATHS))
    for view in VIEWS:
        tab.open(f"{attacked_url}/#{view}")
        for scheme in schemes:
            tab.page.emulate_media(color_scheme=scheme)
            tab.until("document.querySelector('main').innerText.includes('onerror')")
            assert tab.page.evaluate("window.attacked") is None
            assert tab.page.locator("main img, main script, main b:has-text('bold')").count() == 0


def test_the_browser_also_refuses_markup(tab: Tab, url: str) -> None:
    """The planted bug: a view that sets `innerHTML`. Trusted Types and the policy of the headers refuse it."""
    tab.open(url)

    refused = tab.page.evaluate(
        """attack => { try { document.querySelector("main").innerHTML = attack; return "shown"; } catch (e) { return e.name; } }""",
        ATTACK,
    )

    assert refused == "TypeError"
    assert tab.page.evaluate("window.attacked") is None
    assert any("TrustedHTML" in problem for problem in tab.problems)
    tab.problems.clear()


def test_5000_nodes_are_drawn_within_the_budget_of_an_update(tab: Tab) -> None:
    """Every update has other values, so that each is drawn whole."""
    turn = [0]

    def large(path: str, query: Mapping[str, str]) -> Json:
        page = of_rig(path, query)
        if path == "/page/nodes":
            turn[0] += 1
            page["names"] = [f"node-{index:04}" for index in range(5000)]
            page["values"] = [(index * 37 + turn[0] * 91) % 4000 for index in range(5000)]
            page |= {
                "of": [4000] * 5000,
                "pods": [7] * 5000,
                "flags": [2 * (n % 9 == 0) for n in range(5000)],
            }
        return page

    large_url = tab.servers.enter_context(serving_documents(large, PATHS))
    tab.open(f"{large_url}/#nodes")
    tab.until("globalThis.policyschedUpdates.length >= 5")

    worked_ms = tab.page.evaluate("globalThis.policyschedUpdates")
    assert turn[0] >= 3
    assert min(worked_ms[1:]) < UPDATE_MS_MAX, worked_ms  # the others waited for a processor
    assert "5,000 nodes" in tab.page.inner_text("h1")


def test_a_lost_server_is_reported_and_the_last_data_stays_visible(tab: Tab) -> None:
    with serving_documents(of_rig, PATHS) as short_url:
        tab.open(f"{short_url}/#pending")
    tab.page.wait_for_selector("text=no answer; retrying")

    assert "Insufficient cpu" in tab.page.inner_text("article.cause")
    assert all("Failed to load resource" in problem for problem in tab.problems)
    tab.problems.clear()
