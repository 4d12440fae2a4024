"""Signing in: a one-time link, the page that it opens, and the session that comes of it.

The code stands behind the `#` of the link, which browsers send to nobody: it is in no log and no referrer. The
page posts it, and the answer sets the cookie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from legation.errors import Conflict, Forbidden, NotFound, RateLimited, Unauthenticated
from legation.server.auth import Cookies, new_session
from legation.server.http.pages import add_page
from legation.server.http.request import OwnOrigins
from legation.server.http.routes import A_PERSON, OPEN, SIGNED_IN, Call, RouteReply, Routes
from legation.server.routes.rates import LINKS, count_wrong_sign_in, limit_caller
from legation.store.identity import links, users
from legation.store.identity.tokens import CredentialHash, new_code
from legation.wire.api.identity import NewSignInLink, SignIn, SignInLink

if TYPE_CHECKING:
    from legation.secret import Secret
    from legation.server.instance import Services

routes = Routes(tag="sign-in")
add_page(routes, "/sign-in", "sign_in")


@routes.post(
    "/v1/sign-in-links",
    access=SIGNED_IN,
    status=201,
    errors=(Forbidden, NotFound, Conflict, RateLimited),
)
async def create_sign_in_link(call: Call, body: NewSignInLink) -> SignInLink:
    """Make a link that signs in once, within ten minutes.

    For oneself it takes a person's own credential that has every scope of theirs; for another user the scope
    "instance". By a token it is made only for who can do no more than the token."""
    services, code = call.services, new_code()
    # Before it is counted: who may not have one must not use up what others may.
    await services.database.read(links.check, call.principal, body.user)
    await limit_caller(call, "links", LINKS)
    hash = _hash(services, code)  # noqa: A001
    expires_at = await services.database.transact(
        links.issue, call.principal, body.user, hash, now_ms=services.clock.now_ms()
    )
    return _link(services, code, expires_at)


async def make_link(services: Services, user: str, workspace: str) -> SignInLink:
    """Make a link for what the process does by itself: `legation up` prints one."""
    code = new_code()
    expires_at = await services.database.transact(
        links.create,
        services.process_tokens.principal,
        user,
        workspace,
        _hash(services, code),
        now_ms=services.clock.now_ms(),
    )
    return _link(services, code, expires_at)


@routes.post("/v1/sign-in", access=OPEN, errors=(Unauthenticated, Forbidden, RateLimited))
async def sign_in(call: Call, body: SignIn) -> RouteReply[None]:
    """Turn the code of a link into a session cookie."""
    services = call.services
    OwnOrigins(services.public_url, services.settings.cors_origins).check_page(call.request)
    now = services.clock.now_ms()
    kept = CredentialHash(services.keys.pepper).link(body.code)
    signed_in = await services.database.transact(links.use, kept, now_ms=now)
    if signed_in is None:
        await count_wrong_sign_in(call)
        raise Unauthenticated(
            "cannot sign in with this link: it was used, or is too old; `legation users link` makes another"
        )
    found = signed_in.standing
    session = new_session(found.user, signed_in.workspace, found.token_version, now)
    return RouteReply(None, headers=_cookies(services).header(session, now))


@routes.post("/v1/sign-out", access=A_PERSON)
async def sign_out(call: Call, *, everywhere: bool = False) -> RouteReply[None]:
    """Clear the session cookie of this browser, or end all your sessions with `everywhere=true`.

    A cookie that somebody copied goes on until its sessions are ended everywhere. A token has no session, and ends
    nobody's."""
    services, user = call.services, call.principal.user
    if everywhere and user is not None:
        now = services.clock.now_ms()
        await services.database.transact(users.sign_out, call.principal, user, now_ms=now)
        await services.end_revoked()
    return RouteReply(None, headers=_cookies(call.services).clearing())


def _link(services: Services, code: Secret, expires_at: int) -> SignInLink:
    return SignInLink(url=f"{services.address.browser_url}/sign-in#{code.reveal()}", expires_at=expires_at)


def _hash(services: Services, code: Secret) -> bytes:
    return CredentialHash(services.keys.pepper).link(code.reveal())


def _cookies(services: Services) -> Cookies:
    return Cookies.of(services.keys.cookie, services.public_url)
