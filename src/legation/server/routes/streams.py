"""`/v1/streams`: a list, pages of events, and the two live bodies; docs/streams.md describes them."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Final

from msgspec import Meta, Raw
from starlette.responses import Response

from legation.errors import Conflict, Forbidden, LegationError, NotFound, Unauthenticated
from legation.server.auth import WORKSPACE_HEADER
from legation.server.http.routes import Call, Header, Routes, needs
from legation.server.streaming.hub import Credential, StreamSource, check_position
from legation.server.streaming.multiplex import open_streams, read_position
from legation.server.streaming.sse import EventStream, as_utf8, first_chunk
from legation.store import codec
from legation.store.codec import StreamInfo
from legation.store.entries import ByName
from legation.wire.api.shape import Page
from legation.wire.api.streams import EventLine, StreamSummary
from legation.wire.events import Event
from legation.wire.principal import Scope

MEDIA: Final = "text/event-stream"
# Of one page of events, however many were asked for; a longer one goes alone.
PAGE_BYTES: Final = 4 * 1024 * 1024

Position = Annotated[int, Meta(ge=0, le=10**18 - 1)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Generation = Annotated[str | None, Meta(pattern="^([1-9][0-9]{0,8}|all)$")]
LastEventId = Annotated[str | None, Header("Last-Event-ID")]

routes = Routes(tag="streams")


@routes.get("/v1/streams", access=needs("read"))
async def list_streams(
    call: Call, prefix: str = "", limit: Limit = 100, after: str = ""
) -> Page[StreamSummary]:
    """The streams of the workspace, by name."""
    query = ByName(call.principal.workspace, (0, after) if after else None, prefix)
    found = await call.services.log.page(query, limit + 1)
    items = [_summary(info) for _, info in found[:limit]]
    return Page(items=items, next=items[-1].name if len(found) > limit else None)


@routes.get("/v1/streams/{name}/events", access=needs("read"), errors=(NotFound, Conflict))
async def read_events(
    call: Call, name: str, after: Position = 0, limit: Limit = 500, generation: Generation = None
) -> Page[EventLine]:
    """The events above a number, a page at a time.

    `next` is null when the head is reached; a page may hold fewer events than asked for before that. `generation` is 1
    for what was recorded before the first load, and so on, or `all`; without it, the newest."""
    source = await call.services.hub.source(name, call.principal.workspace, generation)
    check_position(source, after)
    return await page_of_events(source, after, limit)


@routes.get("/v1/streams/{name}/sse", access=needs("read"), errors=(NotFound, Conflict), media=MEDIA)
async def follow_stream(
    call: Call,
    name: str,
    after: Position = 0,
    generation: Generation = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Every event above a number, then those to come, as server-sent events.

    A `Last-Event-ID`, which browsers send when they connect again, wins over `after`. The body of one `generation` ends
    with it."""
    if last_event_id:
        after = read_position(last_event_id, "Last-Event-ID")
    workspace, credential = call.principal.workspace, credential_of(call)
    reader = await call.services.hub.reader(name, workspace, after, credential, generation)
    return EventStream(reader)


@routes.get("/v1/stream", access=needs("read"), errors=(NotFound, Conflict), media=MEDIA)
async def follow_streams(call: Call, streams: str, last_event_id: LastEventId = None) -> Response:
    """Up to 100 streams in one body: `?streams=a@12,b`, with percent-encoded names.

    The id of each event holds the position in every stream, in the order of the request."""
    reader = await open_streams(
        call.services.hub, call.principal.workspace, streams, last_event_id, credential_of(call)
    )
    return EventStream(reader)


def credential_of(call: Call, scope: Scope = "read") -> Credential:
    """Take the credential of a call, for a body that stays open: it ends when what opened it would not open it again."""
    request, authenticate = call.request, call.authenticate

    async def holds() -> bool:
        try:
            now = await authenticate(request)
        except (Unauthenticated, Forbidden):
            return False
        except LegationError:
            return True  # a database that does not answer is no verdict
        return now.workspace == call.principal.workspace and scope in now.scopes

    named = ("authorization", "cookie", WORKSPACE_HEADER)
    return Credential((scope, *(request.headers.get(name) for name in named)), holds)


def _summary(info: StreamInfo) -> StreamSummary:
    return StreamSummary(
        name=info.name,
        state="open" if info.state == "open" else "closed",
        first_seq=info.first_seq,
        head=info.head,
        generations=len(info.earlier) + 1,
    )


async def page_of_events(source: StreamSource, after: int, limit: int) -> Page[EventLine]:
    events: list[Event] = []
    room = PAGE_BYTES
    while len(events) < limit and room > 0:
        found = source.since(after)
        if found is None:
            found = await source.read_older(after)
        taken = first_chunk(found[: limit - len(events)], room)
        if not taken:
            break
        events += taken
        after = taken[-1].seq
        room -= sum([len(event.raw) + len(event.native) for event in taken])
    at_head = not events or after >= source.visible
    return Page(items=[_line(event) for event in events], next=None if at_head else str(after))


def _line(event: Event) -> EventLine:
    """As it is stored: `raw` is embedded, not written anew. Params are UTF-8 always, so that their span holds."""
    native = native64 = ""
    if len(event.native) > codec.LONG_NATIVE:
        native64 = codec.native64(event.native).decode()
    else:
        try:
            native = event.native.decode()
        except UnicodeDecodeError:
            native64 = b64encode(event.native).decode()
    return EventLine(
        seq=event.seq,
        at=event.at,
        type=event.type,
        raw=Raw(as_utf8(event.raw)),
        native=native,
        native64=native64,
        update=event.span,
    )
