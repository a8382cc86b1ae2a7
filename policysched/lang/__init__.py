"""The policy language: text in, a checked `Program` or diagnostics out.

Everything `policysched lint` needs is here and in `text`; NumPy and Kubernetes are unknown here. The way of a text:

    parse ──► syntax (tree with spans) ──► check ──► program (typed, resolved, folded)
                 └──► printer (fmt)

`plan` lowers a Program to columns, `oracle` defines what it means.
"""
