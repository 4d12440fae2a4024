"""One place turns any credential into a `Principal`.

INV-A1  Every request is checked against the database as it is now: whatever was revoked, disabled, removed or
        demoted a moment ago counts.
INV-A2  All wrong credentials get one answer, after the same work.
INV-A3  An Authorization header stands before a cookie, even if it is wrong.
INV-A4  A principal is in exactly one workspace, as a member of it. Routes look at nothing else.

A later kind of credential is another `CredentialKind` in the list; no route changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from starlette.requests import Request

from legation.clock import Clock
from legation.errors import Forbidden, Unauthenticated
from legation.server.identity.cookies import Cookies
from legation.server.identity.credentials import presented_session, presented_token, wrong_credential
from legation.server.identity.process_tokens import ProcessTokens
from legation.server.identity.same_origin import OwnOrigins
from legation.server.identity.token_uses import TokenUses
from legation.store.database.transaction import Database
from legation.store.identity import tokens
from legation.store.identity.credential import CredentialHash
from legation.store.identity.standing import Standing, level_with, standing
from legation.wire.principal import ADMIN_SCOPES, Principal

if TYPE_CHECKING:
    from legation.server.services import Services

WORKSPACE_HEADER: Final = "legation-workspace"


class CredentialKind(Protocol):
    async def __call__(self, request: Request) -> Principal | None:
        """None if the request carries none of this kind; an error if it carries a wrong one."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    kinds: Sequence[CredentialKind]

    async def __call__(self, request: Request) -> Principal:
        for kind in self.kinds:
            if (principal := await kind(request)) is not None:
                return principal
        raise Unauthenticated(
            "cannot do this without a credential; send Authorization: Bearer <token>, or sign in with a link"
        )


def make_authenticate(services: Services, *others: CredentialKind) -> Authenticator:
    """`others`: kinds that later surfaces bring along."""
    database, keys, clock = services.database, services.keys, services.clock
    own = OwnOrigins(services.public_url, services.settings.cors_origins)
    hashes = CredentialHash(keys.pepper)
    token = TokenCredential(database, clock, hashes, services.process_tokens, services.token_uses)
    cookie = CookieCredential(database, clock, Cookies.of(keys.cookie, services.public_url), own)
    return Authenticator((token, *others, cookie))


@dataclass(frozen=True, slots=True)
class TokenCredential:
    """`Authorization: Bearer <token>`, `Token <token>`, or Basic with the token as password."""

    database: Database
    clock: Clock
    hashes: CredentialHash
    process_tokens: ProcessTokens
    uses: TokenUses

    async def __call__(self, request: Request) -> Principal | None:
        text = presented_token(request)
        if text is None:
            return None
        kept = self.hashes.token(text)
        if (own := self.process_tokens.find(kept)) is not None:
            return await self._of_process(own, request)
        principal = await self.database.read(tokens.principal_of, kept, self.clock.now_ms())
        if principal is None:
            raise wrong_credential()
        _, asked = workspaces_of(request)
        if asked not in (None, principal.workspace):
            raise _not_there()
        self.uses.note(principal.id)
        return principal

    async def _of_process(self, own: Principal, request: Request) -> Principal:
        """The owner of the machine gets everywhere that its user is a member; elsewhere it stays at home."""
        named, asked = workspaces_of(request)
        wanted = named or asked
        if wanted is None or wanted == own.workspace or own.user is None:
            return own
        there = await self.database.read(standing, own.user, wanted)
        if there is not None and there.welcome:
            scopes = there.scopes | ADMIN_SCOPES
            return replace(own, workspace=wanted, scopes=scopes, level=level_with(scopes, own.level))
        if named is None:
            raise _not_there()
        return own  # the route finds no such workspace


@dataclass(frozen=True, slots=True)
class CookieCredential:
    """A person in a browser. The path, then the header, then the cookie say in which workspace."""

    database: Database
    clock: Clock
    cookies: Cookies
    own_origins: OwnOrigins

    async def __call__(self, request: Request) -> Principal | None:
        text = presented_session(request)
        if text is None:
            return None
        session = self.cookies.read(text, self.clock.now_ms())
        if session is None:
            raise wrong_credential()
        named, asked = workspaces_of(request)
        wanted = named or asked or session.workspace
        found = await self._standing(session.user, session.token_version, wanted)
        if found.role is None and wanted not in (asked, session.workspace):
            # No member of what the path names: the route will not find it, as if there were none.
            wanted = asked or session.workspace
            found = await self._standing(session.user, session.token_version, wanted)
        if found.role is None:
            raise _not_there() if wanted == asked else wrong_credential()
        self.own_origins.check(request)
        return _signed_in(found, wanted)

    async def _standing(self, user: str, token_version: int, workspace: str) -> Standing:
        found = await self.database.read(standing, user, workspace)
        if found is None or found.disabled or found.token_version != token_version:
            raise wrong_credential()
        return found


def _signed_in(found: Standing, workspace: str) -> Principal:
    return Principal(
        kind="user",
        id=found.user,
        workspace=workspace,
        scopes=found.scopes,
        level=level_with(found.scopes, 2),
        user=found.user,
        version=found.token_version,
    )


def workspaces_of(request: Request) -> tuple[str | None, str | None]:
    """The one that its path names, as in `/v1/workspaces/{workspace}/...`, and the one that its header asks for."""
    return request.path_params.get("workspace"), request.headers.get(WORKSPACE_HEADER) or None


def _not_there() -> Forbidden:
    return Forbidden(
        "cannot act in the workspace of the Legation-Workspace header with this credential; leave the header out, or "
        "name one of yours"
    )
