"""Faults that the soak has to find: `--plant NAME` puts one into the scheduler, and the run must then exit with 1."""

from collections.abc import Callable, Mapping


def large_pods_decoded_in_the_loop() -> None:
    from policysched.kube.watch import large_objects, reflector

    reflector.LARGE_LINE_BYTES = large_objects.LARGE_LINE_BYTES = 2**40


def no_decision_budget() -> None:
    from policysched.evaluate.evaluator import Evaluator

    Evaluator.over_budget_message = lambda *_: None  # type: ignore[assignment,method-assign]


def no_share_of_the_time() -> None:
    from policysched.scheduler.queue.decision_time import DecisionTime

    DecisionTime.is_overdrawn = lambda *_: False  # type: ignore[assignment,method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (large_pods_decoded_in_the_loop, no_decision_budget, no_share_of_the_time)
}
