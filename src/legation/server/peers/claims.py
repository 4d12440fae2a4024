"""Claims: which of the servers that share a database has which stream, and where that server is.

A session, and the connection of an ACP client, lives in the log of the server that made it. Its name is claimed in the database
before it is there, so that any server can say who has it. A server with a file for a database has no claims.

INV-C1  A name is claimed by one conditional insert. Only the server that has a claim changes or deletes it.
INV-C2  What a log has is claimed before it is there, and freed when it is gone; what a crash leaves between is freed by its
        own server: at the next start, or at the next sweep.
INV-C3  To start costs what happened since the last start. The whole log is read once, by the first start on a database.
INV-C4  An address counts only if a server with the keys of the installation wrote it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from legation.clock import Clock
from legation.errors import Conflict, LegationError
from legation.secret import Secret
from legation.store.codec import StreamInfo
from legation.store.database.transaction import Database, Queries, Row, Transaction, only, rows
from legation.store.entries import ByName, Newest, StreamQuery, entry_of
from legation.store.log import EventLog
from legation.store.secrets.sealer import derive, key_bytes
from legation.tasks import TaskSet

CONNECTION: Final = "acp:"  # what the stream of a client's connection begins with
SWEEP_EVERY: Final = (
    600.0  # seconds between two looks for what a crash, or a database that was away, has left
)
AT_ONCE: Final = 500  # streams that are claimed together, where all of a log are
MOST_KNOWN: Final = 10_000  # names of ours that are remembered
MOST_NAMED: Final = 20  # sessions that a diagnostic names
SKEW_MS: Final = 60_000  # how far the clocks of two starts may be apart
FIRST_PAGE: Final = (1 << 62, "")  # above every session

Key: TypeAlias = tuple[str, str]  # workspace, name of the stream
Report: TypeAlias = Callable[[str], None]
"""Gets words on sessions that another server has, too."""

_SQL: Final = Queries("servers")
_DOOR: Final = Queries("door")

logger = logging.getLogger("legation.server")


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of the installation, and where it is. `genuine`: it said so itself (INV-C4)."""

    server: str
    url: str
    certificate: str | None
    genuine: bool


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    id: str
    agent: str
    began: int
    peer: Peer


class StreamClaims:
    """`async with StreamClaims(...)`: at its start what the log has is claimed, from then on what is made."""

    def __init__(
        self, database: Database, log: EventLog, clock: Clock, here: Peer, pepper: Secret, report: Report
    ) -> None:
        self.here = here
        self._database, self._log, self._clock = database, log, clock
        self._key = derive(key_bytes(pepper), "server-addresses")
        self._report = report
        self._ours: dict[Key, None] = {}  # some of them; nobody but us takes one away
        self._freed = 0  # how many we gave back
        self._pending: dict[Key, int] = {}  # claimed, and not there yet; since when
        self._newest = (
            0  # when the last was claimed: no two at once, so that each is told from the next of its name
        )
        self._swept = 0  # claims of before that have their streams
        self._tasks = TaskSet("legation-claims")

    async def __aenter__(self) -> Self:
        here, now = self.here, self._clock.now_ms()
        certificate, mac = here.certificate, self._mac(here.server, here.url, here.certificate)
        await self._run(
            _SQL.set_address, server=here.server, url=here.url, certificate=certificate, mac=mac, now=now
        )
        found = only(await self._read(_SQL.address, server=here.server))
        assert found is not None
        for other in await self._read(_SQL.same_address, url=here.url, server=here.server):
            logger.warning(
                "another server, %s, says that it is at %s too: set advertise_url to an address of this one alone, or "
                "delete the row of %s in server_address if it is gone for good",
                other["server"],
                here.url,
                other["server"],
            )
        if found["adopted_at"] is None:
            await self._adopt()
        self._swept = found["swept_to"]
        await self.sweep()
        self._tasks.start(self._sweep_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    # Made and deleted.

    @asynccontextmanager
    async def taken(self, workspace: str, name: str, agent: str, began: int | None) -> AsyncIterator[None]:
        """While the stream of that name is made, and from then on; where it is not made, the name is free again."""
        key = workspace, name
        at = self._pending[key] = self._now()
        try:
            if not await self._take(key, agent, began, at):
                holder = (await self.elsewhere(workspace, [name])).get(name)
                where = "" if holder is None else f", {holder.url},"
                raise Conflict(
                    f"cannot create {name.removeprefix(CONNECTION)}: another server{where} has one of that name; "
                    "choose another",
                    {"type": "session_already_exists"},
                )
            try:
                yield
            except BaseException:
                await asyncio.shield(self._free_if_gone(key, at))
                raise
            self._know(key)
        finally:
            self._pending.pop(key, None)

    async def free(self, workspace: str, name: str, claimed_at: int | None = None) -> None:
        """Give a name back; of one that is not ours nothing happens, nor where it was claimed anew since `claimed_at`."""
        given = {"workspace": workspace, "name": name, "server": self.here.server}
        try:
            if claimed_at is None:
                await self._run(_SQL.free, **given)
            else:
                await self._run(_SQL.free_left, **given, claimed_at=claimed_at)
        finally:  # whoever looked meanwhile has perhaps seen it, and does not remember it
            self._freed += 1
            self._ours.pop((workspace, name), None)

    async def _free_if_gone(self, key: Key, claimed_at: int) -> bool:
        """Free what has no stream. Whoever asked may be gone, and another make one of the same name by now."""
        try:
            if gone := not await self._is_there(*key):
                await self.free(*key, claimed_at)
            return gone
        except LegationError as error:  # the next sweep does it
            logger.warning("cannot free the name of what was not made: %s", error.code)
            return False

    # Found.

    async def elsewhere(self, workspace: str, names: Collection[str]) -> dict[str, Peer]:
        """Return who has these, as far as other servers have them."""
        unknown = [name for name in names if (workspace, name) not in self._ours]
        if not unknown:
            return {}
        freed = self._freed
        found = await self._holders(workspace, unknown)
        for name in unknown:
            if name not in found and await self._claim_late((workspace, name)):
                # It was restored, or its claim was lost: whoever made it before has it again.
                found |= await self._holders(workspace, [name])
        ours = [name for name, peer in found.items() if peer.server == self.here.server]
        if ours and freed != self._freed:  # perhaps one of these, and what we saw is of before
            return await self.elsewhere(workspace, names)
        for name in ours:
            self._know((workspace, name))
        return {name: peer for name, peer in found.items() if peer.server != self.here.server}

    def is_ours(self, workspace: str, name: str) -> bool:
        """Tell whether a name is ours that was asked for just now."""
        return (workspace, name) in self._ours

    async def is_claimed(self, workspace: str, name: str) -> bool:
        key = workspace, name
        if key in self._ours or await self._holders(workspace, [name]):
            return True
        return await self._claim_late(key)

    async def _holders(self, workspace: str, names: Sequence[str]) -> dict[str, Peer]:
        if len(names) == 1:
            found = await self._read(_SQL.holder, workspace=workspace, name=names[0])
        else:
            found = await self._read(_SQL.holders, workspace=workspace, names=json.dumps(names))
        return {row["name"]: self._peer(row) for row in found}

    async def page(self, workspace: str, after: tuple[int, str], count: int) -> list[ClaimedSession]:
        """Return sessions of all servers, the newest first, behind the one that began then and has that id."""
        began, name = after
        found = await self._read(_SQL.newest_claims, workspace=workspace, began=began, name=name, count=count)
        return [ClaimedSession(row["name"], row["agent"], row["began"], self._peer(row)) for row in found]

    async def connections_elsewhere(self, workspace: str) -> list[tuple[str, str, int]]:
        """Return the id, the agent and the time of each connection that other servers have, by id."""
        found = await self._read(_SQL.connections_elsewhere, workspace=workspace, server=self.here.server)
        return [(row["name"].removeprefix(CONNECTION), row["agent"], row["claimed_at"]) for row in found]

    # What a log has.

    async def _adopt(self) -> None:
        """Claim all that the log has, once. Of two servers that have the same name the first has it."""
        lost: list[str] = []
        for workspace in await self._database.read(_workspaces):
            for query in (Newest(workspace), ByName(workspace, None, CONNECTION, states=("open",))):
                lost += await self._adopt_all(workspace, query)
        if lost:
            more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
            self._report(
                f"another server has sessions of the same ids, and requests for them go there: {', '.join(lost[:MOST_NAMED])}{more}; "
                "those of this server can be read with the header Legation-Here: true"
            )
        await self._run(_SQL.note_adopted, server=self.here.server, now=self._clock.now_ms())

    async def _adopt_all(self, workspace: str, query: StreamQuery) -> list[str]:
        lost: list[str] = []
        while page := await self._log.page(query, AT_ONCE):
            items = [_item(info) for _, info in page]
            await self._run(
                _SQL.take_all,
                workspace=workspace,
                server=self.here.server,
                items=json.dumps(items),
                now=self._clock.now_ms(),
            )
            found = await self._holders(workspace, [info.name for _, info in page])
            lost += [name for name, peer in found.items() if peer.server != self.here.server]
            query = query.behind(page[-1][0])
        return lost

    async def _claim_late(self, key: Key) -> bool:
        """Claim one that the log has and nobody claims. Return whether it is there."""
        if key in self._pending:  # whoever makes it has just begun
            return False
        info = await self._log.lookup(key[1], key[0])
        if info is None or not _lives(info):
            return False
        item = _item(info)
        await self._take(key, str(item["agent"]), item["began"], self._now())
        return True

    async def _take(self, key: Key, agent: str, began: object, now: int) -> bool:
        workspace, name = key
        found = await self._run(
            _SQL.take,
            workspace=workspace,
            name=name,
            server=self.here.server,
            agent=agent,
            began=began,
            now=now,
        )
        return bool(found)

    def _now(self) -> int:
        self._newest = max(self._newest + 1, self._clock.now_ms())
        return self._newest

    # What is left.

    async def _sweep_again(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_EVERY)
            try:
                await self.sweep()
            except LegationError as error:  # the next one does what this one could not
                logger.warning("cannot sweep the claims of this server: %s", error)

    async def sweep(self) -> int:
        """Free the names that were claimed since the last time and have no stream. Return how many."""
        # What is being made may take minutes, and is looked at next time.
        upto = min([self._clock.now_ms(), *self._pending.values()])
        server = self.here.server
        found = [*await self._read(_SQL.unswept, server=server, since=self._swept - SKEW_MS)]
        for workspace in await self._database.read(_workspaces):
            found += await self._read(_SQL.own_connections, workspace=workspace, server=server)
        freed = 0
        for row in found:
            key = row["workspace_id"], row["name"]
            if key not in self._pending:
                freed += await self._free_if_gone(key, row["claimed_at"])
        await self._run(_SQL.note_swept, server=server, upto=upto)
        self._swept = upto
        return freed

    async def _is_there(self, workspace: str, name: str) -> bool:
        info = await self._log.lookup(name, workspace)
        return info is not None and _lives(info)

    # The rest.

    def _know(self, key: Key) -> None:
        self._ours[key] = None
        if len(self._ours) > MOST_KNOWN:
            del self._ours[next(iter(self._ours))]

    def _peer(self, row: Row) -> Peer:
        server, url, certificate = row["server"], row["url"], row["certificate"]
        genuine = hmac.compare_digest(self._mac(server, url, certificate), bytes(row["mac"]))
        return Peer(server, url, certificate, genuine)

    def _mac(self, server: str, url: str, certificate: str | None) -> bytes:
        return hmac.digest(self._key, json.dumps([server, url, certificate]).encode(), "sha256")

    async def _read(self, query: Callable[..., object], **args: object) -> Sequence[Row]:
        return await self._database.read(rows, query(**args))  # type: ignore[arg-type]

    async def _run(self, query: Callable[..., object], **args: object) -> Sequence[Row]:
        return await self._database.transact(rows, query(**args))  # type: ignore[arg-type]


def _item(info: StreamInfo) -> dict[str, str | int | None]:
    """Return what is said of a stream in its claim."""
    entry = None if info.name.startswith(CONNECTION) else entry_of(info.meta)
    if entry is None:
        return {"name": info.name, "agent": _agent_of(info.meta), "began": None}
    return {"name": info.name, "agent": entry.agent, "began": entry.began}


def _agent_of(meta: bytes) -> str:
    """Return the agent of a connection, as its stream says it."""
    try:
        return str(json.loads(meta).get("agent", ""))
    except (ValueError, AttributeError):
        return ""


def _lives(info: StreamInfo) -> bool:
    if info.name.startswith(CONNECTION):
        return info.state == "open"
    entry = entry_of(info.meta)
    return info.state != "deleted" and entry is not None and entry.began is not None


def _workspaces() -> Transaction[list[str]]:
    return [row["id"] for row in (yield _DOOR.workspaces())]
