"""What a CEL selector can name: the device, and the functions of Kubernetes' libraries.

Missing, of those that the API server's validation accepts: the libraries url, format and regex, `indexOf` and `lastIndexOf` of
lists (the runtime has one function of a name, and those are of strings), cel-go's list functions (`sort`, `slice`,
`distinct` ...), and comprehensions with two variables.
"""

from collections.abc import Callable
from typing import Any

from policysched.cluster.devices import cel_libraries as libraries
from policysched.cluster.devices import cel_values as values


def environment() -> Any:
    """Raises ImportError if CEL is not installed."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    kinds = cel.Type
    text, value, number, truth, anything = kinds.STRING, kinds.BYTES, kinds.INT, kinds.BOOL, kinds.DYN
    items = kinds.List(anything)

    def overload(returned: Any, implementation: Callable[..., object], *parameters: Any, member: bool) -> Any:
        return returned, implementation, list(parameters), member

    def function(name: str, *overloads: Any) -> Any:
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"{name.replace('.', '_')}_{index}", returned, parameters, member, implementation
                )
                for index, (returned, implementation, parameters, member) in enumerate(overloads)
            ],
        )

    def of_text(name: str, returned: Any, implementation: Callable[..., object], *more: Any) -> Any:
        """`name(text)`, and with further arguments where there are `more`."""
        plain = overload(returned, implementation, text, member=False)
        return function(
            name, plain, *([overload(returned, implementation, text, *more, member=False)] * bool(more))
        )

    def method(
        name: str, returned: Any, implementation: Callable[..., object], *others: Any, on: Any = value
    ) -> Any:
        """`x.name()`, or `x.name(other)` for each kind of `others`."""
        signatures: list[tuple[Any, ...]] = [(on, other) for other in others] or [(on,)]
        return function(
            name, *(overload(returned, implementation, *each, member=True) for each in signatures)
        )

    return cel.NewEnv(
        variables={"device": kinds.Map(text, anything)},
        extensions=[ext_bindings.ExtBindings(), ext_strings.ExtStrings(2), ext_optional.ExtOptional()],
        functions=[
            of_text("quantity", value, values.quantity),
            of_text("isQuantity", truth, values.is_quantity),
            of_text("semver", value, values.semver, truth),
            of_text("isSemver", truth, values.is_semver, truth),
            method("compareTo", number, values.compare_to, value),
            method("isGreaterThan", truth, values.is_greater_than, value),
            method("isLessThan", truth, values.is_less_than, value),
            method("sign", number, values.sign),
            method("isInteger", truth, values.is_integer),
            method("asInteger", number, values.as_integer),
            method("asApproximateFloat", kinds.DOUBLE, values.as_approximate_float),
            method("add", value, values.add, value, number),
            method("sub", value, values.sub, value, number),
            method("major", number, values.major),
            method("minor", number, values.minor),
            method("patch", number, values.patch),
            function(
                "ip",
                overload(value, libraries.ip, text, member=False),
                overload(value, libraries.ip_of_cidr, value, member=True),
            ),
            of_text("isIP", truth, libraries.is_ip),
            of_text("ip.isCanonical", truth, libraries.is_canonical),
            method("family", number, libraries.family),
            method("isUnspecified", truth, libraries.is_unspecified),
            method("isLoopback", truth, libraries.is_loopback),
            method("isLinkLocalMulticast", truth, libraries.is_link_local_multicast),
            method("isLinkLocalUnicast", truth, libraries.is_link_local_unicast),
            method("isGlobalUnicast", truth, libraries.is_global_unicast),
            of_text("cidr", value, libraries.cidr),
            of_text("isCIDR", truth, libraries.is_cidr),
            method("containsIP", truth, libraries.contains_ip, text, value),
            method("containsCIDR", truth, libraries.contains_cidr, text, value),
            method("masked", value, libraries.masked),
            method("prefixLength", number, libraries.prefix_length),
            *(
                function(f"sets.{name}", overload(truth, implementation, items, items, member=False))
                for name, implementation in (
                    ("contains", libraries.sets_contains),
                    ("equivalent", libraries.sets_equivalent),
                    ("intersects", libraries.sets_intersects),
                )
            ),
            function(
                "includes",  # by what the values are, since nothing else of a device is known before
                *(
                    overload(truth, libraries.includes, of, scalar, member=True)
                    for scalar in (text, value, number, truth, kinds.DOUBLE)
                    for of in (items, scalar)
                ),
            ),
            method("isSorted", truth, libraries.is_sorted, on=items),
            method("min", anything, libraries.smallest, on=items),
            method("max", anything, libraries.largest, on=items),
            method("sum", anything, libraries.total, on=items),
        ],
    )
