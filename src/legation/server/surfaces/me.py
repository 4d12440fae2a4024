"""Who the caller is; the one call of every visit, so that the session is renewed by it."""

from __future__ import annotations

from legation.server.http.access import PEOPLE, needs
from legation.server.http.call import Call, Reply
from legation.server.http.routes import Routes
from legation.server.identity.cookies import RENEW_AFTER_MS, Cookies, new_session
from legation.server.identity.credentials import presented_session
from legation.wire.api.identity import Me

routes = Routes(tag="identity")


@routes.get("/v1/me", access=needs("read"))
async def me(call: Call) -> Reply[Me]:
    """Who the credential says you are. A token is itself, and does not say whose it is.

    A browser's session that is older than a day gets a new cookie with the answer."""
    principal = call.principal
    kind, id_ = principal.asker  # the credential; `user` is the person
    answer = Me(
        kind=kind,
        id=id_,
        workspace=principal.workspace,
        scopes=sorted(principal.scopes),
        level=principal.level,
        user=principal.user if principal.kind in PEOPLE else None,
    )
    return Reply(answer, headers=_renewal(call))


def _renewal(call: Call) -> dict[str, str]:
    text = presented_session(call.request)
    if call.principal.kind != "user" or text is None:
        return {}
    now = call.services.clock.now_ms()
    cookies = Cookies.of(call.services.keys.cookie, call.services.public_url)
    session = cookies.read(text, now)
    if session is None or now - session.issued_ms < RENEW_AFTER_MS:
        return {}
    return cookies.header(new_session(session.user, session.workspace, session.token_version, now), now)
