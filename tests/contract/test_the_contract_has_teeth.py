"""Bugs planted in the simulator, and the sentences of the contract that catch them."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.sandbox.apiserver import patches
from policysched.sandbox.apiserver.registry import ResourceRegistry
from policysched.sandbox.apiserver.store import StoredCollection
from policysched.sandbox.apiserver.watch import WatchSubscription
from tests.contract import test_binding, test_deleting, test_listing, test_watching, test_writing
from tests.contract.transports import Api

Plant = Callable[[pytest.MonkeyPatch], None]


def binds_whatever_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ResourceRegistry.bind

    def bind(
        self: ResourceRegistry, kind: Any, namespace: str, name: str, binding: Any, *, dry_run: bool = False
    ) -> Any:
        entry = self.get(kind, namespace, name)
        spec = {key: value for key, value in entry.obj["spec"].items() if key != "nodeName"}
        entry.obj["spec"] = spec
        return honest(self, kind, namespace, name, binding, dry_run=dry_run)

    monkeypatch.setattr(ResourceRegistry, "bind", bind)


def never_finds_a_version_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ResourceRegistry._update

    def updated(self: ResourceRegistry, kind: Any, old: Any, obj: Any, **rest: Any) -> Any:
        obj["metadata"].pop("resourceVersion", None)
        return honest(self, kind, old, obj, **rest)

    monkeypatch.setattr(ResourceRegistry, "_update", updated)


def forgets_what_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, version: Any) -> Any:
        return self.history[-1:]

    monkeypatch.setattr(StoredCollection, "changes_after", planted)


def shows_pages_of_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StoredCollection.snapshot_at

    def planted(self: Any, version: Any, *rest: Any) -> Any:
        return honest(self, self.history[-1].version, *rest)

    monkeypatch.setattr(StoredCollection, "snapshot_at", planted)


def shows_every_change_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, change: Any) -> Any:
        return change.type

    monkeypatch.setattr(WatchSubscription, "_event_type_for", planted)


def replaces_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(path: Any) -> Any:
        return None

    monkeypatch.setattr(patches, "merge_key", planted)


def lets_a_status_write_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, kind: Any, before: Any, obj: Any, subresource: Any) -> Any:
        return obj

    monkeypatch.setattr(ResourceRegistry, "_restrict_to_subresource", planted)


def deletes_bound_pods_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, kind: Any, obj: Any, options: Any) -> Any:
        return 0

    monkeypatch.setattr(ResourceRegistry, "_grace_s", planted)


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (binds_whatever_is_bound, test_binding.test_a_second_bind_answers_409_and_nothing_changes),
        (never_finds_a_version_stale, test_writing.test_a_lease_with_a_stale_version_answers_409),
        (
            never_finds_a_version_stale,
            test_writing.test_a_replace_with_a_stale_version_answers_409_and_changes_nothing,
        ),
        (
            never_finds_a_version_stale,
            test_binding.test_a_condition_with_the_version_before_the_bind_answers_409,
        ),
        (
            forgets_what_came_between,
            test_watching.test_a_watch_from_a_version_sees_what_happened_between_it_and_now,
        ),
        (shows_pages_of_the_present, test_listing.test_pages_show_one_state_of_the_collection),
        (shows_every_change_as_it_is, test_watching.test_a_watch_with_a_selector_sees_objects_come_and_go),
        (replaces_lists, test_writing.test_a_strategic_patch_merges_conditions_by_type),
        (lets_a_status_write_the_spec, test_writing.test_a_patch_of_the_status_does_not_touch_the_spec),
        (deletes_bound_pods_at_once, test_deleting.test_a_pod_on_a_node_is_left_to_its_kubelet),
    ],
)
def test_a_planted_bug_is_caught(
    memory_api: Api, monkeypatch: pytest.MonkeyPatch, plant: Plant, sentence: Callable[[Api], None]
) -> None:
    plant(monkeypatch)

    with pytest.raises((AssertionError, KeyError, TimeoutError)):
        sentence(memory_api)
