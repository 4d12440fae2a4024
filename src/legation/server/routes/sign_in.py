"""Signing in: a one-time link, the page that it opens, and the session that comes of it.

The code stands behind the `#` of the link, which browsers send to nobody: it is in no log and no referrer. The
page posts it, and the answer sets the cookie.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from legation.errors import (
    Conflict,
    Forbidden,
    LegationError,
    NotFound,
    RateLimited,
    Unauthenticated,
)
from legation.server.auth import Cookies, new_session
from legation.server.http.pages import add_page
from legation.server.http.request import OwnOrigins
from legation.server.http.routes import A_PERSON, OPEN, SIGNED_IN, Call, RouteReply, Routes
from legation.server.routes.rates import LINKS, count_link_mail, count_wrong_sign_in, limit_caller
from legation.store.identity import links, users
from legation.store.identity.tokens import CredentialHash, new_code
from legation.wire.api.identity import NewSignInLink, SignIn, SignInLink, SignInMail, SignInWays

if TYPE_CHECKING:
    from legation.secret import Secret
    from legation.server.instance import Services

logger: Final = logging.getLogger("legation.sign-in")
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


@routes.get("/v1/sign-in-ways", access=OPEN)
async def read_sign_in_ways(call: Call) -> SignInWays:
    """Which ways there are to sign in, besides a link from somebody who may make one."""
    return SignInWays(mail=_sends_mail(call.services))


@routes.post("/v1/sign-in-mails", access=OPEN, status=202, errors=(Forbidden, RateLimited, Conflict))
async def mail_sign_in_link(call: Call, body: SignInMail) -> RouteReply[None]:
    """Have a sign-in link sent to an address, where it is a user's. The answer is the same for every address, and comes before
    anybody looks whose it is."""
    services = call.services
    if not _sends_mail(services):
        raise Conflict("cannot send a link by mail: no mail server is set; `legation users link` makes one")
    OwnOrigins(services.public_url, services.settings.cors_origins).check_page(call.request)
    if await count_link_mail(call, body.email):
        services.mail_tasks.start(_mail_link(services, body.email))
    return RouteReply(None, 202)


async def _mail_link(services: Services, email: str) -> None:
    """Make a link for whoever has the address, and send it there; nobody waits for it, so a failure goes to our log."""
    from legation.approvals.notify.mail import MailChannel, sign_in_letter
    from legation.approvals.notify.notice import NotDelivered
    from legation.clock import new_id

    settings = services.settings
    try:
        found = await services.database.read(links.for_mail, email)
        if found is None or settings.notify_smtp is None or settings.notify_from is None:
            return
        link = await make_link(services, *found)
        clock = getattr(services.clock, "wall", services.clock)  # what leaves the machine bears its own time
        letter = sign_in_letter(new_id("mail"), link.url, settings.notify_from, email, clock.now_ms())
        await MailChannel(settings.notify_smtp, settings.notify_from, (email,), clock).deliver(letter)
    except (NotDelivered, LegationError) as error:
        logger.warning("cannot mail a sign-in link: %s", error)


def _sends_mail(services: Services) -> bool:
    return services.settings.notify_smtp is not None and services.settings.notify_from is not None


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
