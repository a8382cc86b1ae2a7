"""Policy tests: a scenario and its expectations in YAML, executed by the real scheduler.

    yaml_document     a `*_test.yaml` as values with their locations
    series            the notation of samples over time
    short_forms       short forms of Kubernetes objects
    scenario          nodes, pods and samples of one test
    scenario_runner   runs the scheduler on a scenario
    expectations      compares the result with the expectations
    coverage          the outcomes of rules that the tests reach
    runner            runs many files
    reports           the result as JSON and as JUnit XML

The code that runs in a cluster places and explains the pods; nothing here decides.
"""
