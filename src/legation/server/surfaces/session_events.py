"""The events of a session over HTTP: pages, a live body, and the body of one turn. See docs/session-events.md."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from starlette.responses import Response

from legation.errors import Conflict, NotFound, SessionClosed, StorageFailed
from legation.server.http.call import Alias, Call, Header
from legation.server.http.routes import Routes, needs
from legation.server.sessions.messages import MOST_QUEUED_SIZE
from legation.server.streaming.credential import credential_of
from legation.server.streaming.hub import StreamReader
from legation.server.streaming.multiplex import read_position
from legation.server.streaming.projected import Projected, frames, project
from legation.server.streaming.projected_fold import Schema
from legation.server.streaming.projected_pages import page
from legation.server.streaming.projected_turn import Cursor, TurnReader
from legation.server.streaming.sse import EventStream
from legation.wire.api.sessions import EventPage, NewMessage

MEDIA: Final = "text/event-stream"

Offset = Annotated[int, Meta(ge=0, le=10**18 - 1)]
Limit = Annotated[int | None, Meta(ge=1, le=10**18 - 1)]
IncludeRaw = Annotated[bool, Alias("include_raw")]
Generation = Annotated[str | None, Meta(pattern="^([1-9][0-9]{0,8}|all)$")]
LastEventId = Annotated[str | None, Header("Last-Event-ID")]

routes = Routes(tag="session events")


@routes.get(
    "/v1/sessions/{id}/events", access=needs("read"), errors=(NotFound, StorageFailed), also={200: EventPage}
)
async def read_session_events(
    call: Call,
    id: str,  # noqa: A002 - spelt as in the path
    offset: Offset = 0,
    limit: Limit = None,
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
    generation: Generation = None,
) -> Response:
    """The events above a number, which is the last one seen. Without a limit: all of them.

    `hasMore` says that the limit cut something off. `generation` is 1 for what was recorded before the first load, and so
    on, or `all`; without it, the newest."""
    source = await _projected(call, id, schema, include_raw=include_raw, generation=generation)
    return await page(source.projection, offset, limit)


@routes.get("/v1/sessions/{id}/events/sse", access=needs("read"), errors=(NotFound, Conflict), media=MEDIA)
async def follow_session_events(
    call: Call,
    id: str,  # noqa: A002 - spelt as in the path
    offset: Offset = 0,
    limit: Limit = None,  # noqa: ARG001 - clients of sandbox-agent have one query for pages and for this
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
    generation: Generation = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Every event above a number, then those to come, as server-sent events.

    A `Last-Event-ID`, which browsers send when they connect again, wins over `offset`. A `limit` is taken and does not
    count: there is no end to cut off. The body of one `generation` ends with it."""
    source = await _projected(call, id, schema, include_raw=include_raw, generation=generation)
    after = read_position(last_event_id, "Last-Event-ID") if last_event_id else offset
    await source.check_position(after)
    return EventStream(StreamReader(call.services.hub, source, after, credential_of(call), frames))


@routes.post(
    "/v1/sessions/{id}/messages/stream",
    access=needs("operate"),
    errors=(NotFound, Conflict, SessionClosed, StorageFailed),
    media=MEDIA,
    body_bytes=MOST_QUEUED_SIZE,
)
async def stream_turn(
    call: Call,
    id: str,  # noqa: A002 - spelt as in the path
    body: NewMessage,
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
) -> Response:
    """Send a message and follow its turn, as server-sent events.

    The body ends with the turn, with the session, or at the first permission or question that waits for an answer."""
    source = await _projected(call, id, schema, include_raw=include_raw)
    shown = Cursor(source, await source.end())
    judged = shown
    if schema != "sandbox-agent":
        judge = await _projected(call, id, "sandbox-agent", include_raw=False)
        judged = Cursor(judge, await judge.end())
    boundary = source.log_head
    record = call.services.sessions.records.get(call.principal.workspace, id)
    begins = await call.services.sessions.send(record, body)
    credential = credential_of(call, "operate")
    return EventStream(TurnReader(call.services.hub, shown, judged, boundary, begins, credential))


async def _projected(
    call: Call, session_id: str, schema: Schema, *, include_raw: bool, generation: str | None = None
) -> Projected:
    services, workspace = call.services, call.principal.workspace
    facts = services.sessions.records.get(workspace, session_id).facts()
    return await project(
        services.hub,
        services.log,
        workspace,
        facts,
        schema,
        include_raw=include_raw,
        generation=generation,
    )
