"""Addresses and networks in CEL: the functions of Kubernetes' libraries ip and cidr.

The CEL runtime has no types for addresses and networks. They are bytes with their text, which `string` returns; equal
values are equal bytes. Source: `ip.go` and `cidr.go` in k8s.io/apiserver/pkg/cel/library v0.37.2.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_PREFIX_LENGTH = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_BROADCAST = IPv4Address("255.255.255.255")
_LOCAL_MULTICAST = IPv4Network("224.0.0.0/24")


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def ip(text: str) -> bytes:
    return str(_parse_address(text)).encode()


def is_ip(text: str) -> bool:
    try:
        _parse_address(text)
    except ValueError:
        return False
    return True


def is_canonical(text: str) -> bool:
    return str(_parse_address(text)) == text


def family(value: bytes) -> int:
    return _address(value).version


def is_unspecified(value: bytes) -> bool:
    return _address(value).is_unspecified


def is_loopback(value: bytes) -> bool:
    return _address(value).is_loopback


def is_link_local_multicast(value: bytes) -> bool:
    address = _address(value)
    if isinstance(address, IPv4Address):
        return address in _LOCAL_MULTICAST
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


def is_link_local_unicast(value: bytes) -> bool:
    return _address(value).is_link_local


def is_global_unicast(value: bytes) -> bool:
    address = _address(value)
    return not (
        address.is_unspecified
        or address == _BROADCAST
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
    )


def _parse_address(text: str) -> IPv4Address | IPv6Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise ValueError(f"IP Address `{text[:64]}` parse error during conversion from string") from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"IP address `{text[:64]}` with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise ValueError(f"IPv4-mapped IPv6 address `{text[:64]}` is not allowed")
    return address


def _address(value: bytes) -> IPv4Address | IPv6Address:
    try:
        return _parse_address(value.decode())
    except ValueError:
        raise ValueError("no such overload: not an IP address") from None


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cidr(text: str) -> bytes:
    address, length = _parse_cidr(text)
    return f"{address}/{length}".encode()


def is_cidr(text: str) -> bool:
    try:
        _parse_cidr(text)
    except ValueError:
        return False
    return True


def contains_ip(value: bytes, other: str | bytes) -> bool:
    address = _parse_address(other) if isinstance(other, str) else _address(other)
    return address in _network(value)


def contains_cidr(value: bytes, other: str | bytes) -> bool:
    outer, inner = _network(value), _network(cidr(other) if isinstance(other, str) else other)
    return outer.version == inner.version and outer.prefixlen <= inner.prefixlen and outer.overlaps(inner)


def ip_of_cidr(value: bytes) -> bytes:
    return str(_cidr(value)[0]).encode()


def masked(value: bytes) -> bytes:
    return str(_network(value)).encode()


def prefix_length(value: bytes) -> int:
    return _cidr(value)[1]


def _parse_cidr(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """The bits after the mask may be set."""
    written, _, bits = text.rpartition("/")
    if _PREFIX_LENGTH.fullmatch(bits):
        address = _parse_address(written)
        if int(bits) <= address.max_prefixlen:
            return address, int(bits)
    raise ValueError(f"network address `{text[:64]}` parse error during conversion from string")


def _cidr(value: bytes) -> tuple[IPv4Address | IPv6Address, int]:
    try:
        return _parse_cidr(value.decode())
    except ValueError:
        raise ValueError("no such overload: not a network") from None


def _network(value: bytes) -> IPv4Network | IPv6Network:
    return ip_network(_cidr(value), strict=False)
