"""The server over HTTP: health, the file by which the CLI finds it, its connections of ACP clients."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from legation.wire.api.shape import RequestBody, ResponseBody


class Health(ResponseBody):
    status: Literal["ok"] = "ok"


class Stopping(Health):
    """Answer to a stop: how many runs are at work on this machine, and the seconds after which a runner without a server ends."""

    stopping: bool = True
    runs: int = 0
    orphan_after: float = 0.0


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


PruneKind = Literal["sessions", "work", "content", "traces"]
# Without a choice: steps of the trace go only where somebody says so.
USUAL_KINDS: Final[tuple[PruneKind, ...]] = ("sessions", "work", "content")


# With a unit: whoever writes 90 means days, and would lose all but the last 90 seconds.
AGE_PATTERN: Final = r"^([0-9]{1,4}d|[0-9]{1,5}h|[0-9]{1,6}[ms])$(?!\n)"
Age = Annotated[str, Meta(pattern=AGE_PATTERN, description='an age like "90d", "36h" or "30m"')]


class Prune(RequestBody, kw_only=True):
    """`olderThan`: an age such as `90d`. `kinds`: what goes; without it `sessions`, `work` and `content`."""

    older_than: Age
    kinds: list[PruneKind] | None = None
    dry_run: bool = False


class PruneProgress(ResponseBody, kw_only=True):
    """`count` of `of` went by now, with so many bytes, about; of a dry run all would go. `done`: that was all of the kind."""

    kind: PruneKind
    count: int
    of: int
    bytes: int
    done: bool
    problem: str | None = None  # why it broke off


class KindSize(ResponseBody, kw_only=True):
    kind: str
    bytes: int
    about: str


class Sizes(ResponseBody, kw_only=True):
    """What is kept, by kind, as it was at a time (ms). The rates are bytes a day, of the last week; null while unknown."""

    at: int
    kinds: list[KindSize]
    disk_free: int
    grows_per_day: float | None
    disk_fills_per_day: float | None
    full_in_days: float | None


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
