"""Denials by admission: a webhook, or a policy such as ValidatingAdmissionPolicy, refuses a request.

A tenant can write one for its namespace, and whoever writes it chooses the status and the message. So a 401 is not about
credentials then, a 404 or 409 is not about what exists, and the message can be of any length.
"""

import re

import orjson

_DENIAL = re.compile(r'admission webhook "|[^:]{1,600} is forbidden: (?:Validating|Mutating)AdmissionPolicy ')
"""How the API server begins the message, whatever they say."""


def is_denied_by_admission(message: str) -> bool:
    return _DENIAL.match(message) is not None


def is_denial_by_admission(body: bytes) -> bool:
    """The same of the body of a response, a Status."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        return is_denied_by_admission(message_of_cut_status(body) or "")
    message = status.get("message") if isinstance(status, dict) else None
    return isinstance(message, str) and is_denied_by_admission(message)


_CUT_STATUS = re.compile(rb'\s*\{\s*"kind":\s*"Status"')
_CUT_MESSAGE = re.compile(rb'"message":\s*("(?:[^"\\]|\\.)*)')
_CUT_BYTES_MAX = 32 * 1024


def message_of_cut_status(body: bytes) -> str | None:
    """The beginning of the message of a Status whose end was not read. None: it is no Status."""
    begin = body[:_CUT_BYTES_MAX]
    found = _CUT_MESSAGE.search(begin) if _CUT_STATUS.match(begin) else None
    if found is None:
        return None
    text = found[1].decode(errors="ignore")
    try:
        return str(orjson.loads(f'{text}"'))
    except orjson.JSONDecodeError:  # cut within an escape
        return text[1:]
