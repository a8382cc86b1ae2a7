"""The syntax tree of the policy language: what the author wrote, with a span on every node and nothing resolved."""
