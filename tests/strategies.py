"""Policies, drawn through the types of the language: every text that comes out checks.

An expression is drawn for a type, for a place (what may be read there) and for the names that a `has` around it has
asked for. The alphabets are those of `tests.evaluate.clusters`, small, so that coincidences happen. `policies()` gives
texts; `programs()` what the checker makes of them.
"""

import re
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from policysched.kube.decode.core_objects import normalized_image_name
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from tests.evaluate.clusters import (
    IMAGES,
    LABEL_KEYS,
    LABEL_VALUES,
    NAMESPACES,
    NODE_NAMES,
    TAINT_KEYS,
)

Draw = st.DrawFn

SCALARS = ("int", "float", "cpu", "bytes", "bandwidth", "ratio", "duration")
LITERALS = {
    "int": ("0", "1", "2", "10", "3000000000"),
    "float": ("0.5", "2.0", "1", "10.25"),
    "cpu": ("100m", "1", "2", "333m", "1.5"),
    "bytes": ("1", "64Mi", "1Gi", "1.5Gi", "1k"),
    "bandwidth": ("0bps", "100Mbps", "800Mbps", "1Gbps", "10MBps"),
    "ratio": ("0%", "50%", "85%", "0.3", "1"),
    "duration": ("1s", "90s", "5m", "2h", "1d"),
}
POD_NUMBERS = {
    "int": ("pod.priority", "pod.attempts", 'pod.requests["nvidia.com/gpu"]', "pod.requests.pods"),
    "float": (),
    "cpu": ("pod.requests.cpu", "pod.limits.cpu"),
    "bytes": ("pod.requests.memory", 'pod.requests["ephemeral-storage"]', "pod.limits.memory"),
    "bandwidth": (),
    "ratio": (),
    "duration": ("pod.waited",),
}
NODE_NUMBERS = {
    "int": ("node.pods", "node.free.pods", 'node.free["nvidia.com/gpu"]', "count(pods on node)"),
    "float": (),
    "cpu": ("node.free.cpu", "node.allocatable.cpu", "node.requested.cpu"),
    "bytes": ("node.free.memory", "node.allocatable.memory", "node.requested.memory"),
    "bandwidth": (),
    "ratio": (),
    "duration": ("(now - node.created)",),
}
RESOURCE_OF_NODE = ("node.free.link", "node.requested.link", "node.allocatable.link")
SHARES = ("namespace.share.cpu", "namespace.share.memory")
METRIC_OF = {"bandwidth": "rx", "ratio": "load"}
POD_STRINGS = ("pod.namespace", "pod.name", "pod.owner.kind", "pod.service_account", "namespace.name")
COUNTED = (
    'other.labels["pool"] == "a"',
    "other.priority < pod.priority",
    "other.namespace == pod.namespace",
    'other.labels["gen"] == pod.labels["gen"]',
    "other.requests.cpu >= 1 or other.qos == BestEffort",
    'has other.labels["rack"] and not other.labels["rack"] in ["a", "1"]',
)
COUNTED_ANYWHERE = (
    'other.namespace == pod.namespace and other.labels["gen"] == pod.labels["gen"]',
    'pod.labels["pool"] == other.labels["pool"] and other.priority >= pod.priority',
    'other.labels["pool"] != pod.labels["pool"] or other.requests.memory > pod.requests.memory',
)
WINDOWS = (
    "Mon-Fri 07:00-19:00",
    "Mon 09:30-10:30, Sat 22:00-06:00",
    "Sun-Mon 00:00-24:00",
    "Tue 00:00-01:00",
)


@dataclass(frozen=True)
class Names:
    """What the drawn policy declares, by type; what may be absent apart."""

    pod: tuple[tuple[str, str], ...] = ()  # (name, type), always there
    node: tuple[tuple[str, str], ...] = ()
    pod_optional: tuple[tuple[str, str], ...] = ()
    node_optional: tuple[tuple[str, str], ...] = ()
    metrics: tuple[str, ...] = ()
    lets: tuple[tuple[str, str], ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    resource: bool = False  # `link`, a bandwidth
    lists: tuple[str, ...] = ()  # of records: `cards` of the node, `wants` of the pod
    keys: tuple[str, ...] = ()  # parameters that hold the key of a label
    weights: tuple[str, ...] = ()
    traffic: tuple[str, ...] = ()  # ways to ask what flows between the pod and its gang


@dataclass(frozen=True)
class At:
    """Where an expression stands. `bare_metrics`: a metric may be read without asking, as the rule says `missing`."""

    names: Names
    node: bool = False
    metrics: bool = False
    bare_metrics: bool = False
    time: bool = True
    shares: bool = False  # what the pod's namespace holds, and the pods of the whole cluster
    element: bool = False  # in the midst of a list of records
    candidates: bool = False  # all at once
    aggregates: int = 0  # how many of them are around it
    placed: bool = False  # one of them with the pod placed
    open_labels: bool = False  # in `reject`, an absent label of the node needs no asking
    known: frozenset[str] = frozenset()

    def knowing(self, name: str) -> "At":
        return replace(self, known=self.known | {name})


# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def number(draw: Draw, kind: str, at: At, depth: int) -> str:
    """An expression of the type that needs nothing from outside to be read as one."""
    if depth <= 0 or draw(st.integers(0, 3)) == 0:
        return leaf(draw, kind, at)
    if at.candidates and draw(st.integers(0, 2)) == 0:
        return aggregate(draw, kind, at, depth)
    match draw(st.integers(0, 8)):
        case 8:
            return chosen(
                draw, at, depth, number(draw, kind, at, depth - 1), operand(draw, kind, at, depth - 1)
            )
        case 0 | 1:
            op = draw(st.sampled_from("+-"))
            return f"({number(draw, kind, at, depth - 1)} {op} {operand(draw, kind, at, depth - 1)})"
        case 2:
            if kind == "int":
                factor = draw(st.sampled_from(("2", "3", "0", "1000000000000")))
            else:
                factor = draw(st.sampled_from(("2", "3", "50%", "0.7")))
            return f"({number(draw, kind, at, depth - 1)} * {factor})"
        case 3 if kind in ("cpu", "bytes", "duration", "bandwidth"):
            return f"({number(draw, kind, at, depth - 1)} / {draw(st.sampled_from(('2', '3', '7', '0.5')))})"
        case 3 if kind in ("cpu", "bytes", "duration"):
            return f"({number(draw, kind, at, depth - 1)} / {number(draw, 'int', at, depth - 1)} else {literal(draw, kind)})"
        case 4:
            name = draw(st.sampled_from(("min", "max")))
            return f"{name}({number(draw, kind, at, depth - 1)}, {operand(draw, kind, at, depth - 1)})"
        case 5:
            low, high = literal(draw, kind), literal(draw, kind)
            return f"clamp({number(draw, kind, at, depth - 1)}, {low}, {high})"
        case 6:
            return draw(
                st.sampled_from((f"abs({number(draw, kind, at, depth - 1)})", f"(-{leaf(draw, kind, at)})"))
            )
        case _:
            return special(draw, kind, at, depth)


def aggregate(draw: Draw, kind: str, at: At, depth: int) -> str:
    """Of the same type as its value; what was asked of this node says nothing of the others. One more may be in the value, the pod
    placed for the outer or for the inner."""
    after = draw(st.sampled_from(("", " after placing"))) if at.aggregates == 0 or not at.placed else ""
    inside = replace(
        at,
        candidates=False,
        element=False,
        known=frozenset(),
        aggregates=at.aggregates + 1,
        placed=at.placed or bool(after),
    )
    functions = ("max", "min", "sum") if kind == "int" else ("max", "min", "sum", "mean", "stddev")
    value = number(draw, kind, inside, depth - 1)
    if at.aggregates == 0 and draw(st.integers(0, 2)) == 0:
        beside = draw(st.sampled_from(("-", "+")))
        value = f"({value} {beside} {aggregate(draw, kind, inside, depth)})"
    return f"({draw(st.sampled_from(functions))} of {value} over nodes{after} else {literal(draw, kind)})"


def chosen(draw: Draw, at: At, depth: int, then: str, other: str) -> str:
    return f"(if {condition(draw, at, depth - 1)} then {then} else {other})"


def operand(draw: Draw, kind: str, at: At, depth: int) -> str:
    """Beside a number of the type a literal will do."""
    return (draw(st.one_of(st.just(""), st.just("x"))) and literal(draw, kind)) or number(
        draw, kind, at, depth
    )


def literal(draw: Draw, kind: str) -> str:
    return draw(st.sampled_from(LITERALS[kind]))


def special(draw: Draw, kind: str, at: At, depth: int) -> str:
    """What only one type has."""
    match kind:
        case "int":
            inner = number(draw, draw(st.sampled_from(("ratio", "float"))), at, depth - 1)
            whole = draw(st.sampled_from(("floor", "ceil", "round")))
            way = draw(st.sampled_from(("half_even", "half_up", "half_away", "trunc", "floor", "ceil")))
            scale = draw(st.sampled_from(("100", "0.5", "-10")))
            ranked = f'rank({string(draw, at)}, ["a", "1", "gold"])'
            rounded = f"round({inner} * {scale}, {way})"
            return draw(st.sampled_from((f"{whole}({inner} * 100)", rounded, ranked)))
        case "ratio":
            of = draw(st.sampled_from(("cpu", "bytes", "int", "duration")))
            top, bottom = number(draw, of, at, depth - 1), number(draw, of, at, depth - 1)
            if draw(st.integers(0, 3)) == 0:
                deviation = draw(st.sampled_from((literal(draw, of), number(draw, of, at, depth - 1))))
                return f"normal_cdf({top}, {bottom}, {deviation})"
            if draw(st.integers(0, 3)) == 0:
                limit, deviation = (
                    literal(draw, "ratio"),
                    draw(st.sampled_from(("0.1", "0.3", "0.005", "0.5"))),
                )
                return f"beta_cdf({limit}, ({top} / {bottom} else 0.5), {deviation})"
            return f"({top} / {bottom} else {literal(draw, 'ratio')})"
        case "float":
            inner = number(draw, draw(st.sampled_from(("int", "ratio"))), at, depth - 1)
            function = draw(st.sampled_from(("sqrt", "log", "exp")))
            return f"({function}({inner}) else {draw(st.sampled_from(('0.0', '1.5')))})"
        case _:
            return leaf(draw, kind, at)


def leaf(draw: Draw, kind: str, at: At) -> str:
    """A name or an attribute of the type; a ratio or a float of literals where there is none."""
    found = [name for name, its in at.names.lets if its == kind]
    found += [name for name, its in at.names.pod if its == kind]
    optional = [name for name, its in at.names.pod_optional if its == kind]
    if at.node:
        found += [name for name, its in at.names.node if its == kind] + list(NODE_NUMBERS[kind])
        optional += [name for name, its in at.names.node_optional if its == kind]
        if kind == "int":
            found.append(f"count(pods on node where {draw(st.sampled_from(COUNTED))})")
    if kind == "int" and at.shares:
        which = draw(st.sampled_from(("pods", "pods", "all pods")))
        found.append(f"count({which} where {draw(st.sampled_from((*COUNTED, *COUNTED_ANYWHERE)))})")
    if at.element and kind in OF_CARDS:
        found += [OF_CARDS[kind]] * 4
    elif kind in OF_CARDS:
        value = draw(st.sampled_from((OF_CARDS[kind], f"({OF_CARDS[kind]} + {OF_CARDS[kind]})")))
        if kind == "int":
            value = draw(st.sampled_from((value, "card.clock")))
        folded = a_fold(draw, draw(st.sampled_from(("sum", "min", "max"))), at, value, literal(draw, kind))
        found += [folded] * 2 if folded else []
        counted = a_fold(draw, "count", at) if kind == "int" else ""
        found += [counted] * 2 if counted else []
    found += POD_NUMBERS[kind]
    if kind == "bandwidth" and at.names.resource:
        found += ["pod.requests.link", *(RESOURCE_OF_NODE if at.node and at.metrics else ())]
    if kind == "ratio" and at.shares:
        found += SHARES
    for name in optional:
        found.append(name if name in at.known else f"({name} else {literal(draw, kind)})")
    if at.metrics:
        found += [name for name, its in at.names.states if its == kind] * 3
    metric = METRIC_OF.get(kind)
    if at.metrics and metric in at.names.metrics:
        bare = at.bare_metrics or metric in at.known
        found += [metric if bare else f"({metric} else {literal(draw, kind)})"] * 3
    if kind == "bandwidth" and at.metrics and not at.element:
        found += [
            one if at.bare_metrics else f"({one} else {literal(draw, kind)})" for one in at.names.traffic
        ]
    if not found:
        plain = {"float": "(0.5 * pod.priority)", "ratio": "(pod.requests.cpu / pod.limits.cpu else 50%)"}
        return plain.get(kind) or f"(pod.waited / 1s * {literal(draw, kind)})"
    return draw(st.sampled_from(found))


# ── strings and conditions ─────────────────────────────────────────────────────────────────────────────────────────


def string(draw: Draw, at: At) -> str:
    found = [
        *POD_STRINGS,
        *["card.health"] * 4 * at.element,
        *(name for name, its in at.names.pod if its == "string"),
    ]
    absent = [name for name, its in at.names.pod_optional if its == "string"]
    absent += [f'pod.labels["{key}"]' for key in LABEL_KEYS] + [f"pod.labels[{key}]" for key in at.names.keys]
    if at.node:
        absent += [f"node.labels[{key}]" for key in at.names.keys]
        found += ["node.name", *(name for name, its in at.names.node if its == "string")]
        absent += [f'node.labels["{key}"]' for key in LABEL_KEYS] + ['node.conditions["Ready"]']
        absent += [name for name, its in at.names.node_optional if its == "string"]
    for name in absent:
        found.append(name if name in at.known else f'({name} else "{draw(st.sampled_from(LABEL_VALUES))}")')
    if draw(st.integers(0, 7)) == 0:
        then, other = draw(st.sampled_from(found)), draw(st.sampled_from(found))
        return f"(if has {asked(draw, at)} then {then} else {other})"
    return draw(st.sampled_from(found))


def quoted(draw: Draw) -> str:
    return f'"{draw(st.sampled_from((*LABEL_VALUES, *NAMESPACES, *NODE_NAMES[:2])))}"'


def condition(draw: Draw, at: At, depth: int) -> str:
    if depth > 0:
        match draw(st.integers(0, 5)):
            case 0:
                word = draw(st.sampled_from(("and", "or")))
                parts = [condition(draw, at, depth - 1) for _ in range(draw(st.integers(2, 3)))]
                return f"({f' {word} '.join(parts)})"
            case 1:
                return f"(not {condition(draw, at, depth - 1)})"
            case 2 if name := asked(draw, at):
                guarded = condition(draw, at.knowing(name), depth - 1)
                return draw(
                    st.sampled_from((f"(has {name} and {guarded})", f"(not has {name} or {guarded})"))
                )
            case 3:
                return f"({condition(draw, at, depth - 1)} == {condition(draw, at, depth - 1)})"
            case 4:
                then, other = condition(draw, at, depth - 1), condition(draw, at, depth - 1)
                return chosen(draw, at, depth, then, other)
    return atom(draw, at, depth)


def asked(draw: Draw, at: At) -> str:
    """Something that may be absent, to be asked for with `has`."""
    found = [f'pod.labels["{key}"]' for key in LABEL_KEYS] + [name for name, _ in at.names.pod_optional]
    if at.node:
        found += [f'node.labels["{key}"]' for key in LABEL_KEYS] + [
            name for name, _ in at.names.node_optional
        ]
    if at.metrics:
        found += at.names.metrics
    return draw(st.sampled_from(found))


def atom(draw: Draw, at: At, depth: int) -> str:
    match draw(st.integers(0, 9)):
        case 0 | 1:
            word = draw(st.sampled_from(("==", "!=")))
            return f"({string(draw, at)} {word} {draw(st.sampled_from((quoted(draw), string(draw, at))))})"
        case 2:
            listed = ", ".join(quoted(draw) for _ in range(draw(st.integers(1, 3))))
            return f"({string(draw, at)} {draw(st.sampled_from(('in', 'not in')))} [{listed}])"
        case 3 | 4 | 5:
            kind = draw(st.sampled_from(SCALARS))
            op = draw(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")))
            left = number(draw, kind, at, depth)
            return (
                f"({left} {op} {draw(st.sampled_from((literal(draw, kind), number(draw, kind, at, depth))))})"
            )
        case 6:
            op = draw(st.sampled_from(("<", "==", ">=")))
            return f"(pod.qos {op} {draw(st.sampled_from(('BestEffort', 'Burstable', 'Guaranteed')))})"
        case 7:
            return f"(has {asked(draw, at)})"
        case 8:
            return listed_condition(draw, at)
        case _:
            found = [name for name, its in at.names.pod if its == "bool"]
            some = a_fold(draw, "any", at, fallback="false")
            found += [some] * 2 if some else []
            found += ["(has card.clock)"] if at.element else []
            found += [name for name, its in at.names.node if its == "bool" and at.node]
            if at.node:
                found.append("node.ready")
                if at.open_labels:
                    key, value = draw(st.sampled_from(LABEL_KEYS)), quoted(draw)
                    found += [
                        f'(node.labels["{key}"] == {value})',
                        f'(node.labels["{key}"] in [{value}, "b"])',
                    ]
            if at.time:
                found.append(f'window("{draw(st.sampled_from(WINDOWS))}", "UTC")')
            return draw(st.sampled_from(found or ["true"]))


def listed_condition(draw: Draw, at: At) -> str:
    lists = [("pod.images", "image"), ("pod.tolerations", "taint")]
    if at.node:
        lists += [("node.images", "image"), ("node.taints", "taint")]
    name, of = draw(st.sampled_from(lists))
    words = TAINT_KEYS if of == "taint" else tuple(map(normalized_image_name, IMAGES))
    return f'("{draw(st.sampled_from(words))}" in {name})'


# ── declarations ───────────────────────────────────────────────────────────────────────────────────────────────────

DEFAULTS = {
    **{kind: LITERALS[kind] for kind in SCALARS},
    "string": ('"a"', '"none"', '""'),
    "bool": ("true", "false"),
    "qos": ("BestEffort", "Guaranteed"),
}
BARE_UNITS = {"bandwidth": "Mbit/s", "duration": "s"}


@st.composite
def declarations(draw: Draw) -> tuple[list[str], Names]:
    lines: list[str] = []
    names = Names()
    if draw(st.integers(0, 2)) == 0:
        lines, names = lists_of_records(draw)
    for index in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(SCALARS))
        lines.append(f"{draw(st.sampled_from(('let', 'param')))} l{index}: {kind} = {literal(draw, kind)}")
        names = replace(names, lets=(*names.lets, (f"l{index}", kind)))
    if draw(st.integers(0, 2)) == 0:
        lines.append(f'param key: string = "{draw(st.sampled_from(LABEL_KEYS))}"')
        lines.append(f"param heavy: int = {draw(st.sampled_from((0, 1, 4)))} range 0..1000000")
        names = replace(names, keys=("key",), weights=("heavy",))
    for index in range(draw(st.integers(0, 4))):
        line, names = an_input(draw, f"i{index}", names)
        lines.append(line)
    for metric, kind, unit in (
        ("rx", "bandwidth", draw(st.sampled_from(("B/s", "bit/s")))),
        ("load", "ratio", "1"),
    ):
        if draw(st.booleans()):
            every, stale = draw(st.sampled_from((("15s", "90s"), ("1m", "5m"))))
            settings = f'query = "q" unit = "{unit}" join = instance every = {every} stale = {stale}'
            lines.append(f"metric {metric}: {kind} {{ {settings} }}")
            names = replace(names, metrics=(*names.metrics, metric))
    if names.metrics and draw(st.integers(0, 2)) == 0:
        lines.append(
            f"outage {{ above = {draw(st.sampled_from(('0%', '40%', '50%', '90%', '100%')))} "
            f"then = {draw(st.sampled_from(('disable', 'wait')))} }}"
        )
    if draw(st.integers(0, 3)) == 0:
        lines.append(a_metric_between_pods(draw, names))
        ways = ("traffic_to(gang)", "traffic_to(gang, talk)", 'traffic_to(gang, "rack")')
        names = replace(names, traffic=ways)
    for state, kind in (("learnt", "float"), ("share", "ratio")):
        if draw(st.integers(0, 2)) == 0:
            lines.append(a_state(draw, state, kind, names))
            names = replace(names, states=(*names.states, (state, kind)))
    if draw(st.integers(0, 2)) == 0:
        lines.append(a_resource(draw, names))
        names = replace(names, resource=True)
    for index in range(draw(st.sampled_from((0, 0, 1, 2)))):
        # Each may read the one before it.
        kind = draw(st.sampled_from(SCALARS))
        lines.append(f"let named{index}: {kind} = {number(draw, kind, At(names, node=True), 2)}")
        names = replace(names, node=(*names.node, (f"named{index}", kind)))
    return lines, names


def a_metric_between_pods(draw: Draw, names: Names) -> str:
    """With one label or two for a pod, by the pod's name or another string of it."""
    joins = draw(st.sampled_from(('from = ["a"] to = ["b"]', 'from = ["n", "p"] to = ["n2", "p2"]')))
    key = draw(st.sampled_from(("", f"key = {string(draw, At(names, time=False))} ")))
    assume = draw(st.sampled_from(("", f"assume = {literal(draw, 'bandwidth')} ")))
    return f'metric talk: bandwidth {{ query = "q" unit = "bit/s" {joins} {key}{assume}every = 15s stale = 90s }}'


def a_state(draw: Draw, name: str, kind: str, names: Names) -> str:
    """Kept by some string of the pod. What feeds it nobody asks here: the values are those of the samples."""
    on = draw(
        st.sampled_from(
            ("", "on = started ", "on = terminated ", "on = either ", "on = failed ", "on = any ")
        )
    )
    key = draw(st.sampled_from((f"key = {string(draw, At(names))} ", "")))
    per = draw(st.sampled_from(("", "per = node ", "per = cluster ")))
    when = draw(st.sampled_from(("", "when = not has container.down or container.down > 10m ")))
    value = "if container.exit_code == 0 then 1 - container.ran / 1h else container.restarts / 10"
    if kind == "float":
        value = "if container.terminated then 0.5 * container.exit_code else 1.0"
    settings = f"value = {value} keep = {draw(st.sampled_from(('0%', '90%')))} start = {literal(draw, kind)}"
    return f"state {name}: {kind} {{ {key}{per}{on}{when}{settings} }}"


def a_resource(draw: Draw, names: Names) -> str:
    """Bandwidth that pods ask for in an annotation, or by what else they say."""
    asked_for = 'input asked: bandwidth = pod.labels["gen"] unit "Mbit/s" default 100Mbps invalid default\n'
    has = 'input nic: bandwidth = node.labels["gen"] unit "Gbit/s" default 1Gbps invalid default\n'
    request = draw(st.sampled_from(("asked", "asked * 1.5", "max(asked, 200Mbps) - 150Mbps")))
    capacity = draw(
        st.sampled_from(
            ("nic", "10Gbps", "nic * 80%", *(["(rx else 1Gbps)"] if "rx" in names.metrics else []))
        )
    )
    return f"{asked_for}{has}resource link {{ capacity = {capacity}, request = {request} }}"


RECORD = """record card {
  health: string
  memory: bytes = "freeMemory" unit "MiB" default 1Gi
  clock: int optional
  speed: float default 0.5
}"""


def lists_of_records(draw: Draw) -> tuple[list[str], Names]:
    """One of the node, and perhaps one of the pod."""
    lines, names = [RECORD], Names()
    for name, owner in (("cards", "node"), ("wants", "pod")):
        if name == "cards" or draw(st.booleans()):
            at = draw(st.sampled_from(("", ' at "items"')))
            clauses = draw(
                st.sampled_from(
                    (
                        "default [] invalid default",
                        f'default [] invalid reject "bad {name}"',
                        "optional invalid default",
                    )
                )
            )
            source = "annotations" if owner == "pod" else draw(st.sampled_from(("annotations", "objects")))
            lines.append(f'input {name}: list<card> = {owner}.{source}["cards"]{at} {clauses}')
            listed = name if clauses.startswith("default") else f"{name}?"
            names = replace(names, lists=(*names.lists, listed))
    return lines, names


def a_fold(draw: Draw, function: str, at: At, value: str = "", fallback: str = "0") -> str:
    """Over one of the lists, in the form that the function needs; with an `else` where it may be missing."""
    usable = [name for name in at.names.lists if at.node or name.startswith("wants")]
    if not usable or at.element:
        return ""
    name = draw(st.sampled_from(usable))
    # What a name stands for may look through a list itself, and no list is looked through in the midst of another.
    plain = tuple(one for one in at.names.node if not one[0].startswith("named"))
    inside = replace(at, element=True, bare_metrics=False, names=replace(at.names, node=plain))
    where = f" where {condition(draw, inside, draw(st.integers(0, 1)))}" if draw(st.integers(0, 3)) else ""
    if not value and not where and function == "any":
        where = " where true"
    text = (
        f"{function}({value} over {name.rstrip('?')}{where})"
        if value
        else f"{function}({name.rstrip('?')}{where})"
    )
    return f"({text} else {fallback})" if name.endswith("?") or function in ("min", "max") else text


OF_CARDS = {"bytes": "card.memory", "int": "(card.clock else 3)", "float": "card.speed"}


def an_input(draw: Draw, name: str, names: Names) -> tuple[str, Names]:
    kind = draw(st.sampled_from((*SCALARS, "string", "string", "bool", "qos")))
    owner = draw(st.sampled_from(("pod", "pod", "node", "node", "namespace")))
    source = (
        f'{owner}.{draw(st.sampled_from(("labels", "annotations")))}["{draw(st.sampled_from(LABEL_KEYS))}"]'
    )
    absent = draw(st.sampled_from(("default", "default", "optional", "required")))
    default = draw(st.sampled_from(DEFAULTS[kind]))
    clauses = {"default": f"default {default}", "optional": "optional", "required": f'required "no {name}"'}[
        absent
    ]
    unit = f' unit "{BARE_UNITS[kind]}"' if kind in BARE_UNITS and draw(st.booleans()) else ""
    if kind != "string":
        clauses += draw(st.sampled_from((f' invalid reject "bad {name}"', " invalid default")))
    side = "node" if owner == "node" else "pod"
    group = f"{side}_optional" if absent == "optional" else side
    names = replace(names, **{group: (*getattr(names, group), (name, kind))})
    return f"input {name}: {kind} = {source}{unit} {clauses}", names


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def when(draw: Draw, names: Names) -> str:
    if draw(st.integers(0, 2)):
        return ""
    return f" when {condition(draw, At(names, node=draw(st.booleans()), shares=True), 1)}"


def mentions(text: str, names: Names) -> bool:
    words = re.findall(r"[a-z]+", text)
    return any(name in words for name in names.metrics) or "traffic_to" in text


@st.composite
def a_filter(draw: Draw, name: str, names: Names) -> str:
    rejects = draw(st.booleans())
    at = At(names, node=True, metrics=True, bare_metrics=True, shares=True, open_labels=rejects)
    tested = condition(draw, at, 2)
    line = f"filter {name}{when(draw, names)} {'reject' if rejects else 'require'} {tested}"
    if mentions(tested, names):
        line += draw(st.sampled_from((" missing reject", " missing pass")))
    line += draw(st.sampled_from(("", " scaleup no")))
    shown = draw(
        st.sampled_from(
            (
                "",
                "plain words",
                "cpu {node.free.cpu} of {pod.requests.cpu}",
                "on {node.name}",
                "held {namespace.share.cpu}",
            )
        )
    )
    if names.metrics and draw(st.booleans()):
        shown = f'measured {{{names.metrics[0]}}}, pool {{node.labels[\\"pool\\"]}}'
    return f'{line} else "{shown}"' if shown else line


@st.composite
def a_score(draw: Draw, name: str, names: Names) -> str:
    at = At(names, node=True, metrics=True, bare_metrics=True, shares=True, candidates=True)
    head = f"score {name} weight {draw(st.sampled_from((0, 1, 2, 5, 1000000, *names.weights)))}{when(draw, names)}"
    if draw(st.integers(0, 2)) == 0:
        value = condition(draw, at, 2)
        line = f"{head} prefer {value}"
    else:
        kind = draw(st.sampled_from(SCALARS))
        value = number(draw, kind, at, 2)
        low, high = bounds(draw, kind)
        norm = draw(st.sampled_from((f"range({low}, {high})", "max", "minmax")))
        line = f"{head} {draw(st.sampled_from(('lower', 'higher')))} {value} normalize {norm}"
    if mentions(value, names):
        line += f" missing {draw(st.sampled_from(('worst', 'neutral', 'best', '0', '37', '100')))}"
    return line


def bounds(draw: Draw, kind: str) -> tuple[str, str]:
    pairs = {
        "int": (("0", "10"), ("-5", "5"), ("0", "1")),
        "float": (("0.0", "1.0"), ("-1.5", "100")),
        "cpu": (("0", "4"), ("100m", "2")),
        "bytes": (("0", "8Gi"), ("1Gi", "2Gi")),
        "bandwidth": (("0bps", "1Gbps"), ("100Mbps", "200Mbps")),
        "ratio": (("0%", "100%"), ("0.25", "0.75")),
        "duration": (("0s", "1h"), ("1s", "5m")),
    }
    return draw(st.sampled_from(pairs[kind]))


def builtins(draw: Draw, names: Names) -> list[str]:
    """kube-scheduler's defaults whole and changed here and there, or a few alone."""
    if draw(st.booleans()):
        lines = ["include kube_default"]
        lines += draw(
            st.lists(
                st.sampled_from(
                    (
                        "reweight image_locality 7",
                        "drop node_resources_balanced_allocation",
                        "drop node_ports",
                        "drop filter node_resources_fit",
                        "drop score taint_toleration",
                        'replace filter pod_topology_spread { default_constraints = {"rack" = 1} }',
                        "replace score pod_topology_spread weight 3 { default_constraints = none }",
                        "replace score inter_pod_affinity weight 1 { ignore_preferred_terms_of_existing_pods = yes }",
                        "replace filter node_affinity when pod.priority < 1",
                        'replace score node_resources_fit weight 2 { resources = {"cpu" = 3, "nvidia.com/gpu" = 1} }',
                    )
                ),
                max_size=2,
                unique=True,
            )
        )
        return lines
    shape = '{ strategy = requested_to_capacity_ratio shape = {"0" = 0, "40" = 10, "100" = 2} }'
    alone = (
        "filter node_unschedulable",
        f"filter taint_toleration{when(draw, names)}",
        f"filter node_resources_fit{when(draw, names)}",
        "score node_resources_fit weight 2 { strategy = most_allocated }",
        f"score node_affinity weight 1{when(draw, names)}",
        f"filter pod_topology_spread{when(draw, names)}",
        'score pod_topology_spread weight 2 { default_constraints = {"rack" = 2, "kubernetes.io/hostname" = 1} }',
        "score image_locality weight 3",
        'score node_resources_balanced_allocation weight 1 { resources = {"cpu" = 1, "ephemeral-storage" = 1} }',
    )
    chosen = draw(st.lists(st.sampled_from(alone), unique=True, max_size=4))
    if "score node_resources_fit weight 2 { strategy = most_allocated }" not in chosen and draw(
        st.booleans()
    ):
        chosen.append(f"score node_resources_fit weight 1 {shape}")
    return chosen


def a_layer(draw: Draw, index: int, names: Names, filters: list[str], scores: list[str]) -> str:
    """A layer that changes some of the policy's own rules and brings one."""
    body = [f"  {draw(a_filter(f'x{index}', names))}"] if draw(st.booleans()) else []
    untouched = set(filters) | set(scores)
    for name in draw(st.lists(st.sampled_from(filters), unique=True, max_size=2)) if filters else []:
        untouched.discard(name)
        body.append(
            draw(
                st.sampled_from(
                    (
                        f"  replace {draw(a_filter(name, names))}",
                        f"  amend {name} scaleup no",
                        f'  amend {name} else "by a layer"',
                        f"  amend {name}{when(draw, names) or ' scaleup yes'}",
                    )
                )
            )
        )
    for name in draw(st.lists(st.sampled_from(scores), unique=True, max_size=2)) if scores else []:
        untouched.discard(name)
        weight = draw(st.integers(0, 9))
        changes = (
            f"  reweight {name} {weight}",
            f"  replace {draw(a_score(name, names))}",
            f"  amend {name} weight {weight}",
        )
        body.append(draw(st.sampled_from(changes)))
    inside = "\n".join(body)
    return f"layer layer{index} when {condition(draw, At(names, shares=True), 1)} {{\n{inside}\n}}"


# ── order and gangs ────────────────────────────────────────────────────────────────────────────────────────────────


def queue(draw: Draw, names: Names) -> str:
    at = At(names)
    keys = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("int", "cpu", "duration", "string", "qos", "bool", "optional", "share")))
        match kind:
            case "string":
                key = string(draw, at)
            case "qos":
                key = "pod.qos"
            case "bool":
                key = condition(draw, at, 1)
            case "optional":
                key = asked(draw, at)
            case "share":
                key = draw(st.sampled_from((*SHARES, "namespace.share.cpu > 20%", "-namespace.share.memory")))
            case _:
                key = number(draw, kind, at, 1)
        keys.append(f"{key}{draw(st.sampled_from(('', ' asc', ' desc')))}")
    return f"queue by {', '.join(keys)}"


def extenders(draw: Draw) -> list[str]:
    """Not beside a gang, which cannot be placed with them."""
    weight = ("", " weight 3 missing neutral", " weight 1 missing 40", " weight 0 missing worst")
    names = draw(st.lists(st.sampled_from(("gpu_share", "topology")), unique=True, min_size=1))
    return [f"extender {name}{draw(st.sampled_from(weight))}" for name in names]


def gang(draw: Draw, names: Names) -> str:
    """By an optional label, the minimum a number or an input of the pod."""
    minima = ["2", "3", "max(1, pod.priority)", *(name for name, kind in names.pod if kind == "int")]
    terms = f"min = {draw(st.sampled_from(minima))} timeout = {draw(st.sampled_from(('30s', '5m')))}"
    terms += draw(
        st.sampled_from(
            ("", " on_timeout = fail", " on_timeout = best_effort", " mode = gate", ' topology = "rack"')
        )
    )
    return f'gang by pod.labels["{draw(st.sampled_from(LABEL_KEYS))}"] {{ {terms} }}'


# ── whole policies ─────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def policies(draw: Draw, *, layers: bool = True) -> str:
    """A whole policy as text. It checks: its findings are warnings and hints at most."""
    lines, names = draw(declarations())
    if draw(st.booleans()):
        lines.append(queue(draw, names))
    if names.traffic or draw(st.integers(0, 3)) == 0:
        lines.append(gang(draw, names))
    elif draw(st.integers(0, 5)) == 0:
        lines += extenders(draw)
    lines += builtins(draw, names)
    filters = [f"f{index}" for index in range(draw(st.integers(0, 3)))]
    scores = [f"s{index}" for index in range(draw(st.integers(0, 3)))]
    lines += [draw(a_filter(name, names)) for name in filters]
    lines += [draw(a_score(name, names)) for name in scores]
    if layers:
        for index in range(draw(st.integers(0, 2))):
            lines.append(a_layer(draw, index, names, filters, scores))
    return "\n".join(("policy test version 1", *lines, ""))


def programs(*, layers: bool = True) -> st.SearchStrategy[Program]:
    """What the checker makes of `policies()`."""
    return policies(layers=layers).map(program)


def program(text: str) -> Program:
    checked = check_text(text)
    assert checked.program is not None, "\n".join(
        [text, *(f"{one.code} {one.message}" for one in checked.diagnostics)]
    )
    return checked.program
