"""The syntax tree of the policy language, with a span on every node and no names resolved."""
