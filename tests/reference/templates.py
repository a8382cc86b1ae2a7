"""A filter's own words: `receiving {net_rx}, over {hot_link}`."""

from policysched.lang.ir.expr import Expr, Stage, stage_of, type_of
from policysched.lang.ir.rules import MessageTemplate
from policysched.lang.types.units import format_value
from policysched.model.messages import MISSING_TEXT, NODE_VALUE_PLACEHOLDER
from tests.reference.context import ExpressionContext
from tests.reference.expressions import value
from tests.reference.values import MISSING


def render(template: MessageTemplate, context: ExpressionContext) -> str:
    """With the values of this node."""
    return "".join(part if isinstance(part, str) else _text(part, context) for part in template.parts)


def render_group(template: MessageTemplate, context: ExpressionContext) -> str:
    """As an event counts it: what depends on the node is left open, so that one cause is one group."""
    return "".join(
        part
        if isinstance(part, str)
        else (NODE_VALUE_PLACEHOLDER if Stage.NODE in stage_of(part) else _text(part, context))
        for part in template.parts
    )


def _text(part: Expr, context: ExpressionContext) -> str:
    found = value(part, context)
    return MISSING_TEXT if found is MISSING else format_value(found, type_of(part))
