"""`docs/attributes.md` from the table of attributes, and the table of units."""

from collections.abc import Iterable

from policysched.lang.ir.attributes import ATTRIBUTES, OWNERS, BuiltinAttribute
from policysched.lang.ir.expr import Owner, Stage
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.units import SUFFIXES, UNITS

_INTRODUCTION = """# Attributes

What a policy can read without declaring anything. Each has its owner in front: `pod.priority`, `node.labels["disk"]`.

- **Type** as in [language.md](language.md#types); a `?` says that it can be absent. A map is read by a quoted key
  (`pod.labels["app"]`); an absent key of labels, annotations or conditions is *missing* (ask with `has`), an absent
  resource is 0. Resources with a plain name can also be written with a dot: `pod.requests.cpu`.
- **Stage**: *pod*: known before any node is evaluated; such conditions are evaluated once per pod. *node*: evaluated for
  all nodes at once. *time*: reads the clock, so a verdict that depends on it expires.
- **Changed by**: the events that requeue a pod which a rule rejected for this value. *never* means that the
  value cannot change while the pod waits, or that the change is a new pod.

An input gives a label or annotation a type: see [language.md](language.md#input).

This page is made from `policysched/lang/ir/attributes.py`: `python -m tests.house.docs --update`.
"""

_SAID_OF: dict[Owner, str] = {
    "pod": "The pod to be placed.",
    "node": "The node being evaluated. In `filter`, `score` and texts.",
    "namespace": "The namespace of the pod to be placed. The platform team writes its labels, unlike the pod's.",
    "victim": "A pod that preemption would evict. Only in `preemption { victims = ... }`, with the preempting `pod`.",
    "other": "The counted pod in `count(pods on node where ...)` and in other totals over pods. `other.node` only "
    "over `placed pods` and `pods in KEY`.",
}


def page() -> str:
    parts = [_INTRODUCTION]
    for owner in OWNERS:
        rows = [attribute for attribute in ATTRIBUTES.values() if attribute.owner == owner]
        parts += [f"## {owner}\n", f"{_SAID_OF[owner]}\n", *_of(owner, rows), ""]
    return "\n".join(parts).rstrip() + "\n"


def _of(owner: Owner, rows: Iterable[BuiltinAttribute]) -> Iterable[str]:
    if owner in ("victim", "other"):
        own = [row for row in rows if row.path[0] != "node"]
        names = ", ".join(f"`{row.qualified_name}`" for row in own)
        yield f"The same as `pod`, less what only the queue knows: {names}."
        for row in rows:
            if row not in own:
                yield f"\n`{_name(row)}`: of the node that the pod is placed on."
        return
    yield "| attribute | type | unit | stage | changed by | meaning |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = (f"`{_name(row)}`", _type(row), row.unit or "", _stage(row), _events(row), row.doc)
        yield f"| {' | '.join(cells)} |"


def _name(attribute: BuiltinAttribute) -> str:
    if attribute.key_kind is None:
        return attribute.qualified_name
    if attribute.key_kind == "quotas":
        return f"{attribute.qualified_name}.QUOTA"
    return f'{attribute.qualified_name}["{"KEY" if attribute.key_kind == "texts" else "RESOURCE"}"]'


def _type(attribute: BuiltinAttribute) -> str:
    if attribute.key_kind == "texts":
        return "string?"
    if attribute.key_kind in ("quotas", "shares"):
        return "ratio"
    return "by resource" if attribute.key_kind == "resources" else str(attribute.type)


def _stage(attribute: BuiltinAttribute) -> str:
    words = {
        Stage.POD: "pod",
        Stage.NODE: "node",
        Stage.CANDIDATES: "candidates",
        Stage.TIME: "time",
        Stage.NAMESPACE_SHARES: "shares",
        Stage.CLUSTER_PODS: "pods",
    }
    return ", ".join(word for flag, word in words.items() if attribute.stage & flag) or "constant"


def _events(attribute: BuiltinAttribute) -> str:
    return ", ".join(sorted(event.value for event in attribute.requeue_events)) or "never"


def units() -> str:
    """Suffixes of literals, and the values of `unit "..."`, by type."""
    lines = ['| type | suffixes of literals | `unit "..."` of inputs and metrics |', "|---|---|---|"]
    for kind in (*SUFFIXES, TypeKind.TIMESTAMP):
        suffixes = " ".join(f"`{suffix}`" if suffix else "(none)" for suffix in SUFFIXES.get(kind, {}))
        of_samples = " ".join(f"`{unit}`" for unit in UNITS[kind])
        lines.append(f"| {kind.value} | {suffixes or 'no literals'} | {of_samples} |")
    return "\n".join(lines)
