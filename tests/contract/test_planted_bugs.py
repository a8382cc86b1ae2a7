"""Planted bugs in the simulated API server. Each fails a test of the contract."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.sandbox.apiserver import apply, patches, server
from policysched.sandbox.apiserver.apply import Apply
from policysched.sandbox.apiserver.custom_schema import CustomSchema
from policysched.sandbox.apiserver.registry import ResourceRegistry
from policysched.sandbox.apiserver.store import ObjectStore, StoredCollection
from policysched.sandbox.apiserver.subresources import bind
from policysched.sandbox.apiserver.watch import WatchSubscription
from tests.contract import (
    test_apply,
    test_binding,
    test_custom_resources,
    test_deletion,
    test_lists,
    test_watches,
    test_writes,
)
from tests.contract.transports import Api

Plant = Callable[[pytest.MonkeyPatch], None]


def bind_bound_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(
        registry: ResourceRegistry, kind: Any, namespace: str, name: str, *rest: Any, **more: Any
    ) -> Any:
        entry = registry.get(kind, namespace, name)
        spec = {key: value for key, value in entry.obj["spec"].items() if key != "nodeName"}
        entry.obj["spec"] = spec
        return bind(registry, kind, namespace, name, *rest, **more)

    monkeypatch.setattr(server, "bind", planted)


def accept_stale_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ResourceRegistry._update

    def updated(self: ResourceRegistry, kind: Any, old: Any, obj: Any, **rest: Any) -> Any:
        obj["metadata"].pop("resourceVersion", None)
        return original(self, kind, old, obj, **rest)

    monkeypatch.setattr(ResourceRegistry, "_update", updated)


def drop_history_of_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, version: Any) -> Any:
        return self.history[-1:]

    monkeypatch.setattr(StoredCollection, "changes_after", planted)


def show_pages_of_the_latest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    original = StoredCollection.snapshot_at

    def planted(self: Any, version: Any, *rest: Any) -> Any:
        return original(self, self.history[-1].version, *rest)

    monkeypatch.setattr(StoredCollection, "snapshot_at", planted)


def ignore_selectors_of_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, change: Any) -> Any:
        return change.type

    monkeypatch.setattr(WatchSubscription, "_event_type_for", planted)


def replace_lists_in_strategic_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(path: Any) -> Any:
        return None

    monkeypatch.setattr(patches, "merge_key", planted)


def write_the_spec_through_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, kind: Any, before: Any, obj: Any, subresource: Any) -> Any:
        return obj

    monkeypatch.setattr(ResourceRegistry, "_restrict_to_subresource", planted)


def delete_bound_pods_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Any, kind: Any, obj: Any, options: Any) -> Any:
        return 0

    monkeypatch.setattr(ResourceRegistry, "_grace_s", planted)


def let_every_manager_overwrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apply, "_check_conflicts", lambda *_: None)


def forget_what_was_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_remove", lambda *_: None)


def keep_unknown_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CustomSchema, "prune", lambda *_: [])


def accept_what_the_schema_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CustomSchema, "causes", lambda *_: [])


def keep_the_objects_of_a_deleted_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ObjectStore.remove

    def planted(self: ObjectStore, resource: str, key: Any) -> Any:
        entry = self.get(resource, key)
        return entry if resource.startswith("widgets.") else original(self, resource, key)

    monkeypatch.setattr(ObjectStore, "remove", planted)


@pytest.mark.parametrize(
    ("plant", "contract_test", "raised", "message"),
    [
        (
            keep_unknown_fields,
            test_custom_resources.test_defaults_are_set_and_unknown_fields_are_pruned,
            AssertionError,
            "colour",
        ),
        (
            accept_what_the_schema_forbids,
            test_custom_resources.test_each_field_that_the_schema_forbids_is_named,
            AssertionError,
            "201",
        ),
        (
            keep_the_objects_of_a_deleted_definition,
            test_custom_resources.test_a_deleted_definition_takes_its_objects_along,
            AssertionError,
            "the watch ended",
        ),
        (
            write_the_spec_through_the_status,
            test_custom_resources.test_the_status_is_written_by_its_subresource_alone,
            AssertionError,
            "7",
        ),
        (
            let_every_manager_overwrite,
            test_apply.test_another_managers_value_is_a_conflict_and_changes_nothing,
            AssertionError,
            "200",
        ),
        (
            forget_what_was_applied,
            test_apply.test_an_apply_removes_what_its_manager_alone_had_applied,
            AssertionError,
            "front",
        ),
        (
            bind_bound_pods,
            test_binding.test_a_second_bind_answers_409_and_nothing_changes,
            AssertionError,
            "201",
        ),
        (
            accept_stale_versions,
            test_writes.test_a_lease_with_a_stale_version_answers_409,
            KeyError,
            "reason",
        ),
        (
            accept_stale_versions,
            test_writes.test_a_replace_with_a_stale_version_answers_409_and_changes_nothing,
            KeyError,
            "reason",
        ),
        (
            accept_stale_versions,
            test_binding.test_a_condition_with_the_version_before_the_bind_answers_409,
            KeyError,
            "reason",
        ),
        (
            drop_history_of_watches,
            test_watches.test_a_watch_from_a_version_shows_the_changes_since_then,
            TimeoutError,
            "^$",
        ),
        (
            show_pages_of_the_latest_version,
            test_lists.test_pages_show_one_state_of_the_collection,
            AssertionError,
            "At index 0",
        ),
        (
            ignore_selectors_of_watches,
            test_watches.test_a_watch_with_a_selector_shows_objects_that_start_and_stop_matching,
            AssertionError,
            "MODIFIED",
        ),
        (
            replace_lists_in_strategic_patches,
            test_writes.test_a_strategic_patch_merges_conditions_by_type,
            AssertionError,
            "PodScheduled",
        ),
        (
            write_the_spec_through_the_status,
            test_writes.test_a_patch_of_the_status_does_not_touch_the_spec,
            AssertionError,
            "activeDeadlineSeconds",
        ),
        (
            delete_bound_pods_at_once,
            test_deletion.test_a_pod_on_a_node_is_marked_and_its_kubelet_deletes_it,
            KeyError,
            "deletionTimestamp",
        ),
    ],
)
def test_a_planted_bug_fails_a_contract_test(
    memory_api: Api,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    contract_test: Callable[[Api], None],
    raised: type[Exception],
    message: str,
) -> None:
    plant(monkeypatch)

    with pytest.raises(raised, match=message):
        contract_test(memory_api)
