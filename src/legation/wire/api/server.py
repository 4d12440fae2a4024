"""The server over HTTP: health, the file by which the CLI finds it, its connections of ACP clients."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from legation.wire.api.shape import ResponseBody


class Health(ResponseBody):
    status: Literal["ok"] = "ok"


class Check(ResponseBody):
    name: str
    ok: bool


class Readiness(ResponseBody):
    """`ready` only if every check is ok. Open to everybody, so it says no more than that."""

    ready: bool
    checks: list[Check]


class ServerInfo(ResponseBody):
    version: str
    mode: Literal["up", "server"]
    database: Literal["sqlite", "postgres"]
    schema_version: int
    url: str
    pid: int
    started_at: int


class KeysRotated(ResponseBody):
    key_id: str
    rewrapped: int


SERVER_FILE: Final = "server.json"
OWNER_LOCK: Final = "events.db.lock"  # held by whatever server owns the data folder, with its pid in it


class ServerFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`server.json` (`SERVER_FILE`) in the data folder, readable by its owner alone; it is gone when the server is."""

    url: str  # on this machine, whatever others call it
    token: str
    pid: int
    started_at: int
    version: str
    certificate: str | None = None  # of a server with TLS: the one to trust, and no other


class AcpServer(ResponseBody, kw_only=True):
    server_id: str
    agent: str
    created_at_ms: int


class AcpServers(ResponseBody, kw_only=True):
    servers: list[AcpServer]
