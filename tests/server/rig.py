"""A real application in this process: real services on either database, a clock moved by hand, people in two
workspaces, and two ways to call it: an HTTP client, and `knock`, which leaves after the head of the answer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.postgres import MIGRATED, Postgres

from legation.clock import new_id
from legation.server.auth import COOKIE_NAME, Cookies, CookieSession, make_authenticate, new_session
from legation.server.http.app import App, AppOptions, make_app
from legation.server.instance import Services, open_instance
from legation.server.routes import ROUTES
from legation.settings import load
from legation.store.database.transaction import Rows, Transaction, parse
from legation.store.identity import members, tokens, users, workspaces
from legation.store.identity.tokens import CredentialHash, Hashed, hint_of, level_with, new_token, standing
from legation.store.secrets.sealer import new_key_text
from legation.testing.clock import FakeClock
from legation.wire.api.identity import NewToken, NewUser, NewWorkspace, TokenKind, UserChange
from legation.wire.principal import Principal, Role, Scope

BOTH = ["sqlite", "postgres"]
PUBLIC_URL = "http://legation.test"
DATABASE_PAUSE = 0.5  # seconds: more than the longest pause between two tries of a transaction
KNOCK_LIMIT = 30.0  # seconds: the application's time for the head of an answer


class RigClock(FakeClock):
    """Moved by hand, but for the short pauses of a database that tries again."""

    async def sleep(self, seconds: float) -> None:
        if seconds <= DATABASE_PAUSE:
            await asyncio.sleep(seconds)
        else:
            await super().sleep(seconds)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Rig:
    services: Services
    app: App
    clock: FakeClock
    client: httpx2.AsyncClient
    other: str  # the second workspace
    stops: list[str]
    people: dict[str, str] = field(default_factory=dict)  # ids by what they are

    @property
    def server(self) -> Principal:
        return self.services.process_tokens.principal

    async def add_user(self, role: Role | None = None, *, admin: bool = False, name: str = "Ada") -> str:
        """A member of the first workspace."""
        new = NewUser(name=name, instance_admin=admin, role=role)
        now = self.clock.now_ms()
        user = await self.services.database.transact(
            users.create, self.server, new, user=new_id("usr", now_ms=now), now_ms=now
        )
        return user.id

    async def change_user(self, user: str, change: UserChange) -> None:
        await self.services.database.transact(
            users.change, self.server, user, change, now_ms=self.clock.now_ms()
        )

    async def remove(self, user: str) -> None:
        await self.services.database.transact(members.remove, self.server, user, now_ms=self.clock.now_ms())

    async def principal(self, user: str, workspace: str = "local") -> Principal:
        found = await self.services.database.read(standing, user, workspace)
        assert found is not None
        return Principal(
            kind="user",
            id=user,
            workspace=workspace,
            scopes=found.scopes,
            level=level_with(found.scopes, 2),
            user=user,
        )

    async def token(
        self,
        user: str,
        *scopes: Scope,
        workspace: str = "local",
        kind: TokenKind = "user",
        days: int | None = None,
    ) -> tuple[str, str]:
        """The id and the secret."""
        secret, now = new_token(), self.clock.now_ms()
        kept = Hashed(CredentialHash(self.services.keys.pepper).token(secret.reveal()), hint_of(secret))
        new = NewToken(label="test", kind=kind, scopes=[*scopes] or None, expires_in_days=days)
        by = await self.principal(user, workspace)
        made = await self.services.database.transact(
            tokens.create, by, user, new, kept, token=new_id("tok", now_ms=now), now_ms=now
        )
        return made.id, secret.reveal()

    async def bearer(self, user: str, *scopes: Scope, **options: Any) -> dict[str, str]:
        return bearer((await self.token(user, *scopes, **options))[1])

    @property
    def cookies(self) -> Cookies:
        return Cookies.of(self.services.keys.cookie, self.services.public_url)

    async def session(self, user: str, workspace: str = "local") -> CookieSession:
        found = await self.services.database.read(standing, user, workspace)
        assert found is not None
        return new_session(user, workspace, found.token_version, self.clock.now_ms())

    async def cookie(self, user: str, workspace: str = "local") -> dict[str, str]:
        return cookie(self.cookies.write(await self.session(user, workspace)))

    async def rows(self, sql: str) -> Rows:
        return await self.services.database.transact(_run, sql)

    async def actions(self) -> list[str]:
        return [row["action"] for row in await self.rows("select action from audit order by id")]

    async def knock(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> Answer:
        """Leaves when an endless answer has begun; else reads it to its end."""
        return await _knock(self.app, method, path, headers, body)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def cookie(value: str, site: str = "same-origin") -> dict[str, str]:
    return {"cookie": f"{COOKIE_NAME}={value}", "sec-fetch-site": site}


@asynccontextmanager
async def open_rig(
    dialect: str, folder: Path, request: pytest.FixtureRequest, **flags: object
) -> AsyncIterator[Rig]:
    clock, stops = RigClock(), list[str]()
    chosen: dict[str, object] = {
        "data_dir": folder,
        "port": 0,
        "public_url": PUBLIC_URL,
        "rehearsal_executes": "true",  # the agent of these tests does what it is told
        **flags,
    }
    environ = {"HOME": str(folder)}
    if dialect == "postgres":
        environ |= _postgres(request)
    settings = load(chosen, environ)
    async with open_instance(settings, mode="server", clock=clock, stop=lambda: stops.append("stop")) as (
        services,
        _,
    ):
        app = make_app(
            ROUTES,
            services=services,
            authenticate=make_authenticate(services),
            options=AppOptions(cors_origins=settings.cors_origins, clock=clock),
        )
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url=services.public_url) as client:
            rig = Rig(services, app, clock, client, "", stops)
            await _populate(rig)
            yield rig
            services.hub.close()


def _postgres(request: pytest.FixtureRequest) -> dict[str, str]:
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database(MIGRATED)
    names = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
    return {"LEGATION_DATABASE_URL": url.reveal(), **{name: new_key_text() for name in names}}


async def _populate(rig: Rig) -> None:
    """An admin who owns the first workspace, one of each role in it, and an owner of the second."""
    rig.people["admin"] = rig.services.installed.user
    roles: tuple[Role, ...] = ("owner", "operator", "approver", "viewer")
    for role in roles:
        rig.people[role] = await rig.add_user(role, name=role)
    rig.people["stranger"] = await rig.add_user(name="stranger")
    now = rig.clock.now_ms()
    other = await rig.services.database.transact(
        workspaces.create,
        rig.server,
        rig.people["stranger"],
        NewWorkspace(name="Other"),
        workspace=new_id("wsp", now_ms=now),
        now_ms=now,
    )
    rig.other = other.id


def _run(sql: str) -> Transaction[Rows]:
    (query,) = parse(f"-- name: test\n{sql}")
    return (yield query())


async def _knock(app: App, method: str, path: str, headers: Mapping[str, str], body: object) -> Answer:
    encoded = b"" if body is None else msgspec.json.encode(body)
    sent = {"host": PUBLIC_URL.removeprefix("http://"), **headers}
    if encoded:
        sent = {"content-type": "application/json", "content-length": str(len(encoded)), **sent}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.partition("?")[0],
        "raw_path": path.partition("?")[0].encode(),
        "query_string": path.partition("?")[2].encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("192.0.2.1", 40000),
        "server": ("legation.test", 80),
    }
    left = asyncio.Event()
    incoming: list[dict[str, object]] = [{"type": "http.request", "body": encoded, "more_body": False}]
    starts: list[dict[str, Any]] = []
    chunks: list[bytes] = []

    async def receive() -> dict[str, object]:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            starts.append(message)
            if dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
                left.set()
        else:
            chunks.append(message.get("body", b""))

    async with asyncio.timeout(KNOCK_LIMIT):
        await app(scope, receive, send)
    (start,) = starts
    told = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], told, b"".join(chunks))
