"""Authentication: the one place that turns any credential into a `Principal`.

INV-A1  Every request is checked against the database as it is now: whatever was revoked, disabled, removed or
        demoted a moment ago counts.
INV-A2  All wrong credentials get one answer, after the same work.
INV-A3  An Authorization header stands before a cookie, even if it is wrong.
INV-A4  A principal is in exactly one workspace, as a member of it. Routes look at nothing else.
INV-A5  A caller without a credential is somebody only where the command line said `--no-token`: never an admin, no page of
        another site, and while agents run, who might be that caller, nobody who decides.

A later kind of credential is another `CredentialKind` in the list; no route changes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from legation.clock import Clock
from legation.errors import Forbidden, LegationError, Unauthenticated
from legation.secret import Secret
from legation.server.http.request import OwnOrigins
from legation.server.http.routes import OPERATION, Operation
from legation.store.database.transaction import Database
from legation.store.identity import tokens
from legation.store.identity.tokens import CredentialHash, Standing, level_with, new_token, standing
from legation.store.identity.workspaces import Installation
from legation.store.secrets.sealer import Keys, derive, encode, key_bytes
from legation.wire.principal import ADMIN_SCOPES, SCOPES, Principal, Scope

if TYPE_CHECKING:
    from legation.server.instance import Services

COOKIE_NAME: Final = "legation_session"
SESSION_MS: Final = 30 * 86_400_000  # without a visit; each visit starts it anew
RENEW_AFTER_MS: Final = 86_400_000  # not at every visit: a new cookie a day is enough
PROCESS: Final = "server"  # what the audit log calls them
ANYBODY: Final = "no-token"  # and whoever needed none
ANYBODYS_SCOPES: Final[frozenset[Scope]] = frozenset({"read", "operate"})
# Tags of the routes by which somebody decides what agents may do, or comes by a credential that does.
DECIDING_TAGS: Final = frozenset({"approvals", "grants", "tokens", "trust"})
ANSWERING_TAG: Final = "acp"  # where a client answers what its own connection was asked, whoever it is
PASS_MS: Final = 3_600_000  # a pass is taken for as long, and as long again
NOTE_INTERVAL: Final = 60.0  # seconds between two writes: how old `lastUsedAt` may be
LAST_WRITE_LIMIT: Final = 2.0  # seconds for the last write of a server that stops: the database's time
WORKSPACE_HEADER: Final = "legation-workspace"
_LONGEST: Final = 1024  # characters of a token; ours have 36, an owner's own may have more
_COOKIE_VERSION: Final = "v1"
_SKEW_MS: Final = 60_000  # how far the clocks of two servers may be apart


def wrong_credential() -> Unauthenticated:
    # One answer for whatever is wrong with it, so that nobody learns which tokens and users there are.
    return Unauthenticated(
        "cannot accept this credential: it is not valid, or not any more; create another token or sign in again"
    )


def presented_token(request: Request) -> str | None:
    """Read the token, unchecked; None without an Authorization header. What cannot hold one is a wrong credential."""
    found = request.headers.getlist("authorization")
    if not found:
        return None
    scheme, _, rest = found[0].strip().partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer" | "token":
            token = rest
        case "basic":
            token = _password(rest)
        case _:
            token = ""
    if len(found) > 1 or not 0 < len(token) <= _LONGEST or not token.isprintable() or " " in token:
        raise wrong_credential()
    return token


def presented_session(request: Request) -> str | None:
    """Read the first cookie of our name, unchecked; an empty one is none."""
    for header in request.headers.getlist("cookie"):
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE_NAME:
                return value or None
    return None


def _password(encoded: str) -> str:
    """Read the password of Basic. The name before the colon says nothing: the token alone tells who it is."""
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.partition(":")[2]


class CookieSession(msgspec.Struct, frozen=True, array_like=True):
    user: str
    workspace: str
    token_version: int
    issued_ms: int
    expires_ms: int


def new_session(user: str, workspace: str, token_version: int, now_ms: int) -> CookieSession:
    return CookieSession(user, workspace, token_version, now_ms, now_ms + SESSION_MS)


class Cookies(msgspec.Struct, frozen=True):
    """Session cookies: `v1.<what it says>.<signature>`. Whoever reads one learns ids and times, and nothing secret.

    One is valid as long as the user's `token_version` is the one that it was made with: raising that number ends every
    session of the user, without a table of sessions."""

    key: Secret
    secure: bool  # only over https

    @classmethod
    def of(cls, key: Secret, public_url: str) -> Cookies:
        return cls(key, public_url.lower().startswith("https://"))

    def write(self, session: CookieSession) -> str:
        said = f"{_COOKIE_VERSION}.{_base64(msgspec.json.encode(session))}"
        return f"{said}.{_base64(self._sign(said))}"

    def read(self, text: str, now_ms: int) -> CookieSession | None:
        """Read a cookie; None for what we did not write, or what is over."""
        said, _, signature = text.rpartition(".")
        if len(text) > _LONGEST or not text.isascii() or not said.startswith(f"{_COOKIE_VERSION}."):
            return None
        # Signatures are compared as text: base64 has several spellings of the same bytes, ours has one.
        if not hmac.compare_digest(_base64(self._sign(said)), signature):
            return None
        payload = said.removeprefix(f"{_COOKIE_VERSION}.")
        session = msgspec.json.decode(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=CookieSession
        )
        return session if session.issued_ms <= now_ms + _SKEW_MS and now_ms < session.expires_ms else None

    def header(self, session: CookieSession, now_ms: int) -> dict[str, str]:
        seconds = (session.expires_ms - now_ms) // 1000
        return {"set-cookie": f"{COOKIE_NAME}={self.write(session)}; Max-Age={seconds}; {self._attributes}"}

    def clearing(self) -> dict[str, str]:
        return {"set-cookie": f"{COOKIE_NAME}=; Max-Age=0; {self._attributes}"}

    @property
    def _attributes(self) -> str:
        return f"Path=/; HttpOnly; SameSite=Strict{'; Secure' if self.secure else ''}"

    def _sign(self, said: str) -> bytes:
        return hmac.digest(derive(key_bytes(self.key), "session-cookies"), said.encode(), "sha256")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class ProcessTokens:
    """Tokens that live as long as the process: the one of `--token`, and the one that the CLI finds in `server.json`.

    They are in no table, and only their hashes are in memory. Whoever has one is the first workspace's owner, and is
    recorded as that person: `via` says by which credential. What the process does by itself is its own.

    Another server of the installation does not know them. A request that is passed on to it has a pass in their place, which
    any of the servers can make and only that one takes: it stands for the same owner, who is one for all of them."""

    def __init__(self, keys: Keys, installed: Installation, server: str) -> None:
        self._hashes = CredentialHash(keys.pepper)
        self._key = key_bytes(keys.pepper)
        self._server = server
        self._known: set[bytes] = set()
        self._passes: dict[int, bytes] = {}  # hashes of those that are taken now, by their time
        self.principal: Final = Principal(
            kind="process",
            id=PROCESS,
            workspace=installed.workspace,
            scopes=SCOPES,
            level=2,
            user=installed.user,
        )  # for what the process does by itself
        self.owner: Final = replace(self.principal, kind="user", id=installed.user, via=PROCESS)

    def add(self, token: Secret | None = None) -> Secret:
        """Accept a token, a new one if none is given, and return it."""
        token = token or new_token()
        self._known.add(self._hashes.token(token.reveal()))
        return token

    def pass_for(self, server: str, now_ms: int) -> Secret:
        """Make what stands for one of them at another server, for an hour or two."""
        return self._pass(server, now_ms // PASS_MS)

    def _pass(self, server: str, period: int) -> Secret:
        return Secret(encode(derive(self._key, f"pass/{server}/{period}")), "pass")

    def find(self, hash: bytes, now_ms: int) -> Principal | None:  # noqa: A002
        if hash in self._known:
            return self.owner
        period = now_ms // PASS_MS
        # The next one's, too: the clock of whoever made it may be a little ahead.
        taken = range(period - 1, period + 2)
        if self._passes.keys() != set(taken):
            self._passes = {
                each: self._hashes.token(self._pass(self._server, each).reveal()) for each in taken
            }
        return self.owner if hash in self._passes.values() else None


logger = logging.getLogger("legation.server")


class TokenUses:
    """Times at which tokens were last used: noted in memory by the request, written once a minute.

    `async with TokenUses(database, clock) as uses`: it owns its task, and writes what is left when it ends."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._uses: dict[str, int] = {}
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, token: str) -> None:
        self._uses[token] = self._clock.now_ms()
        self._noted.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="legation-token-uses")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(LAST_WRITE_LIMIT):
                await self._write()
        except TimeoutError:
            logger.warning("cannot note the last uses of tokens: the database is slow")

    async def _run(self) -> None:
        while True:
            await self._noted.wait()
            await self._write()
            await self._clock.sleep(NOTE_INTERVAL)

    async def _write(self) -> None:
        uses, self._uses = self._uses, {}
        self._noted.clear()
        if not uses:
            return
        try:
            await self._database.transact(tokens.note_uses, uses)
        except LegationError as error:  # it is only a courtesy: no request fails for it
            logger.warning("cannot note the last uses of tokens: %s", error)


class CredentialKind(Protocol):
    async def __call__(self, request: Request) -> Principal | None:
        """Find the principal; None if the request carries none of this kind, an error if it carries a wrong one."""


class Authenticator(msgspec.Struct, frozen=True):
    kinds: Sequence[CredentialKind]

    async def __call__(self, request: Request) -> Principal:
        for kind in self.kinds:
            if (principal := await kind(request)) is not None:
                return principal
        raise Unauthenticated(
            "cannot do this without a credential; send Authorization: Bearer <token>, or sign in with a link"
        )


def make_authenticate(
    services: Services, *others: CredentialKind, anybody: Callable[[], int] | None = None
) -> Authenticator:
    """Make the authentication of a server. `others`: kinds of credentials that later routes bring along. `anybody` counts
    the agents that run, where callers without a credential are taken."""
    database, keys, clock = services.database, services.keys, services.clock
    own = OwnOrigins(services.public_url, services.settings.cors_origins)
    hashes = CredentialHash(keys.pepper)
    token = TokenCredential(database, clock, hashes, services.process_tokens, services.token_uses)
    cookie = CookieCredential(database, clock, Cookies.of(keys.cookie, services.public_url), own)
    kinds = (token, *others, cookie)
    return Authenticator(
        kinds if anybody is None else (*kinds, NoCredential(services.process_tokens.owner, own, anybody))
    )


class TokenCredential(msgspec.Struct, frozen=True):
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
        if (own := self.process_tokens.find(kept, self.clock.now_ms())) is not None:
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
        """Let the owner of the machine act everywhere that its user is a member; elsewhere it stays at home."""
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


class CookieCredential(msgspec.Struct, frozen=True):
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


class NoCredential(msgspec.Struct, frozen=True):
    """A caller without a credential, where `--no-token` takes them: the owner without what is the installation's."""

    owner: Principal
    own_origins: OwnOrigins
    running: Callable[[], int]

    async def __call__(self, request: Request) -> Principal | None:
        operation: Operation | None = request.scope.get(OPERATION)
        if operation is None or operation.access.scope is None:
            return None  # about the caller themselves: a link to sign in with would be a credential
        # A browser lets a page of any site call this machine, and its name may be made to point here.
        self.own_origins.check_unvouched(request)
        access = operation.access
        decides = operation.tag in DECIDING_TAGS or access.scope == "approve"
        # Counted where it matters, and off the loop: it reads a file for each of them.
        count = await asyncio.to_thread(self.running) if decides or access.may_decide else 0
        if decides and count:
            raise Unauthenticated(
                f"cannot do this without a credential while agents run ({count}), because it could be one of them; send "
                "Authorization: Bearer <token>, or use the command `legation` on the server's machine",
                {"agents": count},
            )
        approves = decides or (access.may_decide and not count) or operation.tag == ANSWERING_TAG
        scopes = ANYBODYS_SCOPES | {"approve"} if approves else ANYBODYS_SCOPES
        return replace(self.owner, via=ANYBODY, scopes=scopes)


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
    """Read the one that its path names, as in `/v1/workspaces/{workspace}/...`, and the one that its header asks for."""
    return request.path_params.get("workspace"), request.headers.get(WORKSPACE_HEADER) or None


def _not_there() -> Forbidden:
    return Forbidden(
        "cannot act in the workspace of the Legation-Workspace header with this credential; leave the header out, or "
        "name one of yours"
    )
