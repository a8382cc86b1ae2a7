"""What the text of a team may read of pods of other namespaces and of nodes."""

import pytest

from policysched.lang.check import check_sources
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.check.team_texts import RequiredBase
from policysched.lang.ir.attributes import ATTRIBUTES
from policysched.text import Severity, Source

BASE = """library base version 1
include kube_default
let key: string = "example.com/use"
let loud: int = count(placed pods where (other.annotations[key] else "") == "loud")
input heat: int = node.annotations["heat"] default 0 invalid default
input memory_use: int = pod.annotations["memory-use"] default 0 invalid default
resource use { capacity = 10, request = memory_use }
"""

OF_OPERATOR = RequiredBase("base.policy", frozenset({"base.policy"}))


def errors(*lines: str, of_team: bool = True) -> list[str]:
    texts = {
        "base.policy": BASE,
        "a.policy": "\n".join(('policy a version 1\ninclude "base.policy"', *lines, "")),
    }
    operator_keys = frozenset(texts if not of_team else {"base.policy"})
    sources = {key: Source(key, text) for key, text in texts.items()}
    checked: CheckedSource = check_sources(sources, base=RequiredBase("base.policy", operator_keys)).sources[
        "a.policy"
    ]
    return [d.code for d in checked.diagnostics if d.severity is Severity.ERROR]


def total(pods: str, condition: str = "", value: str = "") -> str:
    function = f"sum({value} over {pods}" if value else f"count({pods}"
    where = f" where {condition}" if condition else ""
    return f"score s weight 1 higher ({function}{where}) else 0) normalize max"


ALLOWED = [
    total("placed pods"),
    total("placed pods", 'other.labels["app"] == "db"'),
    total("pods on node", 'has other.labels["app"] and other.labels["tier"] in ["a", "b"]'),
    total('pods in "zone"', '(other.labels["app"] else "none") != pod.name or other.namespace == "web"'),
    total('pods in "zone"', 'starts_with(other.node.name, "gpu-")'),
    total("placed pods", 'other.namespace == pod.namespace and (other.annotations["a"] else "") == "b"'),
    total("placed pods", "namespace.name == other.namespace and other.priority > 3 and other.age < 2m"),
    total("placed pods", "other.namespace == pod.namespace", "other.requests.cpu / 1000m"),
    total("all pods", "other.qos == BestEffort and (other.namespace == pod.namespace)"),
    "score s weight 1 higher loud normalize max",
    'filter s require heat < 3 says "{heat}"',
    "filter s require node.free.use >= pod.requests.use",
    'filter s require (node.conditions["Ready"] else "") == "True"',
    'preemption { victims = (victim.annotations["a"] else "") == "b" }',
    'queue by pod.annotations["rank"], namespace.annotations["rank"]',
]
REFUSED = [
    total("pods"),
    total("pods", 'other.labels["app"] == "db"'),
    total("all pods", 'other.namespace == "web"'),
    total("placed pods", '(other.annotations["a"] else "") == "b"'),
    total("placed pods", 'has other.annotations["a"]'),
    total("placed pods", "other.annotations[key] == pod.name"),
    total("placed pods", "other.age < 2m"),
    total("pods on node", 'starts_with(other.labels["a"] else "", "b")'),
    total("pods on node", 'rank(other.labels["a"] else "", ["b"]) == 1'),
    total("pods on node", '(if has other.labels["a"] then other.namespace else "") == "1"'),
    total("pods on node", 'other.labels["a"] == other.uid'),
    total("placed pods", "", "other.requests.cpu / 1000m"),
    total("placed pods", "", "other.requests.use"),
    total("placed pods", "other.namespace == pod.namespace or other.priority > 3"),
    total("placed pods", "not (other.namespace == pod.namespace and other.priority > 3)"),
    total("placed pods", "other.namespace != pod.namespace and other.priority > 3"),
    total("placed pods", 'other.labels["namespace"] == pod.namespace and other.priority > 3'),
    "let busy: int = count(placed pods where other.priority > 3)\nfilter s require busy < 3",
    "shadow filter s require count(placed pods where other.priority > 3) < 3",
    "layer l when count(placed pods where other.priority > 3) < 3 { amend image_locality weight 3 }",
    'filter s when has node.annotations["a"] require false',
    'input own: int = node.annotations["heat"] default 0 invalid default\nfilter s require own < 3',
    'input own: int = node.objects["heat"] at "x" default 0 invalid default\nfilter s require own < 3',
    'filter s require node.ready says "{node.annotations[key]}"',
    'filter s require node.ready says "{node.annotations[\\"a\\"]}"',
    'score s weight 1 higher (max of (if has node.annotations["a"] then 1 else 0) over nodes) else 0 normalize max',
    'amend node_ports when has node.annotations["a"]',
]


@pytest.mark.parametrize("lines", ALLOWED)
def test_a_team_reads_what_affinity_and_free_capacity_tell_everybody(lines: str) -> None:
    assert errors(lines) == []


@pytest.mark.parametrize("lines", REFUSED)
def test_a_team_reads_nothing_else_of_pods_of_other_namespaces_and_of_nodes(lines: str) -> None:
    assert set(errors(lines)) == {"PS914"}


@pytest.mark.parametrize("lines", REFUSED)
def test_the_operator_reads_everything(lines: str) -> None:
    assert errors(lines, of_team=False) == []


def test_every_attribute_of_a_counted_pod_but_these_is_refused() -> None:
    """Also those that are added later."""
    rows = [row for row in ATTRIBUTES.values() if row.owner == "other"]
    written = {row.qualified_name: row.qualified_name + ('["x"]' if row.key_kind else "") for row in rows}

    readable = {
        name
        for name, read in written.items()
        if "PS914" not in errors(total("placed pods", f'{read} == "x"'))
    }

    assert readable == {"other.namespace", "other.labels", "other.node.name", "other.node.labels"}


def test_a_team_declares_no_resource_because_requests_are_read_of_all_pods() -> None:
    line = "resource more { capacity = 10, request = memory_use }"

    assert (errors(line), errors(line, of_team=False)) == (["PS911"], [])


CHOSEN = [
    'param key: string = "a"\nlet l: int = count(placed pods where (other.annotations[key] else "") == "x")',
    'param key: string = "a"\nlet l: int = count(placed pods where starts_with(other.labels[key] else "", "x"))',
    'param k: string = "a"\nlet key: string = k\ninput i: int = node.annotations[key] default 0 invalid default',
    'param key: string = "a"\nfilter f require has node.annotations[key]',
    'param key: string = "a"\ninput i: int = node.objects[key] at "x" default 0 invalid default',
    'param key: string = "a"\nfilter f require node.ready says "{node.annotations[key]}"',
    'param key: string = "a"\ninput i: int = pod.annotations[key] default 0 invalid default\n'
    "resource u { capacity = 10, request = i }",
    'param key: string = "a"\nresource u { capacity = 10, request = if has pod.labels[key] then 1 else 0 }',
]
NOT_CHOSEN = [
    *(lines.replace("param ", "locked param ") for lines in CHOSEN),
    *(lines.replace('= "a"', '= "a" in ["a", "b"]', 1) for lines in CHOSEN),
    'param key: string = "a"\nlet l: int = count(placed pods where other.labels[key] == "x")',
    'param key: string = "a"\nfilter f require (pod.annotations[key] else "") == "x"',
    'param key: string = "a"\nlet l: int = count(placed pods where other.namespace == pod.namespace and has other.annotations[key])',
    'param n: int = 3\ninput i: int = pod.annotations["a"] default 0 invalid default\n'
    "resource u { capacity = 10, request = i * n }",
]


def chosen(lines: str, kind: str = "library", base: RequiredBase | None = OF_OPERATOR) -> list[str]:
    source = Source("base.policy", f"{kind} base version 1\ninclude kube_default\n{lines}\n")
    checked = check_sources({"base.policy": source}, base=base).sources["base.policy"]
    assert [d.message for d in checked.diagnostics if d.severity is Severity.ERROR] == []
    return [d.message for d in checked.diagnostics if d.code == "PS915"]


@pytest.mark.parametrize("lines", CHOSEN)
def test_a_library_that_lets_a_team_choose_what_it_reads_gets_a_warning(lines: str) -> None:
    (message,) = chosen(lines)
    assert message.startswith("teams can choose which key `") and message.endswith("` reads")


@pytest.mark.parametrize("lines", NOT_CHOSEN)
def test_a_library_that_chooses_itself_or_reads_what_a_team_may_read_gets_none(lines: str) -> None:
    assert chosen(lines) == []


@pytest.mark.parametrize("lines", CHOSEN)
def test_no_team_chooses_what_a_policy_of_the_operator_reads_or_where_there_are_no_teams(lines: str) -> None:
    assert chosen(lines, kind="policy") == chosen(lines, base=None) == []
