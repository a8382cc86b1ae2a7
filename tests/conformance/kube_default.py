"""The policy that says what kube-scheduler's default profile says, as far as built-ins cover it."""

from policysched.lang import types
from policysched.lang.builtins import BUILTINS
from policysched.lang.expr import Attr
from policysched.lang.program import BuiltinFilter, BuiltinScore, OrderKey, Preemption, Program, Rules
from policysched.text import Source, Span

NOWHERE = Span(Source("kube-default", ""), 0, 0)


def kube_default() -> Program:
    filters = tuple(
        BuiltinFilter(one.name, one.name, _defaults(one.name), None, False, NOWHERE)
        for one in BUILTINS.values()
        if one.filters
    )
    scores = tuple(
        BuiltinScore(one.name, one.name, one.default_weight, _defaults(one.name), None, False, NOWHERE)
        for one in BUILTINS.values()
        if one.default_weight is not None
    )
    return Program(
        name="test",
        version=1,
        sha256="",
        text="",
        inputs={},
        metrics={},
        outage=None,
        queue=(OrderKey(Attr("pod", ("priority",), types.INT, NOWHERE), descending=True),),
        gang=None,
        rules=Rules(filters, scores),
        layers=(),
        preemption=Preemption("own", None),
    )


def _defaults(name: str) -> tuple:
    return tuple((parameter.name, parameter.default) for parameter in BUILTINS[name].parameters)
