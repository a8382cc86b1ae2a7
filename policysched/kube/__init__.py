"""The only package that talks to Kubernetes: decode, watch, write, leader election, extenders.

`decode` turns JSON into the typed values of `model`; the other packages send requests over a `Transport`. Nothing here
decides where a pod goes.
"""
