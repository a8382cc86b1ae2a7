"""The only package that talks to Kubernetes: reading, watching, binding, reporting, leading.

`wire` turns JSON into the typed values of `cluster`; everything else carries requests over a `Transport`. Nothing here
decides where a pod goes.
"""
