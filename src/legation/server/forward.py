"""Requests for what another server has, passed on to it; and the list of the sessions of all servers.

INV-F1  A request is passed on once. One that was passed on is answered where it arrives, or refused: never passed on again.
INV-F2  It goes there as the caller sent it, with the caller's own credential; this server has checked that, and the other
        checks it again. A token that only this process knows is replaced by a pass (`ProcessTokens`).
INV-F3  Credentials go only where a server of the installation said that it is (INV-C4 of `peers.claims`).
INV-F4  A page of the list costs what is on it, on every server that has something on it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from legation.clock import Clock
from legation.errors import Conflict, LegationError, NotFound, Unavailable
from legation.server.auth import PROCESS, ProcessTokens
from legation.server.http.request import SAFE_METHODS, read_query
from legation.server.http.routes import Call
from legation.server.peers.claims import CONNECTION, FIRST_PAGE, ClaimedSession, Peer, StreamClaims
from legation.server.peers.relay import PeerClient
from legation.server.sessions.record import RESERVED, SessionRecords, is_client_id
from legation.server.streaming.multiplex import read_wanted
from legation.store.log import AT_ONCE
from legation.wire.api.inbox import Inbox, InboxItem
from legation.wire.api.server import AcpServer
from legation.wire.api.sessions import SessionInfo, SessionList

PASSED: Final = "legation-passed-by"  # the server that passed a request on
HERE: Final = "legation-here"  # asks for what this server itself has
LIST_LIMIT: Final = (
    3.0  # seconds until a server that has sessions of a page must have told of them: the caller's time
)
LIST_BYTES: Final = 64 * 1024 * 1024  # of such an answer: the longest page there is
APPEARS: Final = 5.0  # seconds that a reader waits for a connection that no server has yet: the client's time
LOOK_EVERY: Final = 0.25  # seconds between two looks for it
AWAY: Final = "away"  # the status of a session whose server does not answer

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_CREDENTIALS: Final = (b"authorization", b"cookie", b"legation-workspace")

T = TypeVar("T")
Place: TypeAlias = tuple[int, str]  # when a session began, and its id

logger = logging.getLogger("legation.server")


class Forwarder:
    """The way to the other servers of a database."""

    def __init__(
        self, claims: StreamClaims, records: SessionRecords, tokens: ProcessTokens, clock: Clock
    ) -> None:
        self._claims = claims
        self._records = records
        self._tokens = tokens
        self._clock = clock
        self._client = PeerClient()
        self.close = self._client.close

    async def __call__(self, call: Call, route: str, path: Mapping[str, str]) -> Response | None:
        """Answer for the server that has what the request is about; None where that is this one, or nobody."""
        if not (names := _names(call, route, path)):
            return None
        here, safe = self.is_here(call), call.request.method in SAFE_METHODS
        if here and safe and PASSED not in call.request.headers:
            return None  # whatever there is of it; it may be another's by now
        if route == "/v1/acp/{server_id}" and safe:
            await self._appears(call.principal.workspace, names)
        claimable = [name for name in names if _can_be_elsewhere(name)]  # the database takes no other
        found = await self._claims.elsewhere(call.principal.workspace, claimable)
        if not found:
            return None
        peer, *others = {*found.values()}
        if PASSED in call.request.headers:
            raise _passed_twice(call, peer)
        if here:
            raise Conflict(f"cannot change {names[0]} here: {peer.url} has it; leave out Legation-Here")
        if others or any(self._is_ours(call, name) for name in names if name not in found):
            raise Conflict(
                "cannot follow streams of several servers in one body; open one body for those of each: "
                f"{', '.join(sorted(found))[:1000]} are not of this server"
            )
        return await self.pass_on(call, peer)

    def _is_ours(self, call: Call, name: str) -> bool:
        return not _can_be_elsewhere(name) or self._claims.is_ours(call.principal.workspace, name)

    @staticmethod
    def is_here(call: Call) -> bool:
        """Tell whether only what this server has is asked for: by a caller, or by another server."""
        return HERE in call.request.headers or PASSED in call.request.headers

    async def pass_on(self, call: Call, peer: Peer, content: bytes | None = None) -> Response:
        """Pass a request on; `content` is its body where it was read."""
        request, added = call.request, self._added(call, peer)
        return await self._client.pass_on(_genuine(peer), request.scope, request.receive, added, content)

    async def holder(self, workspace: str, session_id: str | None) -> Peer | None:
        """Return the other server that has a session, if one has."""
        if session_id is None or not is_client_id(session_id):
            return None
        return (await self._claims.elsewhere(workspace, [session_id])).get(session_id)

    def _added(self, call: Call, peer: Peer) -> list[tuple[bytes, bytes]]:
        added = [
            (PASSED.encode(), self._claims.here.server.encode()),
            (b"x-request-id", call.request_id.encode()),
        ]
        if call.principal.via == PROCESS:
            token = self._tokens.pass_for(peer.server, self._clock.now_ms())
            added.append((b"authorization", f"Bearer {token.reveal()}".encode()))
        elif "cookie" in call.request.headers and "authorization" not in call.request.headers:
            # Whose page it was is known here alone, where it was called by the name that the page has; and was checked.
            added.append((b"sec-fetch-site", b"same-origin"))
        return added

    async def _appears(self, workspace: str, names: Sequence[str]) -> None:
        """Wait for a connection that is about to be made, by whichever server."""
        for _ in range(round(APPEARS / LOOK_EVERY)):
            if await self._claims.is_claimed(workspace, names[0]):
                return
            await asyncio.sleep(LOOK_EVERY)
        raise NotFound(f"cannot find server {names[0].removeprefix(CONNECTION)}; send it a message first")

    # The lists.

    async def connections(self, workspace: str) -> list[AcpServer]:
        """Return the connections that other servers have."""
        found = await self._claims.connections_elsewhere(workspace)
        return [AcpServer(server_id=each, agent=agent, created_at_ms=at) for each, agent, at in found]

    async def sessions(
        self, call: Call, limit: int | None, cursor: str | None
    ) -> tuple[list[SessionInfo], str | None]:
        """Return as many of all servers, the newest first, and the cursor of the page behind them, if there is one."""
        found: list[SessionInfo] = []
        silent: set[Peer] = set()  # who did not answer is not waited for again, page by page
        last, place = None, _place(cursor)
        while True:
            wanted = AT_ONCE if limit is None else min(AT_ONCE, limit + 1 - len(found))
            claims = await self._claims.page(call.principal.workspace, place, wanted)
            shown = await self._shown(call, claims, place, silent)
            for claim in claims:
                if (info := shown.get(claim.id)) is None:  # it is being made, or deleted
                    continue
                if len(found) == limit:
                    return found, last
                found.append(info)
                last = f"{claim.began}.{claim.id}"
            if len(claims) < wanted:
                return found, None
            place = claims[-1].began, claims[-1].id

    async def inbox(self, call: Call, wanted: Mapping[str, str]) -> list[InboxItem]:
        """Return items of the inbox that other servers have: by their ids, the sessions that they are of. What a server does
        not tell in time is left out: the next change of it is told again."""
        found = await self._claims.elsewhere(call.principal.workspace, sorted({*wanted.values()}))
        told = await asyncio.gather(*[self._inbox_of(call, peer) for peer in {*found.values()}])
        return [item for items in told for item in items if item.id in wanted]

    async def _inbox_of(self, call: Call, peer: Peer) -> list[InboxItem]:
        try:
            items = (await self._get(call, peer, "/v1/inbox", Inbox)).items
        except LegationError as error:
            logger.info("cannot read the inbox of %s: %s", peer.url, error.code)
            return []
        return [replace(item, server=peer.url) for item in items]

    async def _shown(
        self, call: Call, claims: Sequence[ClaimedSession], place: Place, silent: set[Peer]
    ) -> dict[str, SessionInfo]:
        """Return what is to be shown of them, by id. Each server has its own of a page among as many of its own list."""
        by_peer: dict[Peer, list[ClaimedSession]] = {}
        for claim in claims:
            by_peer.setdefault(claim.peer, []).append(claim)
        pages = await asyncio.gather(
            *[self._of(call, peer, by_peer[peer], len(claims), place, silent) for peer in by_peer]
        )
        return {info.session_id: info for page in pages for info in page}

    async def _of(
        self,
        call: Call,
        peer: Peer,
        claims: Sequence[ClaimedSession],
        count: int,
        place: Place,
        silent: set[Peer],
    ) -> list[SessionInfo]:
        cursor = None if place == FIRST_PAGE else f"{place[0]}.{place[1]}"
        if peer.server == self._claims.here.server:
            found, _ = await self._records.page(call.principal.workspace, count, cursor)
        elif peer in silent:
            return [_away(claim) for claim in claims]
        else:
            try:
                found = await self._ask(call, peer, count, cursor)
            except LegationError as error:
                silent.add(peer)
                logger.info("cannot list the sessions of %s: %s", peer.url, error.code)
                return [_away(claim) for claim in claims]
        wanted = {claim.id for claim in claims}
        return [replace(info, server=peer.url) for info in found if info.session_id in wanted]

    async def _ask(self, call: Call, peer: Peer, count: int, cursor: str | None) -> list[SessionInfo]:
        target = f"/v1/sessions?limit={count}" + (f"&cursor={cursor}" if cursor else "")
        return (await self._get(call, peer, target, SessionList)).sessions

    async def _get(self, call: Call, peer: Peer, target: str, shape: type[T]) -> T:
        """Ask another server what it has itself, for the caller."""
        added = self._added(call, peer)
        named = {name for name, _ in added}
        given = [
            each for each in call.request.scope["headers"] if each[0] in _CREDENTIALS and each[0] not in named
        ]
        try:
            async with asyncio.timeout(LIST_LIMIT):
                status, body = await self._client.get(_genuine(peer), target, [*given, *added], LIST_BYTES)
            if status != 200:
                raise Unavailable(f"cannot list what {peer.url} has: it answers {status}")
            return msgspec.json.decode(body, type=shape)
        except (TimeoutError, msgspec.MsgspecError) as error:
            raise Unavailable(f"cannot list what {peer.url} has: {type(error).__name__}") from None


def _names(call: Call, route: str, path: Mapping[str, str]) -> list[str]:
    """Return the streams that a request is about, as far as servers can have them."""
    if route.startswith("/v1/sessions/{id}"):
        names = [path["id"]]
    elif route.startswith("/v1/streams/{name}"):
        names = [path["name"]]
    elif route == "/v1/acp/{server_id}":
        names = [f"{CONNECTION}{path['server_id']}"]
    elif route == "/acp":
        names = [f"{CONNECTION}{call.request.headers.get('acp-connection-id', '')}"]
    elif route.startswith("/v1/fs/"):
        query = read_query(call.request.scope["query_string"])
        names = [*query.get("sessionId", ()), *query.get("session_id", ())]
        names = names if len(names) == 1 else []  # the route refuses several
    elif route == "/v1/stream":
        streams = read_query(call.request.scope["query_string"]).get("streams", [])
        names = [each.name for each in read_wanted(streams[0], None)] if len(streams) == 1 else []
    else:
        return []
    return names if any(_can_be_elsewhere(name) for name in names) else []


def _can_be_elsewhere(name: str) -> bool:
    return name not in RESERVED and is_client_id(name.removeprefix(CONNECTION))


def _passed_twice(call: Call, peer: Peer) -> Unavailable:
    by = call.request.headers[PASSED]
    by = by if _NAME.fullmatch(by) else "another server"
    return Unavailable(
        f"cannot pass this on a second time: {by} passed it here, and {peer.server} at {peer.url} has it; set advertise_url "
        "of each server to an address that leads to that one alone",
        {"server": peer.url},
    )


def _genuine(peer: Peer) -> Peer:
    if not peer.genuine:
        raise Unavailable(
            f"cannot trust the address of the server that has it, {peer.url}: it was not written with the keys of this "
            "installation; give that server the same keys, and start it again",
            {"server": peer.url},
        )
    return peer


def _place(cursor: str | None) -> Place:
    if cursor is None:
        return FIRST_PAGE
    began, _, session_id = cursor.partition(".")  # as `CURSOR` has it
    return int(began), session_id


def _away(claim: ClaimedSession) -> SessionInfo:
    """Return all that the others know of a session whose server does not answer."""
    return SessionInfo(
        session_id=claim.id,
        agent=claim.agent,
        agent_mode="",
        permission_mode="",
        model=None,
        variant=None,
        native_session_id=None,
        ended=False,
        event_count=0,
        created_at=claim.began,
        updated_at=claim.began,
        directory=None,
        title=None,
        status=AWAY,
        server=claim.peer.url,
    )
