"""Traffic between pods: members are placed near their peers, also those of the same attempt."""

import pytest

from policysched.cluster.metric_samples import MetricSamples, PairEndpoint
from policysched.evaluate.columns.gang_members import HypotheticalGangMembers
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import namespace, node, pod
from tests.scheduler.rig import Rig

POLICY = """\
policy test version 1
metric talk: bandwidth {{
  query = "flows"
  unit = "bit/s"
  from = ["ns", "pod"]
  to = ["peer_ns", "peer_pod"]
  every = 15s
  stale = 90s
  {assume}
}}
gang by pod.labels["group"] {{ min = {least} timeout = 5m {mode} }}
{more}
filter node_resources_fit
filter where when has pod.labels["only"] require node.name == (pod.labels["only"] else "")
score near weight 1 higher traffic_to(gang{label}) normalize range(0bps, 1Gbps) missing {missing}
preemption never
"""


def policy(
    assume: str = "",
    least: int = 1,
    mode: str = "mode = gate",
    label: str = "",
    missing: str = "worst",
    more: str = "",
) -> str:
    return POLICY.format(assume=assume, least=least, mode=mode, label=label, missing=missing, more=more)


def member(name: str, only: str = "", cpu: str = "1", group: str = "g") -> Pod:
    labels = {"group": group} | ({"only": only} if only else {})
    return pod(name, cpu=cpu, labels=labels)


def flows(rig: Rig, *pairs: tuple[str, str, float]) -> e.SamplesArrived:
    by_pair: dict[PairEndpoint, dict[PairEndpoint, float | None]] = {}
    for first, two, rate in pairs:
        a, b = ("default", first), ("default", two)
        by_pair.setdefault(a, {})[b] = by_pair.setdefault(b, {})[a] = rate
    return e.SamplesArrived("test", "talk", MetricSamples({}, rig.now_ns, pairs=by_pair))


def nodes(**zones: str) -> list[Node]:
    return [node(name, cpu="8", zone=zone) for name, zone in zones.items()]


def a_trial() -> Rig:
    """Two members pinned to nodes of their own, a third that talks to the second: all placed in one step."""
    rig = Rig(policy(least=3, mode=""), *nodes(a="z", b="z", c="z", d="z"))
    rig.handle(flows(rig, ("w0", "w2", 1e6), ("w1", "w2", 9e8)))
    rig.observe(member("w0", only="a"), member("w1", only="d"), member("w2"))
    rig.settle()
    return rig


def test_members_of_one_attempt_see_each_other() -> None:
    rig = a_trial()

    assert rig.placements() == {"w0": "a", "w1": "d", "w2": "d"}


def test_overlooked_members_of_the_same_attempt_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HypotheticalGangMembers, "catch_up", lambda *_: None)
    monkeypatch.setattr(HypotheticalGangMembers, "rows_of", lambda self, gang: self._members.rows_of(gang))

    assert a_trial().placements()["w2"] != "d"


def test_a_replaced_member_is_placed_by_the_current_node_of_its_peer() -> None:
    rig = Rig(policy(), *nodes(a="z", b="z", c="z"))
    rig.handle(flows(rig, ("db-0", "db-1", 9e8)))
    rig.observe(member("db-0", only="b"))
    rig.settle()

    rig.observe(member("db-1"))
    rig.settle()

    assert rig.placements() == {"db-0": "b", "db-1": "b"}


def test_within_a_domain_the_rack_of_the_peer_is_as_good_as_its_node() -> None:
    rig = Rig(policy(label=', "topology.kubernetes.io/zone"'), *nodes(a="z1", b="z2", c="z2"))
    rig.handle(flows(rig, ("db-0", "db-1", 9e8)))
    rig.observe(member("db-0", only="b", cpu="8"))
    rig.settle()

    rig.observe(member("db-1"))
    rig.settle()

    assert rig.placements()["db-1"] == "c"


def test_a_pod_of_another_gang_is_not_a_peer_whatever_its_traffic() -> None:
    rig = Rig(policy(more="filter apart require traffic_to(gang) < 1Mbps missing reject"), *nodes(a="z"))
    rig.handle(flows(rig, ("db-0", "web", 9e8), ("db-0", "db-1", 9e8)))
    rig.observe(member("db-0"))
    rig.settle()

    rig.observe(member("web", group="other"), member("db-1"))
    rig.settle()

    assert rig.placements() == {"db-0": "a", "web": "a"}


def test_a_gang_without_samples_is_placed_by_the_assumed_traffic() -> None:
    rig = Rig(policy(assume="assume = 300Mbps"), *nodes(a="z", b="z", c="z"))
    rig.handle(flows(rig))
    rig.observe(member("new-0", only="b"))
    rig.settle()

    rig.observe(member("new-1"), member("new-2"))
    rig.settle()

    assert set(rig.placements().values()) == {"b"}


def test_without_a_fresh_poll_the_traffic_is_missing() -> None:
    rig = Rig(policy(more="filter known require traffic_to(gang) < 1Gbps missing reject"), *nodes(a="z"))
    rig.observe(member("db-0"))
    rig.settle()
    before = rig.pending_message("db-0")

    rig.handle(flows(rig, ("db-0", "db-1", 1e6)))
    rig.settle()

    assert before == "0/1 nodes are available: 1 node(s) had no sample of talk."
    assert rig.placements() == {"db-0": "a"}


def test_an_outage_of_a_pair_metric_applies_to_all_nodes() -> None:
    outage = (
        "filter known require traffic_to(gang) < 1Gbps missing reject\noutage { above = 50% then = disable }"
    )
    rig = Rig(policy(more=outage), *nodes(a="z"))
    rig.handle(flows(rig, ("db-0", "db-1", 1e6)))
    rig.settle()
    rig.pass_time(120)
    rig.observe(member("db-0"))
    rig.settle()

    assert rig.placements() == {"db-0": "a"}
    assert [report.reason for report in rig.of(c.ReportPolicyEvent)] == ["MetricOutage"]


def test_a_gang_keyed_by_namespace_labels_follows_their_changes() -> None:
    text = policy(more="filter apart require traffic_to(gang) < 1Mbps missing reject")
    text = text.replace('pod.labels["group"]', 'namespace.labels["team"]')
    rig = Rig(text, *nodes(a="z"), namespace("default", team="red"))
    rig.handle(flows(rig, ("db-0", "db-1", 9e8), ("db-1", "db-2", 9e8)))
    rig.observe(member("db-0"))
    rig.settle()
    rig.observe(member("db-1"))
    rig.settle()
    before = rig.placements()

    rig.handle(e.NamespaceUpdated(namespace("default", team="blue")), e.PodDeleted(member("db-0").uid))
    rig.settle()

    assert before == {"db-0": "a"}
    assert rig.placements()["db-1"] == "a"
