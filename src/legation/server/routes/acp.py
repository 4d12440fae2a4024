"""Legation as an ACP agent over HTTP, as sandbox-agent 0.4 has it: POST messages, read the answers and all else by SSE.

docs/acp.md describes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legation.errors import Conflict, InvalidParams, LegationError, NotAcceptable, NotFound, TooLarge
from legation.server.http.app import Confirmation
from legation.server.http.request import BodyReader, check_media, check_members, until_disconnected
from legation.server.http.routes import Call, Header, Routes, needs
from legation.server.routes.streams import MEDIA, LastEventId, credential_of
from legation.server.streaming.hub import check_position
from legation.server.streaming.multiplex import read_position
from legation.server.streaming.sse import EventStream
from legation.wire.api.server import AcpServer, AcpServers

if TYPE_CHECKING:
    from legation.agents.messages import RpcMessage
    from legation.wire.principal import Principal

MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of one message: a prompt with a dozen of images
APPEARS: Final = 5.0  # seconds that a reader waits for the first message of its client: the client's time
QUICK: Final = 1.0  # seconds for an answer that goes out whole, with its length: the agent's time
SPACE_EVERY: Final = 5.0  # seconds of silence on the line: a quarter of what impatient proxies allow
OUR_FAULT: Final = 500  # the least status that says so
ACCESS: Final = needs("operate")  # a client also answers what its connection was asked

CONNECTION_ID: Final = "Acp-Connection-Id"  # as ACP's proposal of streamable HTTP has it
ConnectionId = Annotated[str | None, Header(CONNECTION_ID)]
SessionOfStream = Annotated[str | None, Header("Acp-Session-Id")]
ServerId = Annotated[
    str, Meta(min_length=1, max_length=256)
]  # the client's choice; `must_be_server_id` reads it

routes = Routes(tag="acp", tolerant=True)
_bodies = BodyReader()


@routes.get("/v1/acp", access=needs("read"))
async def list_acp_servers(call: Call) -> AcpServers:
    """The connections of the workspace, by id."""
    found = await call.services.acp.list(call.principal.workspace)
    servers = [
        AcpServer(server_id=server_id, agent=kept.agent, created_at_ms=kept.created_at_ms)
        for server_id, kept in found
    ]
    if (forwarder := call.services.forwarder) is not None and not forwarder.is_here(call):
        servers += await forwarder.connections(call.principal.workspace)
        servers.sort(key=lambda each: each.server_id)
    return AcpServers(servers=servers)


@routes.post(
    "/v1/acp/{server_id}",
    access=ACCESS,
    takes="application/json",
    errors=(Conflict, NotFound),
)
async def post_acp_message(
    call: Call,
    server_id: ServerId,
    agent: str | None = None,
    prefer: Annotated[str | None, Header("Prefer")] = None,
) -> Response:
    """Send one JSON-RPC message to an agent; the first names the agent.

    A request is answered with 200 and its JSON-RPC response, also where that is an error; anything else with 202. With
    `Prefer: respond-async` a request is answered with 202 too, and its response comes with the events."""
    from legation.server.acp.messages import kind_of

    message, principal = await _message(call)
    later = prefer is not None and "respond-async" in prefer.lower()
    try:
        connection = await call.services.acp.get(principal.workspace, server_id, agent)
    except LegationError as error:
        if later or kind_of(message) != "request" or error.status.http < OUR_FAULT:
            raise
        return _refusal(message, error)
    coming = connection.receive(message, principal)
    if coming is None:
        return Response(status_code=202)
    if later and not coming.done():  # what is refused at once is among no events
        await connection.note_taken()
        return Response(status_code=202)
    return KeepAliveReply(coming)


@routes.get("/v1/acp/{server_id}", access=ACCESS, media=MEDIA, errors=(NotFound, Conflict))
async def follow_acp_messages(call: Call, server_id: ServerId, last_event_id: LastEventId = None) -> Response:
    """Everything that the agent says, as server-sent events: notifications, requests, responses.

    With a `Last-Event-ID` exactly what came after that. Before the first message it waits a while for it."""
    from legation.server.acp.log import ConnectionSource, MessageReader

    _must_accept(call, MEDIA)
    after = read_position(last_event_id, "Last-Event-ID") if last_event_id else None
    connections = call.services.acp
    stream, since = await connections.stream(call.principal.workspace, server_id, APPEARS)
    source = ConnectionSource(call.services.log, stream, messages=True)
    if after is not None:
        # As sandbox-agent does: who names a number that was never said hears whatever comes next.
        after = min(after, source.head)
    reader = MessageReader(
        call.services.hub,
        source,
        since if after is None else after,
        credential_of(call, "operate"),
        connections.reading(call.principal.workspace, server_id),
    )
    return EventStream(reader)


@routes.delete("/v1/acp/{server_id}", access=ACCESS)
async def delete_acp_server(call: Call, server_id: ServerId) -> None:
    """End a connection and its agent's processes; its sessions stay. Twice is as good as once."""
    await call.services.acp.remove(call.principal.workspace, server_id)


# The transport of ACP's official SDKs: one address, and connections by a header.


@routes.post("/acp", access=ACCESS, takes="application/json", errors=(Conflict, NotFound))
async def post_streamable_message(
    call: Call, agent: str | None = None, acp_connection_id: ConnectionId = None
) -> Response:
    """Send one JSON-RPC message, as ACP's proposal of streamable HTTP has it.

    `initialize` opens a connection to the agent that the address names, and is answered with 200 and its
    `Acp-Connection-Id`. Everything else has that header and is answered with 202; what is said to it comes by GET."""
    from legation.wire.acp.rpc import AgentMethod

    message, principal = await _message(call)
    if message.method == AgentMethod.INITIALIZE and message.id:
        return await _open(call, message, principal, agent, acp_connection_id)
    connection = await call.services.acp.find(principal.workspace, _named(acp_connection_id))
    coming = connection.receive(message, principal)
    if coming is None:
        return Response(status_code=202)
    if not coming.done():
        await connection.note_taken()
    elif connection.outlet.say(coming.result()) is None:  # such a client reads answers among the events alone
        raise NotFound("cannot go on: the connection was closed; connect again")
    return Response(status_code=202)


@routes.get("/acp", access=ACCESS, media=MEDIA, errors=(NotFound, Conflict))
async def follow_streamable_messages(
    call: Call,
    agent: str | None = None,  # noqa: ARG001 - the address is the same for all three
    acp_connection_id: ConnectionId = None,
    acp_session_id: SessionOfStream = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Everything that is said to a connection but the answer to its `initialize`, as server-sent events.

    With `Acp-Session-Id` a body that is open and silent: all sessions of a connection are told in its own, in one order."""
    from legation.server.acp.log import ConnectionSource, MessageReader, SilentReader

    _must_accept(call, MEDIA)
    after = read_position(last_event_id, "Last-Event-ID") if last_event_id else None
    workspace, connections = call.principal.workspace, call.services.acp
    connection = await connections.find(workspace, server_id := _named(acp_connection_id))
    source = ConnectionSource(call.services.log, connection.outlet.stream, messages=True)
    if after is not None:
        check_position(source, after)
    kind = MessageReader if acp_session_id is None else SilentReader
    after = connection.kept.since if after is None else after
    reading = connections.reading(workspace, server_id)
    return EventStream(kind(call.services.hub, source, after, credential_of(call, "operate"), reading))


@routes.delete("/acp", access=ACCESS, status=202, errors=(NotFound,))
async def delete_streamable_connection(
    call: Call,
    agent: str | None = None,  # noqa: ARG001
    acp_connection_id: ConnectionId = None,
) -> Response:
    """End a connection and its agent's processes; its sessions stay."""
    workspace, server_id = call.principal.workspace, _named(acp_connection_id)
    await call.services.acp.find(workspace, server_id)
    await call.services.acp.remove(workspace, server_id)
    return Response(status_code=202)


async def _open(
    call: Call, message: RpcMessage, principal: Principal, agent: str | None, named: str | None
) -> Response:
    if named is not None:
        raise InvalidParams(
            f"cannot initialize a connection twice; leave out {CONNECTION_ID}, and you get another one"
        )
    if agent is None:
        raise InvalidParams("cannot tell which agent you want; name it in the address: /acp?agent=NAME")
    server_id, connection = await call.services.acp.open(principal.workspace, agent)
    coming = connection.receive(message, principal)
    if coming is None:
        raise InvalidParams("cannot take an initialize without an id; send a request")
    return KeepAliveReply(coming, headers={CONNECTION_ID: server_id})


def _named(connection_id: str | None) -> str:
    if not connection_id:
        raise InvalidParams(
            f"cannot tell which connection this is for; send initialize first, then the {CONNECTION_ID} of its answer"
        )
    return connection_id


async def _message(call: Call) -> tuple[RpcMessage, Principal]:
    """Read one message, and who sends it: as they are when all of it has come."""
    from legation.server.acp.messages import read_body

    headers = dict(call.request.scope["headers"])
    check_media(headers.get(b"content-type", b""))
    _must_accept(call, "application/json")
    confirm = Confirmation(call, ACCESS)
    body = await _bodies.read(headers, call.request.receive, MESSAGE_BYTES)
    message = read_body(body)
    with suppress(TooLarge):  # nested too deeply to be looked through: whoever reads its parameters says so
        await check_members(body)
    return message, await confirm()


def _refusal(message: RpcMessage, error: LegationError) -> Response:
    # A status of 5xx would be the end of the SDK's client, whatever becomes of the server; a JSON-RPC error is not.
    from legation.server.acp.messages import error_line, rpc_error

    return Response(error_line(bytes(message.id), rpc_error(error)), media_type="application/json")


def _must_accept(call: Call, media: str) -> None:
    # Without the header everything is accepted; what has a weight of nothing is not looked at.
    wanted = call.request.headers.get("accept")
    if not wanted:
        return
    kind = media.partition("/")[0]
    named = {each.partition(";")[0].strip().lower() for each in wanted.split(",")}
    if not named & {media, f"{kind}/*", "*/*"}:
        raise NotAcceptable(f"cannot answer in what you accept; accept {media}")


class KeepAliveReply(Response):
    """The answer to a POST with a request: headers early, and a space now and then, until there is something to say.

    A turn may take an hour, and what stands between (Node's `fetch`: five minutes; proxies: less) gives up on silence.
    JSON may begin with spaces, so nobody who reads the whole body notices."""

    media_type = "application/json"

    def __init__(
        self,
        coming: asyncio.Future[bytes],
        *,
        quick: float = QUICK,
        space: float = SPACE_EVERY,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._coming = coming
        self._quick = quick
        self._space = space
        self.init_headers({"content-type": "application/json", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wait({self._coming}, timeout=self._quick)
        headers = list(self.raw_headers)
        if self._coming.done():
            headers.append((b"content-length", b"%d" % len(self._coming.result())))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if not self._coming.done():
            await self._wait(receive, send)
        if self._coming.done():
            await send({"type": "http.response.body", "body": self._coming.result(), "more_body": False})

    async def _wait(self, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(until_disconnected(receive))
        try:
            while not leaving.done():
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                first: set[asyncio.Future[Any]] = {self._coming, leaving}
                await asyncio.wait(first, timeout=self._space, return_when=asyncio.FIRST_COMPLETED)
                if self._coming.done():
                    return
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
