"""What a CEL selector can name: the device, and the functions of Kubernetes' libraries.

Those of strings and optional values, and `cel.bind`, are the runtime's own. Functions in Python have values of the types in `_KINDS`
as parameters. Values whose type the runtime lacks (quantities, versions, addresses, URLs, formats) are bytes. Further functions and
macros are templates (`cel_macros`).

Missing: the sum of durations, which a function in Python cannot return; `format` of lists, maps, doubles, durations and bytes, which the
runtime prints otherwise than Kubernetes. A uint in the result of a function on a list is an int, so such a function and `type` are
refused together in an expression with a uint (`cel_selectors`).
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from policysched.cluster.devices import cel_addresses as addresses
from policysched.cluster.devices import cel_formats as formats
from policysched.cluster.devices import cel_lists as lists
from policysched.cluster.devices import cel_regex as regex
from policysched.cluster.devices import cel_urls as urls
from policysched.cluster.devices import cel_values as values

_KINDS = {
    "text": "string",
    "value": "bytes",
    "number": "int",
    "truth": "bool",
    "double": "double",
    "anything": "dyn",
    "items": "list<dyn>",
    "numbers": "list<int>",
    "texts": "list<string>",
    "map": "map<dyn, dyn>",
    "parameters": "map<string, list<string>>",
}
"""Words of the signatures to types of CEL."""
_SCALARS = ("text", "value", "number", "truth", "double")

FUNCTIONS: dict[str, Callable[..., object]] = {
    "quantity(text) value": values.quantity,
    "isQuantity(text) truth": values.is_quantity,
    "semver(text) value": values.semver,
    "semver(text, truth) value": values.semver,
    "isSemver(text) truth": values.is_semver,
    "isSemver(text, truth) truth": values.is_semver,
    "value.compareTo(value) number": values.compare_to,
    "value.isGreaterThan(value) truth": values.is_greater_than,
    "value.isLessThan(value) truth": values.is_less_than,
    "value.sign() number": values.sign,
    "value.isInteger() truth": values.is_integer,
    "value.asInteger() number": values.as_integer,
    "value.asApproximateFloat() double": values.as_approximate_float,
    "value.add(value) value": values.add,
    "value.add(number) value": values.add,
    "value.sub(value) value": values.sub,
    "value.sub(number) value": values.sub,
    "value.major() number": values.major,
    "value.minor() number": values.minor,
    "value.patch() number": values.patch,
    "ip(text) value": addresses.ip,
    "value.ip() value": addresses.ip_of_cidr,
    "isIP(text) truth": addresses.is_ip,
    "ip.isCanonical(text) truth": addresses.is_canonical,
    "value.family() number": addresses.family,
    "value.isUnspecified() truth": addresses.is_unspecified,
    "value.isLoopback() truth": addresses.is_loopback,
    "value.isLinkLocalMulticast() truth": addresses.is_link_local_multicast,
    "value.isLinkLocalUnicast() truth": addresses.is_link_local_unicast,
    "value.isGlobalUnicast() truth": addresses.is_global_unicast,
    "cidr(text) value": addresses.cidr,
    "isCIDR(text) truth": addresses.is_cidr,
    "value.containsIP(text) truth": addresses.contains_ip,
    "value.containsIP(value) truth": addresses.contains_ip,
    "value.containsCIDR(text) truth": addresses.contains_cidr,
    "value.containsCIDR(value) truth": addresses.contains_cidr,
    "value.masked() value": addresses.masked,
    "value.prefixLength() number": addresses.prefix_length,
    "sets.contains(items, items) truth": lists.sets_contains,
    "sets.equivalent(items, items) truth": lists.sets_equivalent,
    "sets.intersects(items, items) truth": lists.sets_intersects,
    # by what the values are, since nothing else of a device is known before
    **{f"{on}.includes({item}) truth": lists.includes for item in _SCALARS for on in ("items", item)},
    "items.isSorted() truth": lists.is_sorted,
    "items.min() anything": lists.smallest,
    "items.max() anything": lists.largest,
    "items.sum() anything": lists.total,
    "items.distinct() items": lists.distinct,
    "items.reverse() items": lists.backwards,
    "items.sort() items": lists.ordered,
    "items.slice(number, number) items": lists.slice_of,
    "items.flatten() items": lists.flatten,
    "items.flatten(number) items": lists.flatten,
    "lists.range(number) numbers": lists.numbers_below,
    "url(text) value": urls.url,
    "isURL(text) truth": urls.is_url,
    "value.getScheme() text": urls.scheme,
    "value.getHost() text": urls.host,
    "value.getHostname() text": urls.hostname,
    "value.getPort() text": urls.port,
    "value.getEscapedPath() text": urls.escaped_path,
    "value.getQuery() parameters": urls.query,
    "text.find(text) text": regex.find,
    "text.findAll(text) texts": regex.find_all,
    "text.findAll(text, number) texts": regex.find_all,
    **{f"format.{name}() value": formats.constant(name) for name in formats.NAMES},
    "@format_named(items) value": formats.named,
    "@format_errors(items) texts": formats.errors,
    "@can_format(items) truth": lists.can_format,
    "@order(items) numbers": lists.order,
    "@keys(items) items": lists.keys_of,
    "@merged(items) map": lists.merged,
    "@index_of(items) number": lists.index_of,
    "@last_index_of(items) number": lists.last_index_of,
}
"""Signature to implementation. Before the dot of a method is the kind of what it is called on."""

_SIGNATURE = re.compile(r"(?:(\w+)\.)?([@\w]+)\(([\w, ]*)\) (\w+)\Z")


class Signature(NamedTuple):
    """`kinds`: of the parameters, that of a method's object first."""

    name: str
    is_method: bool
    kinds: list[str]
    returned: str

    @classmethod
    def of(cls, text: str) -> Self:
        match = _SIGNATURE.match(text)
        assert match, text
        before, name, listed, returned = match.groups()
        kinds = [kind.strip() for kind in listed.split(",") if kind]
        if before in _KINDS:
            return cls(name, True, [before, *kinds], returned)
        return cls(name if before is None else f"{before}.{name}", False, kinds, returned)


def environment() -> Any:
    """Raises ImportError if CEL is not installed."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    types = {kind: cel.Type(written) for kind, written in _KINDS.items()}
    overloads: dict[str, list[Any]] = {}
    for text, implementation in FUNCTIONS.items():
        name, is_method, kinds, returned = Signature.of(text)
        parameters = [types[kind] for kind in kinds]
        overloads.setdefault(name, []).append(
            cel.Overload(text, types[returned], parameters, is_method, implementation)
        )
    return cel.NewEnv(
        variables={"device": cel.Type("map<string, dyn>")},
        extensions=[ext_bindings.ExtBindings(), ext_strings.ExtStrings(2), ext_optional.ExtOptional()],
        functions=[cel.FunctionDecl(name, each) for name, each in overloads.items()],
    )
