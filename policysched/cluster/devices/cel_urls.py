"""URLs in CEL: the functions of Kubernetes' library url, as Go's `net/url` parses.

The CEL runtime has no type for a URL. It is bytes with its text, in the form that Go prints; equal values are equal bytes.
Python's `urllib.parse` accepts nearly everything, so only its percent-encoding is used. Source: `urls.go` in
k8s.io/apiserver/pkg/cel/library v0.37.2, `net/url` of Go 1.26.
"""

import re
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST_ESCAPE = re.compile(r"%(?!25)[0-7]")
_BAD_HOST = re.compile(r"""[\x00-\x7f](?<![A-Za-z0-9%\-_.~!$&'()*+,;=:\[\]<>"])""")
_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_USER_SAFE, _HOST_SAFE, _PATH_SAFE, _FRAGMENT_SAFE = (
    "$&+,;=",
    "!$&'()*+,;=:[]<>\"",
    "$&+,/:;=@",
    "!$&()*+,/:;=?@",
)
_ENCODED = re.compile(r"[A-Za-z0-9\-_.~/!$&'()*+,;=:@\[\]%]*")
_ENCODED_FRAGMENT = re.compile(r"[A-Za-z0-9\-_.~/!$&'()*+,;=:@\[\]%?]*")


class _Url(NamedTuple):
    """`host` is decoded; `user` (None: there is none), `path` and `fragment` are encoded as Go prints them."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    host: str = ""
    path: str = ""
    query: str = ""
    has_query: bool = False
    fragment: str = ""
    no_authority: bool = False

    def __str__(self) -> str:
        text = f"{self.scheme}:" if self.scheme else ""
        if self.opaque:
            text += self.opaque
        else:
            user = "" if self.user is None else f"{self.user}@"
            authority = user + _escape(self.host, _HOST_SAFE)
            begins = authority or (self.scheme and self.path and not self.no_authority)
            text += f"//{authority}" * bool(begins) + self.path
        text += f"?{self.query}" * self.has_query
        return text + f"#{self.fragment}" * bool(self.fragment)


def url(text: str) -> bytes:
    printed = str(_parse(text))
    return (printed if is_url(printed) else text).encode()  # Go prints `//` as nothing


def is_url(text: str) -> bool:
    try:
        _parse_request(text)
    except ValueError:
        return False
    return True


def request_errors(text: str) -> list[str]:
    """What is wrong with the URI of a request; the words of some errors are not Go's."""
    try:
        _parse_request(text)
    except ValueError as error:
        return [f'parse "{text}": {error}']
    return []


def scheme(value: bytes) -> str:
    return _value(value).scheme


def host(value: bytes) -> str:
    return _printable(_value(value).host)


def hostname(value: bytes) -> str:
    return _printable(_split_port(_value(value).host)[0])


def port(value: bytes) -> str:
    return _split_port(_value(value).host)[1]


def escaped_path(value: bytes) -> str:
    return _value(value).path


def query(value: bytes) -> dict[str, list[str]]:
    """Parts that cannot be decoded are left out, as in Go."""
    values: dict[str, list[str]] = {}
    for part in _value(value).query.split("&"):
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        name, _, given = (_printable(_unescape(item.replace("+", " "))) for item in part.partition("="))
        values.setdefault(name, []).append(given)
    return values


def _value(value: bytes) -> _Url:
    try:
        return _parse(value.decode())
    except ValueError:
        raise ValueError("no such overload: not a URL") from None


def _parse(text: str) -> _Url:
    """A fragment is part of a URL, but not of the URI of a request, which must be valid as well."""
    try:
        _parse_request(text)
        whole, _, fragment = text.partition("#")
        parsed = _parse_request(whole, is_reference=True)
        return parsed._replace(fragment=_encoded(fragment, _ENCODED_FRAGMENT, _FRAGMENT_SAFE))
    except ValueError as error:
        raise ValueError(f"URL parse error during conversion from string `{text[:64]}`: {error}") from None


def _parse_request(text: str, *, is_reference: bool = False) -> _Url:
    """The URI of a request. `is_reference`: any URL, where `//` without a scheme begins a host."""
    if _CONTROL.search(text):
        raise ValueError("invalid control character in URL")
    if not text:
        raise ValueError("empty url")
    if text == "*":
        return _Url(path="*")
    if text.startswith(":"):
        raise ValueError("missing protocol scheme")
    match = _SCHEME.match(text)
    name, rest = ("", text) if match is None else (match[0][:-1].lower(), text[match.end() :])
    rest, has_query, search = rest.partition("?")
    parsed = _Url(name, query=search, has_query=bool(has_query))
    if not rest.startswith("/"):
        if not name:
            raise ValueError("invalid URI for request")
        return parsed._replace(opaque=rest)
    if rest.startswith("//") and (name or (is_reference and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        user, at, named_host = authority.rpartition("@")
        parsed = parsed._replace(host=_host(name, named_host), user=_user(user) if at else None)
        rest = slash + path
    else:
        parsed = parsed._replace(no_authority=True)
    return parsed._replace(path=_encoded(rest, _ENCODED, _PATH_SAFE))


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise ValueError("invalid userinfo")
    name, colon, password = text.partition(":")
    return _escape(_unescape(name), _USER_SAFE) + colon + _escape(_unescape(password), _USER_SAFE)


def _host(scheme: str, text: str) -> str:
    bracket = text.rfind("[")
    if bracket > 0:
        raise ValueError("invalid IP-literal")
    if bracket < 0:
        colon = text.find(":") if scheme in ("http", "https") else text.rfind(":")
        _require_port(text[colon:] if colon >= 0 else "")
        return _unescape_host(text)
    end = text.rfind("]")
    if end < 0:
        raise ValueError("missing ']' in host")
    _require_port(text[end + 1 :])
    address, zone_mark, zone = text[1:end].partition("%25")
    literal = _unescape_host(address)
    if zone_mark:
        literal += "%" + _unescape_zone(zone)
    try:
        IPv6Address(literal.partition("%")[0])
    except ValueError:
        raise ValueError("invalid host") from None
    if zone_mark and not zone:
        raise ValueError("invalid host: the zone is empty")
    return f"[{literal}]{text[end + 1 :]}"


def _require_port(text: str) -> None:
    if not _PORT.fullmatch(text):
        raise ValueError(f"invalid port `{text[:16]}` after host")


def _split_port(text: str) -> tuple[str, str]:
    colon = text.rfind(":")
    number = ""
    if colon >= 0 and _PORT.fullmatch(text[colon:]):
        text, number = text[:colon], text[colon + 1 :]
    return (text[1:-1] if text.startswith("[") and text.endswith("]") else text), number


def _unescape_host(text: str) -> str:
    """Only bytes beyond ASCII may be encoded, and the percent sign."""
    if _BAD_HOST_ESCAPE.search(text) or _BAD_HOST.search(text):
        raise ValueError("invalid character in host name")
    return _unescape(text)


def _unescape_zone(text: str) -> str:
    decoded = _unescape(text)
    if _BAD_HOST.search(text) or _BAD_HOST.search(decoded.replace(" ", "")):
        raise ValueError("invalid character in host name")
    return decoded


def _encoded(text: str, encoded: re.Pattern[str], safe: str) -> str:
    """As Go prints it: as it was written if that is a valid encoding."""
    decoded = _unescape(text)
    return text if encoded.fullmatch(text) else _escape(decoded, safe)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    if (bad := _BAD_ESCAPE.search(text)) is not None:
        raise ValueError(f"invalid URL escape `{text[bad.start() : bad.start() + 3]}`")
    return unquote_to_bytes(text).decode(errors="surrogateescape")


def _escape(text: str, safe: str) -> str:
    return quote(text, safe=safe, errors="surrogateescape")


def _printable(text: str) -> str:
    """CEL's strings are valid Unicode."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
