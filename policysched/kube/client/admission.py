"""Denials by admission: a webhook, or a policy such as ValidatingAdmissionPolicy, refuses a request.

A tenant can write one for its namespace and choose the status and the message. A 401 is then not about credentials, a 404 or
409 is not about what exists, and the message can have any length.
"""

import re

import orjson

from policysched.kube.client.transport import ERROR_BODY_BYTES_MAX

_DENIAL = re.compile(r'admission webhook "|[^:]{1,600} is forbidden: (?:Validating|Mutating)AdmissionPolicy ')
"""How the API server begins the message of every denial."""
_NO_ANSWER = 'Internal error occurred: failed calling webhook "'
"""How it begins the message when a webhook does not answer, or not as expected."""
_CUT_STATUS = re.compile(rb'\s*\{\s*"kind":\s*"Status"')
_CUT_MESSAGE = re.compile(rb'"message":\s*(?=")')
_MESSAGE_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*')
_MESSAGE_BYTES_MAX = 32 * 1024
_UNREAD_MESSAGE = 'admission webhook "" denied the request: too much precedes its message'


def is_denied_by_admission(message: str) -> bool:
    return _DENIAL.match(message) is not None


def is_refused_by_admission(message: str) -> bool:
    """Denied, or a webhook failed: nothing of the request was or will be stored, even if the status is 500."""
    return is_denied_by_admission(message) or message.startswith(_NO_ANSWER)


def is_denial_by_admission(body: bytes) -> bool:
    """As `is_denied_by_admission`, for the body of a response: a Status, perhaps cut off."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        return is_denied_by_admission(message_of_cut_status(body) or "")
    message = status.get("message") if isinstance(status, dict) else None
    return isinstance(message, str) and is_denied_by_admission(message)


def message_of_cut_status(body: bytes) -> str | None:
    """The beginning of the message of a Status whose end was not read; None if it is no Status. The `metadata` and `status` before
    it can be a webhook's, too. If they fill what was read, it is a denial: no other error of the API server is that long."""
    if not _CUT_STATUS.match(body):
        return None
    found = _CUT_MESSAGE.search(body)  # matches no text in a string: its quotes have a backslash
    if found is None:
        return _UNREAD_MESSAGE if len(body) >= ERROR_BODY_BYTES_MAX else None
    begin = _MESSAGE_TEXT.match(body, found.end(), found.end() + _MESSAGE_BYTES_MAX)
    text = begin[0].decode(errors="ignore") if begin else '"'
    try:
        return str(orjson.loads(f'{text}"'))
    except orjson.JSONDecodeError:  # cut within an escape
        return text[1:]
