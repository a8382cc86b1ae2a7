"""Tests of policies: a world and what is expected of it in YAML, played by the scheduler itself.

    reading        a `*_test.yaml` as typed values, each expectation with its place in the file
    series         the notation of samples over time
    world          nodes, pods and samples of one test, from Kubernetes YAML or a short form
    playing        the scheduler on that world: what became of each pod, and why
    expecting      what was expected against what happened
    coverage       which rules were tried, and with which outcomes
    running        all of it for many files
    reports        the result as JSON and as JUnit

Nothing here decides anything by itself: pods are placed and explained by the code that runs in a cluster.
"""
