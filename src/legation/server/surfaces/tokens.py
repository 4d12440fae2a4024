"""API tokens of the caller's workspace."""

from __future__ import annotations

from legation.errors import NotFound, RateLimited
from legation.ids import new_id
from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.identity.rates import TOKENS, limit_caller
from legation.server.surfaces.paging import PageLimit
from legation.store.identity import tokens
from legation.store.identity.credential import CredentialHash, hint_of, new_token
from legation.store.identity.standing import person_behind
from legation.store.identity.tokens import Hashed
from legation.wire.api.identity import NewToken, Token, TokenCreated
from legation.wire.api.shape import Page

routes = Routes(tag="tokens")


@routes.get("/v1/tokens", access=needs("manage"))
async def list_tokens(call: Call, limit: PageLimit = 100, after: str = "") -> Page[Token]:
    """All tokens of the workspace, by age, the revoked and expired ones too."""
    return await call.services.database.read(tokens.page, call.principal.workspace, limit, after)


@routes.post("/v1/tokens", access=needs("manage"), status=201, errors=(RateLimited,))
async def create_token(call: Call, body: NewToken) -> TokenCreated:
    """Create a token that acts in the caller's name.

    It has at most the caller's scopes, and at any time at most those of the caller's role. The secret is shown
    this once."""
    await limit_caller(call, "tokens", TOKENS)
    secret, now = new_token(), call.services.clock.now_ms()
    kept = Hashed(CredentialHash(call.services.keys.pepper).token(secret.reveal()), hint_of(secret))
    token = await call.services.database.transact(
        tokens.create,
        call.principal,
        person_behind(call.principal),
        body,
        kept,
        token=new_id("tok", now_ms=now),
        now_ms=now,
    )
    return TokenCreated(token=token, secret=secret.reveal())


@routes.delete("/v1/tokens/{token}", access=needs("manage"), errors=(NotFound,))
async def revoke_token(call: Call, token: str) -> None:
    """Revoke a token: it stops working at once."""
    await call.services.database.transact(
        tokens.revoke, call.principal, token, now_ms=call.services.clock.now_ms()
    )
    await call.services.shut_out()
