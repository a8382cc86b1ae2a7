"""Inputs: strings of pods, nodes and namespaces, read as typed values."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.ir.declarations import Input
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from tests.reference.context import ExpressionContext
from tests.reference.values import MISSING, Value


@dataclass(frozen=True, slots=True)
class InputRejection:
    """The pod or the node lacks a required input, or its value is invalid."""

    text: str


def read_input(declared: Input, context: ExpressionContext) -> Value | InputRejection:
    """The value, MISSING if it is optional and absent, or the rejection with the policy's message.

    An invalid text under `invalid default` counts as absent.
    """
    text = _text(declared, context)
    if text is not None:
        parsed = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
        if not isinstance(parsed, NoValueReason):
            return parsed
        if parsed is NoValueReason.INVALID and declared.invalid_text is not None:
            return InputRejection(declared.invalid_text)
    if declared.default is not None:
        return declared.default.value
    if declared.required_text is not None:
        return InputRejection(declared.required_text)
    return MISSING


def input_value(declared: Input, context: ExpressionContext) -> Value:
    """As `read_input`, for expressions. MISSING on a node that an input rejects."""
    outcome = read_input(declared, context)
    return MISSING if isinstance(outcome, InputRejection) else outcome


def _text(declared: Input, context: ExpressionContext) -> str | None:
    owner: Pod | Node | Namespace | None = {
        "pod": context.pod,
        "node": context.node,
        "namespace": context.namespace,
    }[declared.owner]
    assert owner is not None, f"input {declared.name} is read where there is no {declared.owner}"
    source: object = getattr(owner, declared.source_map)
    if declared.source_key is None:
        return str(source)
    assert isinstance(source, Mapping), f"{declared.owner}.{declared.source_map} is not a map"
    return source.get(declared.source_key)
