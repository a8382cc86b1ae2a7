"""The policy language: compiles text to a checked `Program` or diagnostics.

    parse ──► syntax (tree with spans) ──► check ──► ir (typed, resolved, folded)
                 └──► format (fmt)

This package and `text` are all that `policysched lint` needs; neither imports NumPy or a Kubernetes client.
`evaluate` compiles a Program to operations on columns; `tests/reference` defines its meaning.
"""
