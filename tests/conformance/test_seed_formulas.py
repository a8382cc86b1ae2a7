"""Random cases of the seed systems: the policies and `seed_formulas` give the same answers."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.conformance import seed_formulas as formulas
from tests.conformance.seed_systems import worlds
from tests.conformance.seed_systems.answers import answer
from tests.conformance.seed_systems.comparing import Tolerance, differences

Json = dict[str, Any]

_FEW = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def assert_answered(system: str, given_: Json, expected: Json, tolerance: float = 1e-6, **more: Any) -> None:
    case = {"id": "drawn", "input": given_, "expected": expected, **more}
    answered = answer(system, case)
    assert [
        str(difference) for difference in differences(expected, answered, Tolerance(absolute=tolerance))
    ] == []


def known(values: Mapping[str, Any]) -> Json:
    """Without values that are too close to a step to be certain."""
    return {name: value for name, value in values.items() if value is not None}


# ── riya ───────────────────────────────────────────────────────────────────────────────────────────────────────────

PRIORITIES = (
    None,
    "0",
    "1",
    "007",
    "+9",
    "-3",
    "1.5",
    "1e3",
    "abc",
    "",
    "0x10",
    "9223372036854775807",
    "99999999999999999999",
)
MINIMUMS = (None, "", "0", "1", "2", "2", "2", "3", "3", "4", "003", "3.0", "abc", "9223372036854775808")
AMOUNTS: tuple[Json, ...] = (
    {},
    {"requests": {"cpu": "100m"}},
    {"limits": {"cpu": "1"}},
    {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
    {"requests": {"memory": "64Mi"}},
)


@st.composite
def riya_pods(draw: st.DrawFn) -> list[Json]:
    pods = []
    for index in range(draw(st.integers(1, 7))):
        labels = {
            "groupPriority": draw(st.sampled_from(PRIORITIES)),
            "podGroup": draw(st.sampled_from(("g", "g", "g", "h", "", None))),
            "minAvailable": draw(st.sampled_from(MINIMUMS)),
        }
        space = draw(st.sampled_from(("default",) * 4 + ("other",)))
        meta: Json = {"name": f"p{index}", "namespace": space, "labels": known(labels)}
        meta["creationTimestamp"] = f"2020-01-01T00:00:0{index}Z"
        scheduler = draw(st.sampled_from(("riya-scheduler",) * 4 + ("default-scheduler",)))
        spec: Json = {
            "schedulerName": scheduler,
            "containers": [{"name": "c", "resources": draw(st.sampled_from(AMOUNTS))}],
        }
        pod: Json = {"metadata": meta, "spec": spec}
        if draw(st.integers(0, 3)) == 0:
            spec["initContainers"] = [{"name": "i", "resources": draw(st.sampled_from(AMOUNTS))}]
        if draw(st.integers(0, 3)) == 0:
            spec["nodeName"] = "roomy"
            pod["status"] = {"phase": draw(st.sampled_from(("Running", "Succeeded", "Failed")))}
            if draw(st.booleans()):
                meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        pods.append(pod)
    return pods


@settings(_FEW, max_examples=25)
@given(pods=riya_pods())
def test_riya_gates_on_the_pods_that_are_present(pods: list[Json]) -> None:
    wanted = formulas.riya_gate(pods)
    own = {pod["metadata"]["name"] for pod in pods if pod["spec"]["schedulerName"] == "riya-scheduler"}

    assert_answered(
        "riya-scheduler",
        {"pods": pods},
        {"recommended": {"verdicts": {name: wanted[name] for name in wanted if name in own}}},
    )


@_FEW
@given(pods=riya_pods())
def test_riya_orders_the_queue_by_priority_then_qos_then_age(pods: list[Json]) -> None:
    # No pod is gated, and all pods belong to this scheduler.
    waiting = [
        {
            **pod,
            "metadata": {
                **pod["metadata"],
                "labels": {"groupPriority": pod["metadata"]["labels"].get("groupPriority", "")},
            },
            "spec": {**pod["spec"], "schedulerName": "riya-scheduler"},
        }
        for pod in pods
        if "nodeName" not in pod["spec"]
    ]

    assert_answered("riya-scheduler", {"pods": waiting}, {"order": formulas.riya_order(waiting)})


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@_FEW
@given(
    values=st.lists(
        st.sampled_from((0, 0, 1, 5, 7.9, 999, 140_000, 12_541_068_340, 1e12)), min_size=2, max_size=6
    )
)
def test_network_traffic_scores_a_hundred_minus_the_share_of_the_maximum(values: list[float]) -> None:
    samples = {f"n{index}": value for index, value in enumerate(values)}

    assert_answered(
        "customScheduler NetworkTraffic",
        {"metrics": {"bandwidth": samples}},
        {"normalized": formulas.traffic_scores(samples)},
    )


@_FEW
@given(
    most=st.sampled_from((100, 10, 3, 1, 250)),
    factors=st.lists(
        st.sampled_from(
            (None, "", "45", "5", "0", "1", "2", "7", "49", "50", "101", "-4", "2.5", "abc", " 3", "+3")
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_congestion_scores_tenths_of_the_maximum(most: int, factors: list[str | None]) -> None:
    nodes = [
        worlds.node_with(f"n{index}", annotations={} if factor is None else {"congestion-factor": factor})
        for index, factor in enumerate(factors)
    ]
    pod = worlds.pod_with("p", scheduler="my-scheduler")

    assert_answered(
        "kube-safe-scheduler agents congestion and foo",
        {"env": {"CONGESTION_FACTOR_MAX": str(most)}, "pod": pod, "nodes": nodes},
        {
            "scores": {
                f"n{index}": formulas.congestion_score(factor, most) for index, factor in enumerate(factors)
            }
        },
    )


@st.composite
def safe_cases(draw: st.DrawFn) -> Json:
    names = ("SAFEUTILIZATION", "SAFEPERCENTILE", "SAFEFORECASTWEIGHT")
    terms = dict(zip(names, draw(st.sampled_from(((90, 30, 20), (50, 60, 100), (95, 1, 0)))), strict=True))
    demand = {"cpu": draw(st.sampled_from((0, 200, 1500))), "memory": draw(st.sampled_from((0, 200, 900)))}
    says = []
    for _ in range(draw(st.integers(1, 3))):
        amounts: Json = {}
        for resource, amount in (("cpu", 2000), ("memory", 1024)):
            if draw(st.integers(0, 3)) == 0:
                continue
            amounts[resource] = {
                "mean": draw(st.sampled_from((0, 0.05, 0.3, 0.7, 0.95, 1))) * amount,
                "deviation": draw(st.sampled_from((0, 0.01, 0.05, 0.1, 0.4))) * amount,
                "forecast": draw(st.sampled_from((None, 0.1, 0.8))),
            }
            if amounts[resource]["forecast"] is not None:
                amounts[resource]["forecast"] *= amount
        says.append(amounts)
    return {"terms": terms, "demand": demand, "says": says}


_MEBI = 2**20


def _annotations(amounts: Json) -> dict[str, str]:
    annotations = {}
    for resource, unit in (("cpu", 1), ("memory", _MEBI)):
        amount = amounts.get(resource, {})
        for word, key in (("mean", "mean"), ("std", "deviation"), ("forcasted", "forecast")):
            if amount.get(key) is not None:
                annotations[f"{word}-free-{resource}"] = repr(float(amount[key] * unit))
    return annotations


# The distribution is so wide that more than 2 % of it is beyond the capacity.
SAFE_NEARLY_ALL_OR_NOTHING: Json = {
    "terms": {"SAFEUTILIZATION": 95, "SAFEPERCENTILE": 1, "SAFEFORECASTWEIGHT": 0},
    "demand": {"cpu": 0, "memory": 0},
    "says": [
        {"memory": {"mean": 716.8, "deviation": 0, "forecast": None}},
        {
            "cpu": {"mean": 600.0, "deviation": 800.0, "forecast": 200.0},
            "memory": {"mean": 1024, "deviation": 51.2, "forecast": 102.4},
        },
    ],
}


@_FEW
@given(case=safe_cases())
@example(case=SAFE_NEARLY_ALL_OR_NOTHING)
def test_safe_is_the_risk_of_a_beta_distribution(case: Json) -> None:
    nodes = [
        worlds.node_with(f"n{index}", cpu="2", memory="1Gi", annotations=_annotations(says))
        for index, says in enumerate(case["says"])
    ]
    demand = case["demand"]
    pod = worlds.pod_with(
        "p", scheduler="my-scheduler", cpu=f"{demand['cpu']}m", memory=f"{demand['memory']}Mi"
    )
    per_node = {}
    for index, says in enumerate(case["says"]):
        of = {
            resource: formulas.safe_resource(
                capacity=allocatable,
                mean=says[resource]["mean"],
                deviation=says[resource]["deviation"],
                forecast=says[resource]["forecast"],
                demand=demand[resource],
                terms=case["terms"],
            )
            for resource, allocatable in (("cpu", 2000), ("memory", 1024))
            if resource in says
        }
        steps = [outcome["overload"] for outcome in of.values()]
        expected: Json = {
            "feasible": all(outcome["accepted"] for outcome in of.values()),
            "safe-overload": None if None in steps else min(steps, default=0),
            "safe-balance": min((outcome["balance"] for outcome in of.values()), default=0),
        }
        details = {resource: known(outcome) for resource, outcome in of.items()}
        per_node[f"n{index}"] = {**known(expected), "detail": details}

    assert_answered(
        "kube-safe-scheduler agent safe",
        {"env": {name: str(value) for name, value in case["terms"].items()}, "pod": pod, "nodes": nodes},
        {"per_node": per_node},
        tolerance=2e-5,
    )


@st.composite
def pigeon_nodes(draw: st.DrawFn) -> dict[str, Json]:
    nodes = {}
    for index in range(draw(st.integers(1, 5))):
        capacity = [
            draw(st.sampled_from((1000, 2000, 8000))),
            draw(st.sampled_from((1024, 4096))),
            draw(st.sampled_from((2, 5, 10))),
            draw(st.sampled_from((0, 0, 4, 8))),
            draw(st.sampled_from((10, 40))),
        ]
        used = [draw(st.integers(0, 20)) * amount // 20 for amount in capacity]
        used[2] = max(used[2], 1)  # at least one is in use
        nodes[f"n{index}"] = {"capacity": capacity, "requested": used}
    return nodes


def cut(nodes: Mapping[str, Json], count: int) -> dict[str, Json]:
    return {name: {key: numbers[:count] for key, numbers in node.items()} for name, node in nodes.items()}


PIGEON_DEMANDS = st.tuples(
    st.sampled_from((100, 500)), st.sampled_from((64, 500)), st.just(1), st.integers(0, 2), st.integers(0, 5)
)


@_FEW
@given(
    nodes=pigeon_nodes(),
    objective=st.sampled_from(("LOAD_BALANCE", "CONSOLIDATE", "CONSOLIDATE", "A_BINPACK")),
    prime=st.integers(0, 4),
    count=st.integers(1, 5),
    demand=PIGEON_DEMANDS,
)
def test_pigeon_scores_nodes_with_the_pod_added(
    nodes: dict[str, Json], objective: str, prime: int, count: int, demand: tuple[int, ...]
) -> None:
    prime = 0 if objective == "A_BINPACK" else min(prime, count - 1)
    wanted = formulas.pigeon_step(objective, prime, cut(nodes, count), demand[:count])
    step = {"nodes": cut(nodes, count), "demand": list(demand[:count])}
    given_ = {"objective": objective, "policyResourceIndex": prime, "numResources": count, "steps": [step]}

    assert_answered(
        "kube-safe-scheduler agent pigeon",
        given_,
        {"steps": [{"values": wanted["values"], "scores": known(wanted["scores"])}]},
        tolerance=2e-6,
    )


@settings(_FEW, max_examples=5)
@given(
    nodes=pigeon_nodes(), count=st.integers(1, 5), demands=st.lists(PIGEON_DEMANDS, min_size=2, max_size=4)
)
def test_pigeon_packs_by_the_variance_of_the_placed_pods(
    nodes: dict[str, Json], count: int, demands: list[tuple[int, ...]]
) -> None:
    """Place each pod on the first node that fits, if any does."""
    cluster, steps, expected, before = cut(nodes, count), [], [], list[list[int]]()
    for demand in ([*demand[:count]] for demand in demands):
        wanted = formulas.pigeon_step("A_BINPACK", 0, cluster, demand, before)
        fitting = [name for name, value in wanted["values"].items() if value is not None]
        if not fitting:
            continue
        steps.append({"nodes": cluster, "demand": demand})
        expected.append({"values": wanted["values"], "scores": known(wanted["scores"])})
        before.append(demand)
        on = cluster[fitting[0]]
        held = [used + more for used, more in zip(on["requested"], demand, strict=True)]
        cluster = {**cluster, fitting[0]: {**on, "requested": held}}

    assert_answered(
        "kube-safe-scheduler agent pigeon",
        {"objective": "A_BINPACK", "policyResourceIndex": 0, "numResources": count, "steps": steps},
        {"steps": expected},
        tolerance=2e-6,
    )


@st.composite
def scvs(draw: st.DrawFn) -> dict[str, Json | None]:
    scvs: dict[str, Json | None] = {}
    for index in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 5)) == 0:
            scvs[f"n{index}"] = None
            continue
        cards = [
            {
                "id": place,
                "health": draw(st.sampled_from(("Healthy", "Healthy", "Unhealthy"))),
                "power": draw(st.sampled_from((150, 250))),
                "totalMemory": 12194,
                "clock": draw(st.sampled_from((5000, 5705))),
                "freeMemory": draw(st.sampled_from((0, 3000, 12194))),
                "core": draw(st.sampled_from((1500, 1911))),
                "bandwidth": draw(st.sampled_from((0, 15760))),
            }
            for place in range(draw(st.integers(0, 3)))
        ]
        scvs[f"n{index}"] = {
            "cardList": cards,
            "cardNumber": len(cards),
            "totalMemorySum": max(1, sum(card["totalMemory"] for card in cards)),
            "freeMemorySum": sum(card["freeMemory"] for card in cards),
        }
    return scvs


@_FEW
@given(
    scv=scvs(),
    labels=st.fixed_dictionaries(
        {},
        optional={
            "scv/number": st.sampled_from(("1", "2", "x", "0")),
            "scv/memory": st.sampled_from(("1000", "8000", "abc")),
            "scv/clock": st.sampled_from(("5000", "5705")),
        },
    ),
    claims=st.lists(st.sampled_from((0, 0, 3000, 50_000)), min_size=4, max_size=4),
)
def test_yoda_sums_up_cards(scv: dict[str, Json | None], labels: dict[str, str], claims: list[int]) -> None:
    claimed = {name: claim for name, claim in zip(scv, claims, strict=False) if claim}
    pod = {
        "metadata": {"name": "t", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "c"}], "schedulerName": "yoda-scheduler"},
    }

    assert_answered(
        "Yoda-Scheduler",
        {"pod": pod, "scv": scv, "claimed_memory_by_pods_on_node": claimed},
        formulas.yoda(labels, scv, claimed),
    )


# ── the 1.17 core, the lab, kubeRL ─────────────────────────────────────────────────────────────────────────────────

AMOUNT = st.integers(0, 12)


@_FEW
@given(
    allocatable_amounts=st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT),
    used=st.tuples(AMOUNT, AMOUNT, AMOUNT),
    wanted=st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT),
    pods=st.integers(1, 3),
)
def test_resources_fit_where_enough_is_free(
    allocatable_amounts: tuple[int, ...], used: tuple[int, ...], wanted: tuple[int, ...], pods: int
) -> None:
    names = ("cpu", "memory", "example.com/aaa", "ephemeral-storage")
    allocatable = {**dict(zip(names, allocatable_amounts, strict=True)), "pods": 3}
    requested = dict(zip(names, used, strict=False))
    request = {name: amount for name, amount in zip(names, wanted, strict=True) if amount}
    failing = formulas.resources_fit(allocatable, requested, pods, request)

    assert_answered(
        "Four ways to extend the scheduler",
        {"allocatable": allocatable, "node_requested": requested, "node_pods": pods, "pod_request": request},
        {"fits": not failing} | ({"insufficient": failing} if all(amounts[1] for amounts in failing) else {}),
    )


@_FEW
@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    has=st.lists(st.sets(st.integers(0, 3)), min_size=2, max_size=4),
)
def test_node_affinity_is_a_share_of_the_greatest_sum(weights: list[int], has: list[set[int]]) -> None:
    preferred = [
        {
            "weight": weight,
            "preference": {"matchExpressions": [{"key": f"k{index}", "operator": "In", "values": ["y"]}]},
        }
        for index, weight in enumerate(weights)
    ]
    nodes = [
        worlds.node_with(f"n{index}", labels={f"k{number}": "y" for number in numbers})
        for index, numbers in enumerate(has)
    ]
    raw = {
        f"n{index}": sum(weight for number, weight in enumerate(weights) if number in numbers)
        for index, numbers in enumerate(has)
    }

    assert_answered(
        "Four ways to extend the scheduler",
        {"preferred": preferred, "nodes": nodes},
        {
            "map": raw,
            "reduce_max100": formulas.max_reduced(raw, 100),
            "reduce_max10 (k8s<=1.16)": formulas.max_reduced(raw, 10),
        },
    )


@_FEW
@given(numbers=st.lists(st.integers(1, 10**12), min_size=1, max_size=6))
def test_the_lab_normalizes_from_the_minimum_to_the_maximum(numbers: list[int]) -> None:
    wanted = formulas.min_max({str(index): number for index, number in enumerate(numbers)})

    assert_answered("NTHU-Scheduler-Plugin lab", {"scores": numbers}, {"normalized": list(wanted.values())})


@_FEW
@given(
    rewards=st.lists(st.sampled_from((0, 0.5, 1)), min_size=1, max_size=8), start=st.sampled_from((1.0, 0.37))
)
def test_a_reward_moves_a_value_by_a_tenth_of_the_distance(rewards: list[float], start: float) -> None:
    values, value = [], start
    for reward in rewards:
        value = 0.9 * value + 0.1 * reward
        values.append(value)

    assert_answered(
        "kube-safe-scheduler kubeRL",
        {"start": start, "rewards": rewards},
        {"values": values, "score": [int(10 * value) for value in values]},
    )


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "right", "wrong", "test"),
    [
        ("riya", "members >= minimum", "members > minimum", test_riya_gates_on_the_pods_that_are_present),
        ("riya", "pod.qos desc", "pod.qos", test_riya_orders_the_queue_by_priority_then_qos_then_age),
        ("safe", "sqrt(cpu_deviation)", "cpu_deviation", test_safe_is_the_risk_of_a_beta_distribution),
        ("congestion", "+ 0.5)", "+ 0.1)", test_congestion_scores_tenths_of_the_maximum),
        ("pigeon", "else 1 - sqrt(mean of", "else 1 - (mean of", test_pigeon_scores_nodes_with_the_pod_added),
        ("yoda", "+ 2 * free_percent", "+ free_percent", test_yoda_sums_up_cards),
        ("kube-rl", "keep = 90%", "keep = 80%", test_a_reward_moves_a_value_by_a_tenth_of_the_distance),
    ],
)
def test_a_policy_with_another_formula_fails_its_test(
    policy: str, right: str, wrong: str, test: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: one place of the policy's text is changed."""
    for path in worlds.POLICIES.glob("*.policy"):
        (tmp_path / path.name).write_text(path.read_text())
    text = (tmp_path / f"{policy}.policy").read_text()
    assert right in text
    (tmp_path / f"{policy}.policy").write_text(text.replace(right, wrong))
    monkeypatch.setattr(worlds, "POLICIES", tmp_path)
    worlds._checked.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test()
    finally:
        worlds._checked.cache_clear()


def test_the_formulas_answer_the_recorded_cases() -> None:
    """Otherwise formulas and policies could agree and both be wrong."""
    cases = {
        case["id"]: case
        for path in (worlds.POLICIES.parent / "tests/conformance/cases/seeds").glob("*.json")
        for case in json.loads(path.read_text())["cases"]
    }

    def of(case: str) -> tuple[Json, Json]:
        return cases[case]["input"], cases[case]["expected"]

    inputs, wanted = of("yoda-score-1")
    assert (
        formulas.yoda(
            inputs["pod"]["metadata"]["labels"], inputs["scv"], inputs["claimed_memory_by_pods_on_node"]
        )["raw"]
        == wanted["raw"]
    )
    inputs, wanted = of("pigeon-load-balance")
    step = inputs["steps"][0]
    decided = formulas.pigeon_step("LOAD_BALANCE", 0, step["nodes"], step["demand"])
    assert decided["scores"] == wanted["steps"][0]["scores"]
    inputs, wanted = of("nt-doc-example")
    assert formulas.traffic_scores(inputs["metrics"]["bandwidth"]) == wanted["normalized"]
    inputs, wanted = of("riya-ex4-pusheen")
    assert formulas.riya_order(inputs["pods"]) == [
        name for tier in wanted["order_tiers"] for name in sorted(tier)
    ]
    # The risk by the power series of I_0.05(b, a).
    assert 1 - formulas._at_most(0.95, 0.7, 0.4) == pytest.approx(0.5452367226446845, abs=1e-6)
    rows, wanted = of("safe-beta-cdf-table")
    assert [formulas._at_most(row[2], row[0], row[1]) for row in rows["rows"]] == pytest.approx(
        wanted["rows"], abs=5e-6
    )
