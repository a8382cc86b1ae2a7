"""A cache of what texts mean, for texts that others write: long ones are not kept, so that a tenant cannot fill the memory."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

SHORT_TEXT_MAX = 512
"""Names of Kubernetes have at most 253 characters, values of labels 63."""


def cache_short_texts(
    maxsize: int,
) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """As `lru_cache`, but only for calls whose first argument is at most `SHORT_TEXT_MAX` characters."""

    def decorate(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        cached = lru_cache(maxsize)(function)

        @wraps(function)
        def call(*arguments: Parameters.args, **more: Parameters.kwargs) -> Value:
            text = cast(str, arguments[0])
            return (cached if len(text) <= SHORT_TEXT_MAX else function)(*arguments, **more)  # type: ignore[arg-type]

        return call

    return decorate
