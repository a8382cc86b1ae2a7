"""`/decisions` of one pod: what it waits for now, decided upon or not."""

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jsonschema

from policysched.daemon.status_documents import DecisionsDocument
from policysched.schemas import schema
from tests.builders import finished, node, pending, placed, pod
from tests.scheduler.rig import FIT, Rig
from tests.scheduler.test_first_samples import COOL


def page(rig: Rig, pod_name: str) -> dict[str, Any]:
    decisions_page: dict[str, Any] = json.loads(
        DecisionsDocument(rig.scheduler, lambda: None).look(10, pod_name)()
    )
    jsonschema.validate(decisions_page, schema("decisions"))
    return decisions_page


def test_the_status_of_an_undecided_pod_says_what_it_waits_for() -> None:
    rig = Rig(COOL, node("a"), pod("web"), first_samples_s=10.0, source="main")
    rig.settle()

    shown = page(rig, "default/web")

    assert shown["decisions"] == []
    assert (shown["waiting"]["queue"], shown["waiting"]["message"]) == (
        "active",
        "policy test is waiting for the first samples of load (source main)",
    )


def test_the_status_of_an_unschedulable_pod_has_its_message_and_requeue_events() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("web", cpu="2"))
    rig.settle()

    waiting = page(rig, "default/web")["waiting"]

    assert (waiting["queue"], waiting["attempts"]) == ("unschedulable", 1)
    assert waiting["message"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert "AssignedPodDelete" in waiting["requeue_events"]
    assert waiting["backoff_until"] is not None


def test_the_status_of_a_gated_pod_names_its_gates() -> None:
    rig = Rig(FIT, node("a"), pod("web", gates=["example.com/quota"]))

    assert page(rig, "default/web")["waiting"]["message"] == (
        "waits for its scheduling gates: example.com/quota"
    )


def test_the_status_of_a_pod_that_no_policy_schedules_says_why() -> None:
    foreign = replace(pod("foreign"), scheduler="else")
    leaving = replace(pending(replace(pod("leaving"), scheduler="else")), deleting=True)
    rig = Rig(FIT, node("a"), foreign, leaving, placed(pod("there"), "a"), finished(pod("done"), "a"))

    notes = {name: page(rig, f"default/{name}")["note"] for name in ("foreign", "leaving", "there", "done")}

    assert notes == {
        "foreign": "its schedulerName is `else`, and no policy of that name runs here; running policies: test",
        "leaving": "it is being deleted",
        "there": "it is on a",
        "done": "pod default/done does not exist or has finished",
    }


def test_the_status_of_a_pod_of_a_rejected_policy_refers_to_its_errors() -> None:
    rig = Rig({"test.policy": FIT, "odd.policy": "policy odd version 1\nfilter x require y\n"}, node("a"))
    rig.observe(replace(pod("web"), scheduler="odd"))

    assert page(rig, "default/web")["note"] == (
        "policy `odd` is rejected and no earlier version is active; /policy has the errors in odd.policy"
    )


def test_without_a_pod_the_status_has_no_pod() -> None:
    rig = Rig(FIT, node("a"), pod("web"))

    assert page(rig, "") == {"decisions": [], "note": None}
    assert page(rig, "default/web")["note"] is None


def test_a_page_shows_the_moment_of_its_snapshot_and_renders_each_record_once() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("web", cpu="2"))
    rig.settle()
    status = DecisionsDocument(rig.scheduler, lambda: "not leading")
    snapshot = status.look(10, "")
    rig.observe(pod("second", cpu="500m"))
    rig.settle()

    before, after = json.loads(snapshot()), json.loads(status.look(10, "")())

    assert [record["pod"] for record in before["decisions"]] == ["default/web"]
    assert [record["pod"] for record in after["decisions"]] == ["default/second", "default/web"]
    assert after["note"] == "not leading"
    with patch("policysched.daemon.status_documents._decision", side_effect=AssertionError("rendered again")):
        assert json.loads(status.look(1, "")())["decisions"] == after["decisions"][:1]


def test_a_name_without_a_namespace_is_looked_for_in_all_of_them() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("web", cpu="3", namespace="shop"), pod("twin", cpu="2"))
    rig.observe(pod("twin", cpu="2", namespace="shop", uid="other"))
    rig.settle()

    assert page(rig, "web")["waiting"]["pod"] == "shop/web"
    assert {decision["pod"] for decision in page(rig, "web")["decisions"]} == {"shop/web"}
    twins = page(rig, "twin")
    assert twins["waiting"] is None
    assert twins["note"] == "several pods are named twin: default/twin, shop/twin; name one as NAMESPACE/NAME"
    assert page(rig, "nobody")["note"] == "no pod named nobody exists in any namespace"
