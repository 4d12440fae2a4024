"""The file routes over a folder of their own: an allowed folder, an outside one that must never change, and the
server's own data in the allowed one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

from starlette.requests import Request
from tests.server.toy_app import Got, ask

from legation.clock import Clock
from legation.errors import Unauthenticated
from legation.server.fs.files import Files
from legation.server.fs.paths import ServedFolders
from legation.server.http.app import App, AppOptions, make_app
from legation.server.routes.files import routes
from legation.store.forbidden import ForbiddenPlaces
from legation.testing.clock import FakeClock
from legation.wire.principal import Principal, Scope

SCOPES: dict[str, frozenset[Scope]] = {
    "operator": frozenset({"read", "operate"}),
    "viewer": frozenset({"read", "approve", "call"}),
    **{f"operator {number}": frozenset[Scope]({"read", "operate"}) for number in range(2, 6)},
}
SECRET = "the secret outside"
LIMIT = 1 << 20


def descriptors() -> int:
    """How many files this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class Drive:
    place: Path  # around it all
    root: Path
    outside: Path
    data: Path  # Legation's own, in the root
    files: Files
    app: App
    clock: FakeClock
    revoked: set[str]

    async def __call__(
        self,
        method: str,
        route: str,
        *,
        token: str | None = "operator",
        raw: bytes | Sequence[bytes] | None = None,
        body: object = None,
        headers: Sequence[tuple[str, str]] = (),
        **query: Any,
    ) -> Got:
        named = "&".join(f"{name}={quote(os.fsencode(str(value)))}" for name, value in query.items())
        target = f"/v1/fs/{route}" + (f"?{named}" if named else "")
        return await ask(self.app, method, target, token=token, raw=raw, body=body, headers=headers)

    async def read(self, path: object, **query: Any) -> Got:
        return await self("GET", "file", path=path, **query)

    async def write(self, path: object, *data: bytes, **query: Any) -> Got:
        return await self("PUT", "file", path=path, raw=data or (b"new",), **query)

    async def names(self, path: object = ".", **query: Any) -> list[str]:
        got = await self("GET", "entries", path=path, **query)
        assert got.status == 200, got.body
        return [entry["name"] for entry in got.json()]

    def leftovers(self) -> list[Path]:
        return [path for path in self.place.rglob("*") if path.name.startswith(".legation-")]


def open_drive(place: Path, *, limit: int = LIMIT, folders: Sequence[Path] | None = None) -> Drive:
    root, outside, data = place / "root", place / "outside", place / "root" / "data"
    for folder in (root / "sub" / "deep", outside / "sub", data):
        folder.mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "b.txt").write_text("bb")
    (outside / "secret").write_text(SECRET)
    (outside / "sub" / "b.txt").write_text(SECRET)
    for name in ("keys.json", "legation.db", "server.json"):
        (data / name).write_text("key")
    sessions = {("ses_1", "local"): [root / "sub"], ("ses_out", "local"): [outside]}

    async def folders_of(session: str, workspace: str) -> list[Path] | None:
        return sessions.get((session, workspace))

    served = ServedFolders(folders or [root], ForbiddenPlaces([data]))
    files = Files(served, folders_of, max_file_bytes=limit)
    clock, revoked = FakeClock(), set[str]()
    return Drive(place, root, outside, data, files, app_of(files, clock, revoked), clock, revoked)


def app_of(files: Files, clock: Clock, revoked: set[str]) -> App:
    async def authenticate(request: Request) -> Principal:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in SCOPES or token in revoked:
            raise Unauthenticated("cannot tell who asks; send a token")
        return Principal(kind="token", id=token, workspace="local", scopes=SCOPES[token], level=0)

    services = cast(Any, SimpleNamespace(files=files, clock=clock))
    return make_app([routes], services=services, authenticate=authenticate, options=AppOptions())
