"""Named formats in CEL: Kubernetes' library format, with the messages of the API server's validation.

A format is bytes with its name. Source: `format.go` in k8s.io/apiserver/pkg/cel/library, `pkg/api/validate/content` and
`pkg/util/validation` in k8s.io/apimachinery, `pkg/validation/strfmt` in k8s.io/kube-openapi, each of v0.37.2.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date

from policysched.cluster.devices import cel_urls

_MARK = b"f"
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_DNS_1035_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_MAX, _SUBDOMAIN_MAX = 63, 253
_UUID = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII
)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})")


def _label(text: str) -> list[str]:
    errors = _too_long(text, _LABEL_MAX)
    if re.fullmatch(_DNS_LABEL, text):
        return errors
    if re.fullmatch(_DNS_SUBDOMAIN, text):
        return [*errors, "must not contain dots"]
    rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character"
    return [*errors, _mismatch(rule, _DNS_LABEL, "my-name", "123-abc")]


def _subdomain(text: str) -> list[str]:
    rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    return [*_too_long(text, _SUBDOMAIN_MAX), *_unmatched(text, rule, _DNS_SUBDOMAIN, "example.com")]


def _label_1035(text: str) -> list[str]:
    rule = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character"
    return [*_too_long(text, _LABEL_MAX), *_unmatched(text, rule, _DNS_1035_LABEL, "my-name", "abc-123")]


def _label_key(text: str) -> list[str]:
    rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    examples = ("MyName", "my.name", "123-abc")
    *prefix, name = text.split("/")
    if len(prefix) > 1:
        mismatch = _mismatch(rule, _LABEL_KEY, *examples)
        return [
            f"a valid label key {mismatch} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    errors = []
    for part in prefix:
        errors += [f"prefix part {error}" for error in (_subdomain(part) if part else ["must be non-empty"])]
    named = _too_long(name, _LABEL_MAX) if name else ["must be non-empty"]
    return errors + [f"name part {error}" for error in named + _unmatched(name, rule, _LABEL_KEY, *examples)]


def _label_value(text: str) -> list[str]:
    rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    errors = _unmatched(text, rule, f"({_LABEL_KEY})?", "MyValue", "my_value", "12345")
    return _too_long(text, _LABEL_MAX) + errors


def _prefix_of(validate: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """A prefix of generated names may end with a dash."""
    return lambda text: validate(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


def _only(is_valid: Callable[[str], bool], message: str) -> Callable[[str], list[str]]:
    return lambda text: [] if is_valid(text) else [message]


def _is_date(text: str) -> bool:
    try:
        # Python has no year 0, which is a leap year.
        return _DATE.fullmatch(text) is not None and bool(
            date.fromisoformat(text.replace("0000-", "2000-", 1))
        )
    except ValueError:
        return False


def _is_datetime(text: str) -> bool:
    """The text is in lower case, as strfmt compares it. What follows a second `t` is not looked at."""
    day, *rest = text.lower().split("t")
    match = _TIME.fullmatch(rest[0]) if rest and _is_date(day) else None
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


VALIDATIONS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": _label,
    "dns1123Subdomain": _subdomain,
    "dns1035Label": _label_1035,
    "qualifiedName": _label_key,
    "dns1123LabelPrefix": _prefix_of(_label),
    "dns1123SubdomainPrefix": _prefix_of(_subdomain),
    "dns1035LabelPrefix": _prefix_of(_label_1035),
    "labelValue": _label_value,
    "uri": cel_urls.request_errors,
    "uuid": _only(lambda text: bool(_UUID.fullmatch(text)), "does not match the UUID format"),
    "byte": _only(lambda text: bool(_BASE64.fullmatch(text)), "invalid base64"),
    "date": _only(_is_date, "invalid date"),
    "datetime": _only(_is_datetime, "invalid datetime"),
}
NAMES = tuple(VALIDATIONS)


def constant(name: str) -> Callable[[], bytes]:
    return lambda: _MARK + name.encode()


def named(arguments: Sequence[str]) -> bytes:
    """The format of the name, or no bytes."""
    (name,) = arguments
    return constant(name)() if name in VALIDATIONS else b""


def errors(arguments: Sequence[object]) -> list[str]:
    """What is wrong with a text in a format."""
    value, text = arguments
    name = bytes(value)[1:].decode() if isinstance(value, bytes | bytearray) and value[:1] == _MARK else ""
    if name not in VALIDATIONS or not isinstance(text, str):
        raise ValueError("no such overload: not a format and a string")
    return VALIDATIONS[name](text)


def _too_long(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(text.encode()) > limit else []


def _unmatched(text: str, rule: str, pattern: str, *examples: str) -> list[str]:
    return [] if re.fullmatch(pattern, text) else [_mismatch(rule, pattern, *examples)]


def _mismatch(rule: str, pattern: str, *examples: str) -> str:
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {listed}regex used for validation is '{pattern}')"
