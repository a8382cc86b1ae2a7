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
        return False
    message = status.get("message") if isinstance(status, dict) else None
    return isinstance(message, str) and is_denied_by_admission(message)
