"""Which events can turn a rule's no into a yes: derived from what it reads, so that nobody writes requeueing hints."""

from policysched.lang import expr as e
from policysched.lang.attributes import attribute_of
from policysched.lang.builtins import BUILTINS
from policysched.lang.events import ClusterEvent
from policysched.lang.program import BuiltinFilter, BuiltinScore, FilterRule, Input, Program, ScoreRule

Events = frozenset[ClusterEvent]

_PLACED_PODS: Events = frozenset(
    {ClusterEvent.ASSIGNED_POD_ADD, ClusterEvent.ASSIGNED_POD_UPDATE, ClusterEvent.ASSIGNED_POD_DELETE}
)


def waking_events(rule: FilterRule | BuiltinFilter | ScoreRule | BuiltinScore, program: Program) -> Events:
    """A new node can help against any filter; a score refuses nobody."""
    match rule:
        case FilterRule():
            found = events_of(rule.condition, program)
        case BuiltinFilter():
            found = BUILTINS[rule.builtin].filter_wakes
        case ScoreRule() | BuiltinScore():
            return frozenset()
    if rule.when is not None:
        found |= events_of(rule.when, program)
    return found | {ClusterEvent.NODE_ADD}


def events_of(expr: e.Expr, program: Program) -> Events:
    """The events after which the value can be another one."""
    found: Events = frozenset()
    for one in e.walk(expr):
        match one:
            case e.Attr(owner=owner, path=path):
                found |= attribute_of(owner, path).wakes
            case e.InputRef(name=name):
                found |= _source_events(program.inputs[name])
            case e.MetricRef():
                found |= {ClusterEvent.SAMPLES}
            case e.CountPods():
                found |= _PLACED_PODS
            case e.Now() | e.Window():
                found |= {ClusterEvent.TIME}
    return found


def input_waking_events(declared: Input) -> Events:
    """Where an input of the node refuses it."""
    return _source_events(declared) | {ClusterEvent.NODE_ADD}


def _source_events(declared: Input) -> Events:
    path = _ATTRIBUTE_OF_FIELD.get(declared.source_map, tuple(declared.source_map.split(".")))
    key = () if declared.source_key is None else (declared.source_key,)
    return attribute_of(declared.owner, (*path, *key)).wakes


_ATTRIBUTE_OF_FIELD = {"owner_kind": ("owner", "kind"), "owner_name": ("owner", "name")}
