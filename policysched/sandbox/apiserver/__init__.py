"""The Kubernetes API, as far as a scheduler and kubectl need it, as a state machine without sockets.

`ApiServer.handle` maps a request to a response or an open watch. Time is a function argument; uids and
generated names come from a seeded stream, so equal requests give equal bytes. Requests that are not
supported are rejected with a Status.

Stored objects are immutable dicts: a change creates a new dict that shares the unchanged parts. They
are stored without `kind` and `apiVersion`, which are added to responses.
"""

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.watch import WatchSubscription

__all__ = ["ApiServer", "ServerRequest", "StatusError", "WatchSubscription"]
