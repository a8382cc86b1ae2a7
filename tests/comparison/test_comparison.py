"""What `diff` says is what the scheduler would do, gangs and preemption included; and its measures."""

import random

import pytest

from policysched.comparison.comparison import compare
from policysched.comparison.fail_condition import BadFailCondition, parse_fail_condition
from policysched.comparison.outcomes import PodOutcome, pod_changes
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import simulate
from tests.builders import node_manifest, pod_manifest
from tests.comparison.clusters import EDITS, NOW_NS, POLICY, compared, edited, policy, random_files

GANGS = """\
policy test version 1
input team: string = pod.labels["team"] optional
gang by team { min = 3 }
include kube_default
filter small require node.pods < 9
"""


def files_of(*objects: dict[str, object]) -> ClusterFiles:
    files = ClusterFiles()
    for item in objects:
        files.add(item)
    assert not files.malformed, files.malformed
    return files


@pytest.mark.parametrize("seed", range(4))
def test_the_changed_pods_are_those_that_two_simulations_place_differently(seed: int) -> None:
    files = random_files(seed)
    texts = POLICY, edited(random.Random(seed).sample(EDITS, 2))

    comparison = compare(policy(texts[0]), policy(texts[1]), compared(files))

    final: list[dict[str, str]] = []
    for text in texts:
        result = simulate(policy(text), files, samples={}, scope="named", now_ns=NOW_NS)
        final.append({placement.pod: placement.node for placement in result.placements})
        final[-1] |= dict.fromkeys(result.preempted, "evicted")
    differing = {pod for pod in final[0].keys() | final[1].keys() if final[0].get(pod) != final[1].get(pod)}
    assert {pod for pod, change in comparison.changed.items() if change.kind != "reordered"} == differing


def test_a_gang_that_no_longer_fits_becomes_pending_whole() -> None:
    files = files_of(
        node_manifest("a", cpu="4"),
        *(pod_manifest(f"member-{number}", cpu="1", labels={"team": "x"}) for number in range(3)),
        pod_manifest("single", cpu="1"),
    )

    comparison = compare(policy(GANGS), policy(GANGS.replace("< 9", "< 2")), compared(files))

    kinds = {pod.removeprefix("default/"): change.kind for pod, change in comparison.changed.items()}
    members = {f"member-{number}": "newly_pending" for number in range(3)}
    assert {pod: kind for pod, kind in kinds.items() if pod != "single"} == members


def test_a_policy_that_may_evict_is_shown_with_its_victims() -> None:
    files = files_of(
        node_manifest("a", cpu="2"),
        pod_manifest("low", cpu="2", priority=1, node="a", phase="Running"),
        pod_manifest("high", cpu="2", priority=9),
    )
    text = "policy test version 1\ninclude kube_default\npreemption never\n"

    comparison = compare(policy(text), policy(text.replace("never", "{ victims = any }")), compared(files))

    kinds = {pod: change.kind for pod, change in comparison.changed.items()}
    assert kinds == {"default/low": "newly_evicted", "default/high": "newly_placed"}


def test_a_policy_with_another_name_places_the_same_pods() -> None:
    files = random_files(5)

    comparison = compare(
        policy(POLICY), policy(POLICY.replace("policy test", "policy next")), compared(files)
    )

    assert not comparison.changed
    assert comparison.pods > 0


def test_the_rule_that_rejects_the_earlier_node_is_named_with_its_line() -> None:
    files = files_of(
        node_manifest("a"), node_manifest("b", labels={"pool": "b"}), pod_manifest("web", cpu="1")
    )
    text = (
        'policy test version 1\ninput pool: string = node.labels["pool"] default ""\ninclude kube_default\n'
    )
    old = text + 'score first weight 9 prefer pool == "b"\n'
    new = old + 'filter not_b require pool != "b" says "pool {pool} is closed"\n'

    comparison = compare(policy(old), policy(new), compared(files))

    rule = comparison.decisive["default/web"]
    assert (rule.kind, rule.rule, rule.location) == ("rejection", "not_b", "test.policy:5")
    assert rule.text == "rejects b: pool b is closed"


def test_the_score_that_puts_another_node_ahead_is_named_with_its_line() -> None:
    files = files_of(
        node_manifest("a"), node_manifest("b", labels={"pool": "b"}), pod_manifest("web", cpu="1")
    )
    text = (
        'policy test version 1\ninput pool: string = node.labels["pool"] default ""\ninclude kube_default\n'
    )
    old = text + 'score liked weight 9 prefer pool == "b"\n'
    new = text + 'score liked weight 9 prefer pool != "b"\n'

    comparison = compare(policy(old), policy(new), compared(files))

    rule = comparison.decisive["default/web"]
    assert (rule.kind, rule.rule, rule.location) == ("score", "liked", "test.policy:4")
    assert rule.text == "puts a ahead of b by 900 (liked +900)"


def test_one_pod_that_overtakes_others_is_the_only_one_out_of_order() -> None:
    names = [f"default/{name}" for name in "abcdef"]
    before = {name: PodOutcome("placed", "n", order) for order, name in enumerate(names)}
    after = {name: PodOutcome("placed", "n", order) for order, name in enumerate([names[-1], *names[:-1]])}

    changed = pod_changes(before, after)

    assert {name: change.kind for name, change in changed.items()} == {"default/f": "reordered"}


def test_utilisation_spread_and_waiting_are_of_the_final_placements() -> None:
    files = files_of(
        node_manifest("a", cpu="4", zone="east"),
        node_manifest("b", cpu="4", zone="west"),
        pod_manifest("r", cpu="1", node="a", phase="Running", scheduler="other"),
        *(pod_manifest(f"w-{number}", cpu="1", owner=("apps/v1", "ReplicaSet", "w")) for number in range(2)),
        pod_manifest("huge", cpu="64"),
    )
    old = 'policy test version 1\ninclude kube_default\nfilter east require node.name == "a"\n'

    comparison = compare(policy(old), policy(old.replace('"a"', '"b"')), compared(files))

    before, after = comparison.before, comparison.after
    assert before.utilisation["cpu"].total == after.utilisation["cpu"].total == 3 / 8
    assert (before.utilisation["cpu"].highest, after.utilisation["cpu"].highest) == (0.75, 0.5)
    assert before.spread["topology.kubernetes.io/zone"].pods == {"east": 2, "west": 0}
    assert after.spread["topology.kubernetes.io/zone"].skew == 2
    assert (before.empty_nodes, after.empty_nodes) == (1, 0)
    assert before.waiting.pods == after.waiting.pods == 1


def test_link_headroom_is_what_the_pods_leave_of_the_capacity() -> None:
    policy_text = """\
policy test version 1
input egress: bandwidth = pod.annotations["egress"] unit "Mbit/s" default 0bps invalid default
input nic: bandwidth = node.labels["nic"] unit "Mbit/s" default 1Gbps invalid default
resource uplink { capacity = nic, request = egress }
include kube_default
filter place require node.name == "a"
"""
    files = files_of(
        node_manifest("a"),
        node_manifest("b", labels={"nic": "500"}),
        pod_manifest("web", cpu="1", annotations={"egress": "400"}),
    )

    comparison = compare(policy(policy_text), policy(policy_text.replace('"a"', '"b"')), compared(files))

    before, after = (of.link_headroom["uplink"] for of in (comparison.before, comparison.after))
    assert (before.lowest, after.lowest) == (0.6, 0.2)
    assert before.total == after.total == 1100 / 1500


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("moved > 0", True),
        ("moved > 1", False),
        ("moved > 50%", False),
        ("moved >= 50%", True),
        ("newly_pending > 0 or moved + reordered > 40%", True),
        ("not (changed == 1)", False),
        ("pending > 0", False),
    ],
)
def test_a_condition_counts_pods_or_their_share(text: str, *, holds: bool) -> None:
    files = files_of(
        node_manifest("a"),
        node_manifest("b"),
        pod_manifest("web", cpu="1", labels={"app": "web"}),
        pod_manifest("db", cpu="1", node_selector={"kubernetes.io/hostname": "a"}),
    )
    old = 'policy test version 1\ninclude kube_default\nfilter f when has pod.labels["app"] require node.name == "a"\n'

    comparison = compare(policy(old), policy(old.replace('"a"', '"b"')), compared(files))

    assert parse_fail_condition(text).holds(comparison) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("moved", "column 1: expected a comparison"),
        ("moved > 5m", "column 9: `5m` is neither"),
        ("movd > 5", "did you mean `moved`?"),
        ("5% > 4%", "compares two constants"),
        ("moved > 5% + 3", "mixes a number of pods with a percentage"),
        ("moved >", "column 7"),
        ("moved > 1\nfilter x require true", "expected one condition"),
        ("pod.name == 1", "expected a name"),
        ("", "column 1"),
    ],
)
def test_a_wrong_condition_is_reported_at_its_column(text: str, message: str) -> None:
    with pytest.raises(BadFailCondition, match=r"column|one condition") as caught:
        parse_fail_condition(text)

    assert message in str(caught.value)
