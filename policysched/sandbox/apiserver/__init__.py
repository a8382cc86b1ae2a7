"""The Kubernetes API, as far as a scheduler and kubectl need it, as a state machine without sockets and clocks.

`ApiServer.handle` takes a request and gives an answer or an open watch. Time is a function handed in, uids and
generated names come from a seeded stream, so the same requests give the same bytes. What is not served is refused
with a Status that names it.

Stored objects are plain dicts that nobody changes after they were committed: a change makes a new dict, and shares
what it left alone. They are kept without `kind` and `apiVersion`, which are written in front when an object leaves.
"""

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.watch import WatchSubscription

__all__ = ["ApiServer", "ServerRequest", "StatusError", "WatchSubscription"]
