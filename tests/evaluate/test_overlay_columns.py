"""The arrays of an overlay: they follow its changes, and rows that did not change are not read again."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate.columns.column_kinds import RequestedColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.view import View
from policysched.model.identifiers import NodeName
from tests import builders

CPU = RequestedColumn("cpu")


def overlay_of(count: int) -> Overlay:
    cache = ClusterCache()
    for index in range(count):
        cache.put_node(builders.node(f"n{index:02}", cpu="16"))
        cache.put_pod(builders.placed(builders.pod(f"low{index:02}", cpu="1"), f"n{index:02}"))
    return Evaluator(cache).overlay()


def view(overlay: Overlay) -> View:
    return View(overlay._columns, overlay_usages=overlay.usages, overlay_array=overlay.array)


def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    count: Counter[str] = Counter()
    read: Callable[..., int] = RequestedColumn.read

    def counting(self: RequestedColumn, node: Any, *more: Any) -> int:
        count[node.name] += 1
        return read(self, node, *more)

    monkeypatch.setattr(RequestedColumn, "read", counting)
    return count


def test_only_rows_that_changed_since_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = overlay_of(30)
    for index in range(20):
        overlay.add_pod(builders.pod(f"new{index}", cpu="2"), NodeName(f"n{index:02}"))
    before = view(overlay).column(CPU)
    overlay.remove_pod(builders.pod("new3").uid)
    overlay.remove_pod(builders.pod("low25").uid)
    count = reads(monkeypatch)
    after = [view(overlay).column(CPU) for _ in range(5)][-1]

    assert count == {"n25": 1}
    assert before.tolist() == [3000] * 20 + [1000] * 10
    assert after.tolist() == [3000] * 3 + [1000] + [3000] * 16 + [1000] * 5 + [0] + [1000] * 4
