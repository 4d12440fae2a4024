"""What an open body was opened with, asked about again while it is open."""

from __future__ import annotations

from legation.errors import Forbidden, LegationError, Unauthenticated
from legation.server.auth import WORKSPACE_HEADER
from legation.server.http.call import Call
from legation.server.streaming.hub import Credential
from legation.wire.principal import Scope


def credential_of(call: Call, scope: Scope = "read") -> Credential:
    """A body may stay open for days: it ends when what opened it would not open it again."""
    request, authenticate = call.request, call.authenticate

    async def holds() -> bool:
        try:
            now = await authenticate(request)
        except (Unauthenticated, Forbidden):
            return False
        except LegationError:
            return True  # a database that does not answer is no verdict
        return now.workspace == call.principal.workspace and scope in now.scopes

    named = ("authorization", "cookie", WORKSPACE_HEADER)
    return Credential((scope, *(request.headers.get(name) for name in named)), holds)
