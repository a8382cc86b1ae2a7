"""The formulas of the seed systems, written a second time from their descriptions, in plain Python
without policies.

One function for each system and question. Nodes and pods are as in the cases: Kubernetes objects,
or numbers by name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

INT64_MAX = 2**63 - 1
_DECIMAL = re.compile(r"[+-]?[0-9]+\Z")


def parse_int(text: str | None) -> int | None:
    """Go's `strconv.ParseInt(text, 10, 64)`; None where it is an error."""
    number = None if text is None or not _DECIMAL.match(text) else int(text)
    return number if number is not None and -INT64_MAX - 1 <= number <= INT64_MAX else None


# ── riya ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def riya_order(pods: Sequence[Json]) -> list[str]:
    def key(place: int) -> tuple[int, int, int]:
        pod = pods[place]
        return -_priority(pod["metadata"].get("labels", {}).get("groupPriority")), -_qos(pod), place

    return [pods[place]["metadata"]["name"] for place in sorted(range(len(pods)), key=key)]


def _priority(text: str | None) -> int:
    if text is None or not _DECIMAL.match(text):
        return 0
    return max(-INT64_MAX - 1, min(INT64_MAX, int(text)))


def _qos(pod: Json) -> int:
    every = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    given = [container.get("resources", {}) for container in every]
    amounts = [
        {
            kind: {name: resources.get(kind, {}).get(name) for name in ("cpu", "memory")}
            for kind in ("requests", "limits")
        }
        for resources in given
    ]
    if all(value is None for amount in amounts for kind in amount.values() for value in kind.values()):
        return 0
    same = all(
        amount["limits"][name] is not None and amount["requests"][name] == amount["limits"][name]
        for amount in amounts
        for name in ("cpu", "memory")
    )
    return 2 if same else 1


def riya_gate(pods: Sequence[Json]) -> dict[str, str]:
    """As recommended: pods that have finished or are being deleted do not count."""
    verdicts = {}
    for pod in pods:
        if not _waits(pod):
            continue
        labels = pod["metadata"].get("labels", {})
        group, minimum = labels.get("podGroup", ""), parse_int(labels.get("minAvailable"))
        capacity = [
            other
            for other in pods
            if other["metadata"].get("labels", {}).get("podGroup") == group
            and other["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and other.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            and "deletionTimestamp" not in other["metadata"]
        ]
        gated = group != "" and minimum is not None and minimum > 1 and len(capacity) < minimum
        verdicts[pod["metadata"]["name"]] = "Unschedulable" if gated else "Success"
    return verdicts


def _waits(pod: Json) -> bool:
    return "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"]


# ── NetworkTraffic ─────────────────────────────────────────────────────────────────────────────────────────────────


def traffic_scores(samples: Mapping[str, float]) -> dict[str, int]:
    whole = {node: int(value) for node, value in samples.items()}
    most = max(whole.values())
    return {node: 100 - value * 100 // most if most else 100 for node, value in whole.items()}


# ── safe ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def safe_resource(
    *,
    capacity: float,
    mean: float,
    deviation: float,
    forecast: float | None,
    demand: float,
    terms: Mapping[str, int],
) -> Json:
    """`terms`: the three percentages of the environment. `overload` is None if the risk is too
    close to a step to be certain.
    """
    weight = terms["SAFEFORECASTWEIGHT"] / 100
    free = mean if forecast is None else (1 - weight) * mean + weight * forecast
    mu = min(max((max(capacity - free, 0) + demand) / capacity, 0), 1)
    sigma = min(max(deviation / capacity, 0), 1)
    limit, most = terms["SAFEUTILIZATION"] / 100, terms["SAFEPERCENTILE"] / 100
    risk = 1 - _at_most(limit, mu, sigma)
    share = 0.0 if risk == 0 else min(risk / most, 1) if most else 1.0
    exact = (1 - math.sqrt(share)) * 10 if share < 1 else 0.0
    return {
        "mu": mu,
        "sigma": sigma,
        "risk": risk,
        "overload": int(exact) if risk == 0 or abs(exact - round(exact)) > 1e-4 else None,
        "balance": int((1 - (mu + math.sqrt(sigma)) / 2) * 10 + 0.5),
        "accepted": risk <= most,
    }


def _at_most(limit: float, mu: float, sigma: float) -> float:
    if mu == 0:
        return 1.0
    if sigma == 0:
        return 1.0 if mu <= limit else 0.0
    if sigma**2 >= mu * (1 - mu):
        return 0.0
    tightness = mu * (1 - mu) / sigma**2 - 1
    return _beta_integral(limit, mu * tightness, (1 - mu) * tightness)


# Beyond this logit, t or 1 - t is 1 in floating point.
_LOGIT_END = 37.0


def _beta_integral(x: float, a: float, b: float) -> float:
    """I_x(a, b) by the midpoint rule on either side of x, integrating the density over the logit of
    t: slow, but independent of the product's method. With small a or b, most of the density is
    where t rounds to 0 or 1; there it is a power of t and integrated exactly.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)

    def density(y: float) -> float:
        log_t, log_rest = -math.log1p(math.exp(-y)), -math.log1p(math.exp(y))
        return math.exp(log_scale + a * log_t + b * log_rest)

    def piece(low: float, high: float) -> float:
        steps = 4000
        width = (high - low) / steps
        return sum(density(low + (step + 0.5) * width) for step in range(steps)) * width

    def logit(t: float) -> float:
        return math.log(t / (1 - t))

    middle, spread = math.log(a / b), math.sqrt(1 / a + 1 / b)
    low, high = max(middle - 40 * spread, -_LOGIT_END), min(middle + 40 * spread, _LOGIT_END)
    at = logit(x)
    if at <= low:
        return 0.0
    if at >= high:
        return 1.0
    below, above = density(low) / a + piece(low, at), piece(at, high) + density(high) / b
    assert abs(below + above - 1) < 1e-5, f"a density of {below} and {above} for {a}, {b} up to {x}"
    return below / (below + above)


# ── congestion ─────────────────────────────────────────────────────────────────────────────────────────────────────


def congestion_score(annotation: str | None, most: int) -> int:
    factor = min(max(parse_int(annotation) or 0, 0), most)
    return int(10 * (1 - factor / most) + 0.5)


# ── pigeon ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pigeon_step(
    objective: str,
    prime: int,
    nodes: Mapping[str, Json],
    demand: Sequence[int],
    before: Sequence[Sequence[int]] = (),
) -> Json:
    """One call. For A_BINPACK, `before` and this demand are all demands so far, fewer than 100."""
    values = {
        name: _placed_value(objective, prime, nodes, demand, name, before)
        if all(
            wanted <= capacity - held
            for wanted, capacity, held in zip(
                demand, nodes[name]["capacity"], nodes[name]["requested"], strict=True
            )
        )
        else None
        for name in nodes
    }
    return {"values": values, "scores": _ranked(values)}


def _placed_value(
    objective: str,
    prime: int,
    nodes: Mapping[str, Json],
    demand: Sequence[int],
    chosen: str,
    before: Sequence[Sequence[int]],
) -> float:
    held = {
        name: [
            used + (wanted if name == chosen else 0)
            for used, wanted in zip(node["requested"], demand, strict=True)
        ]
        for name, node in nodes.items()
    }
    shares = [
        [_share(used, capacity) for used, capacity in zip(held[name], nodes[name]["capacity"], strict=True)]
        for name in nodes
    ]
    primes = [
        share[prime] if nodes[name]["capacity"][prime] else 1.0
        for name, share in zip(nodes, shares, strict=True)
    ]
    mean = sum(primes) / len(primes)
    match objective:
        case "LOAD_BALANCE":
            return math.sqrt(sum((prime - mean) ** 2 for prime in primes) / len(primes))
        case "CONSOLIDATE":
            if mean <= 0 or mean >= 1:
                return 0.0
            away = [
                (mean - prime) / mean if prime < mean else (prime - mean) / (1 - mean) for prime in primes
            ]
            return 1 - math.sqrt(sum(distance * distance for distance in away) / len(away))
        case _:
            clamped = [[min(max(value, 0.0), 1.0) for value in share] for share in shares]
            return abs(_varies(clamped) - _varies(_in_shares([*before, demand], nodes)))


def _share(used: int, capacity: int) -> float:
    return used / capacity if capacity else float(used > 0)


def _in_shares(demands: Sequence[Sequence[int]], nodes: Mapping[str, Json]) -> list[list[float]]:
    """Relative to the average capacity of the nodes that have any."""
    shares = []
    for demand in demands:
        capacity = [
            [node["capacity"][at] for node in nodes.values() if node["capacity"][at]]
            for at in range(len(demand))
        ]
        shares.append(
            [wanted * len(of) / sum(of) if of else 0.0 for wanted, of in zip(demand, capacity, strict=True)]
        )
    return shares


def _varies(vectors: Sequence[Sequence[float]]) -> float:
    """Albert and Zhang's coefficient of variation, of the population."""
    size, count = len(vectors[0]), len(vectors)
    mean = [sum(vector[at] for vector in vectors) / count for at in range(size)]
    product = sum(
        mean[i] * mean[j] * (sum(vector[i] * vector[j] for vector in vectors) / count - mean[i] * mean[j])
        for i in range(size)
        for j in range(size)
    )
    square = sum(coordinate * coordinate for coordinate in mean)
    return math.sqrt(max(product, 0)) / square if square else 0.0


def _ranked(values: Mapping[str, float | None]) -> dict[str, int | None]:
    """None if the value is too close to half a point to be certain."""
    known = [value for value in values.values() if value is not None]
    ranks: dict[str, int | None] = {}
    for name, value in values.items():
        if value is None:
            ranks[name] = 0
            continue
        span = max(known) - min(known)
        if span < 2e-6:
            ranks[name] = 10 if span == 0 else None
            continue
        exact = 1 + 9 * (max(known) - value) / span
        ranks[name] = math.floor(exact + 0.5) if abs(exact - math.floor(exact) - 0.5) > 20e-6 / span else None
    return ranks


# ── Yoda ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def yoda(labels: Mapping[str, str], scv: Mapping[str, Json | None], claimed: Mapping[str, int]) -> Json:
    number = parse_int(labels.get("scv/number")) or 0
    memory, clock = (parse_int(labels.get(f"scv/{name}")) or 0 for name in ("memory", "clock"))

    def passes(cards_status: Json) -> bool:
        wanted = number if "scv/number" in labels else 1
        enough = (
            wanted <= cards_status["cardNumber"] if "scv/number" in labels else cards_status["cardNumber"] > 0
        )
        healthy = [card for card in cards_status["cardList"] if card["health"] == "Healthy"]
        if "scv/memory" in labels:
            enough = enough and sum(card["freeMemory"] >= memory for card in healthy) >= wanted
        if "scv/clock" in labels:
            enough = enough and sum(card["clock"] == clock for card in healthy) >= wanted
        return enough

    feasible = {name: status for name, status in scv.items() if status is not None and passes(status)}
    fields = ("bandwidth", "clock", "core", "power", "freeMemory", "totalMemory")

    def would_do(cards_status: Json) -> list[Json]:
        return [
            card
            for card in cards_status["cardList"]
            if card["freeMemory"] >= memory and card["clock"] >= clock
        ]

    cards = [card for status in feasible.values() for card in would_do(status)]
    most = {field: max([1, *(card[field] for card in cards)]) for field in fields}
    against = {**most, "clock": most["bandwidth"]}
    times = {"freeMemory": 2}
    raw = {}
    for name, status in feasible.items():
        basic = sum(
            times.get(field, 1) * (card[field] * 100 // against[field])
            for card in would_do(status)
            for field in fields
        )
        total, held = status["totalMemorySum"], claimed.get(name, 0)
        allocate = 0 if held > total else 3 * ((total - held) * 100 // total)
        raw[name] = basic + allocate + 2 * (status["freeMemorySum"] * 100 // total)
    return {"feasible": list(feasible), "raw": raw, "normalized": min_max(raw)}


def min_max(raw: Mapping[str, int]) -> dict[str, int]:
    if not raw:
        return {}
    low, high = min(raw.values()), max(raw.values())
    return {name: (value - low) * 100 // (high - low) if high > low else 100 for name, value in raw.items()}


# ── the 1.17 core ──────────────────────────────────────────────────────────────────────────────────────────────────


def resources_fit(
    allocatable: Mapping[str, int], requested: Mapping[str, int], pods: int, wanted: Mapping[str, int]
) -> list[list[Any]]:
    """The resources that do not fit: requested, used and allocatable."""
    failing: list[list[Any]] = []
    if pods + 1 > allocatable["pods"]:
        failing.append(["pods", 1, pods, allocatable["pods"]])
    if not any(wanted.values()):
        return failing
    first = ("cpu", "memory", "ephemeral-storage")
    for name in (*first, *sorted(set(wanted) - set(first))):
        want, used, capacity = wanted.get(name, 0), requested.get(name, 0), allocatable.get(name, 0)
        if capacity < want + used and (want or name in ("cpu", "memory")):
            failing.append([name, want, used, capacity])
    return failing


def max_reduced(raw: Mapping[str, int], most: int) -> dict[str, int]:
    high = max([0, *raw.values()])
    return {name: most * value // high if high else value for name, value in raw.items()}
