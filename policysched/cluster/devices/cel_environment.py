"""What a CEL selector can name: the device, and the functions of Kubernetes' addresses.

Missing, of those that the API server's validation accepts: the libraries format (its `validate` returns an optional value,
which a function in Python cannot) and regex; of lists `indexOf` and `lastIndexOf` (the runtime has one function of a name,
and those are of strings), `first` and `last` (optional values) and `sortBy` (a macro); comprehensions with two variables.
"""

from collections.abc import Callable
from typing import Any

from policysched.cluster.devices import cel_addresses as addresses
from policysched.cluster.devices import cel_lists as lists
from policysched.cluster.devices import cel_urls as urls
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
                overload(value, addresses.ip, text, member=False),
                overload(value, addresses.ip_of_cidr, value, member=True),
            ),
            of_text("isIP", truth, addresses.is_ip),
            of_text("ip.isCanonical", truth, addresses.is_canonical),
            method("family", number, addresses.family),
            method("isUnspecified", truth, addresses.is_unspecified),
            method("isLoopback", truth, addresses.is_loopback),
            method("isLinkLocalMulticast", truth, addresses.is_link_local_multicast),
            method("isLinkLocalUnicast", truth, addresses.is_link_local_unicast),
            method("isGlobalUnicast", truth, addresses.is_global_unicast),
            of_text("cidr", value, addresses.cidr),
            of_text("isCIDR", truth, addresses.is_cidr),
            method("containsIP", truth, addresses.contains_ip, text, value),
            method("containsCIDR", truth, addresses.contains_cidr, text, value),
            method("masked", value, addresses.masked),
            method("prefixLength", number, addresses.prefix_length),
            *(
                function(f"sets.{name}", overload(truth, implementation, items, items, member=False))
                for name, implementation in (
                    ("contains", lists.sets_contains),
                    ("equivalent", lists.sets_equivalent),
                    ("intersects", lists.sets_intersects),
                )
            ),
            function(
                "includes",  # by what the values are, since nothing else of a device is known before
                *(
                    overload(truth, lists.includes, of, scalar, member=True)
                    for scalar in (text, value, number, truth, kinds.DOUBLE)
                    for of in (items, scalar)
                ),
            ),
            method("isSorted", truth, lists.is_sorted, on=items),
            method("min", anything, lists.smallest, on=items),
            method("max", anything, lists.largest, on=items),
            method("sum", anything, lists.total, on=items),
            method("distinct", items, lists.distinct, on=items),
            method("reverse", items, lists.backwards, on=items),
            method("sort", items, lists.ordered, on=items),
            function("slice", overload(items, lists.slice_of, items, number, number, member=True)),
            function(
                "flatten",
                overload(items, lists.flatten, items, member=True),
                overload(items, lists.flatten, items, number, member=True),
            ),
            function("lists.range", overload(kinds.List(number), lists.numbers_below, number, member=False)),
            of_text("url", value, urls.url),
            of_text("isURL", truth, urls.is_url),
            method("getScheme", text, urls.scheme),
            method("getHost", text, urls.host),
            method("getHostname", text, urls.hostname),
            method("getPort", text, urls.port),
            method("getEscapedPath", text, urls.escaped_path),
            method("getQuery", kinds.Map(text, kinds.List(text)), urls.query),
        ],
    )
