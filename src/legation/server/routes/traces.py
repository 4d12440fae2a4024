"""Traces: what agents did and who allowed it; as seed 001 lists them, as a chain, and as a file."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import date
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from legation.approvals.request import hide, is_isolated
from legation.approvals.trace import entries
from legation.approvals.trace.chain import Head, Report, Verifier, chains, untraced, verify
from legation.approvals.trace.entries import TraceFilter
from legation.errors import InvalidParams, NotFound, RateLimited
from legation.server.http.routes import Call, RouteReply, Routes, needs
from legation.server.routes.page import PageLimit, listed
from legation.server.routes.rates import limit_caller
from legation.store.counters import Limit
from legation.wire.api.approvals import ChainHead, ChainReport, TraceDetail, TraceEntry, rfc3339
from legation.wire.api.shape import Page

NDJSON: Final = "application/x-ndjson"
VERIFICATIONS: Final = Limit(30, 60)  # each reads all there is

# As schemas have them: ASCII, and the same in every language. In a query an unescaped `+` is a blank.
_TIME: Final = (
    r"([1-9][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)"
    r"(\.[0-9]{1,9})?([Zz]|[+ -]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_SPAN: Final = r"([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d|w))+"
_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h|d|w)")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH: Final = date(1970, 1, 1).toordinal()

_SINCE: Final = "a time such as 2026-04-10T14:30:00Z, or how long ago, such as 24h, 30m or 7d"
Since = Annotated[
    str,
    Meta(
        pattern=f"^({_TIME}|{_SPAN})$", max_length=64, extra_json_schema={"description": _SINCE}
    ),  # what a mistake is told
]
Place = Annotated[str, Meta(pattern="^[0-9]{1,16}-[0-9a-z]{1,64}$")]
KnownHead = Annotated[str, Meta(pattern="^[!-~]{1,256}:[0-9]{1,15}:[0-9a-f]{64}$", max_length=512)]
Entry = TypeVar("Entry", bound=TraceEntry)

routes = Routes(tag="traces")


@routes.get("/traces", access=needs("read"))
async def list_traces(
    call: Call,
    agent: str | None = None,
    tool: str | None = None,
    session: str | None = None,
    since: Since | None = None,
    limit: PageLimit = 100,
    after: Place | None = None,
) -> RouteReply[list[TraceEntry]]:
    """Calls and what became of them, the newest first.

    Agent, tool and session by their exact names. `since` is a time (RFC 3339) or how long ago: `24h`. Where there
    are more, the header `Link` with `rel="next"` says where."""
    services = call.services
    wanted = TraceFilter(
        agent=agent, tool=tool, session=session, since=moment(since, services.clock.now_ms())
    )
    page = await entries.entries(
        services.database, services.sealer, call.principal.workspace, wanted, limit, after
    )
    return listed(call, Page(items=[_shown(call, entry) for entry in page.items], next=page.next))


@routes.get("/traces/{trace_id}", access=needs("read"), errors=(NotFound,))
async def read_trace(call: Call, trace_id: str) -> TraceDetail:
    """One call with every step of it, and what the tool answered."""
    services = call.services
    detail = await entries.detail(services.database, services.sealer, call.principal.workspace, trace_id)
    if sees_content(call) or detail.result is None:
        return _shown(call, detail)
    return msgspec.structs.replace(_shown(call, detail), result=_structure(detail.result))


@routes.get("/v1/trace/verify", access=needs("read"), errors=(RateLimited,))
async def verify_traces(call: Call, head: list[KnownHead] = []) -> list[ChainReport]:  # noqa: B006 - never changed
    """Whether every chain of the workspace is what was written, and the approvals are as the traces tell them.

    `head=SERVER:SEQ:HASH` is what an earlier answer named as the head of a chain. It may be repeated, and shows
    that no end was cut off since."""
    known = _heads(head)
    await limit_caller(call, "verify", VERIFICATIONS)
    services, workspace = call.services, call.principal.workspace
    there = await services.database.read(chains, workspace)
    servers = [*there, *(server for server in known if server not in there)]  # a chain may be gone as a whole
    reports = [
        _report(await verify(services.database, services.sealer, workspace, server, known.get(server)))
        for server in servers
    ]
    if strays := await untraced(services.database, workspace):
        own = services.ledger.chain.server
        told = next((report for report in reports if report.server == own), None)
        if told is None:  # there may be no chain at all any more
            told = _report(Verifier().report(workspace, own))
            reports.append(told)
        told.problems.extend(f"no step tells of approval {stray}: it was put in" for stray in strays)
    return reports


@routes.get("/v1/trace/export", access=needs("read"), media=NDJSON, errors=(NotFound,))
async def export_traces(
    call: Call, server: str | None = None, after: Annotated[int, Meta(ge=0, le=2**53)] = 0
) -> Response:
    """Every step of every chain, or of one server's: one JSON line each, chain after chain.

    `after` leaves out the steps up to that number. A whole chain can be verified from it without the server. What was said is left out for programs that are not
    to see contents, as it is after it was purged."""
    from legation.approvals.trace.export import lines_of

    services, workspace = call.services, call.principal.workspace
    there = await services.database.read(chains, workspace)
    if server is not None and server not in there:
        raise NotFound("cannot export that chain: the workspace has none of that server; verify lists them")
    lines = lines_of(
        services.database,
        services.sealer,
        workspace,
        there if server is None else [server],
        after,
        with_contents=sees_content(call),
    )
    return StreamingResponse(_closed(lines), media_type=NDJSON)


def sees_content(call: Call) -> bool:
    return not is_isolated(call.principal, call.services.settings)


def moment(text: str | None, now_ms: int) -> int:
    """Read `2026-04-10T14:30:00Z`, or how long ago: `24h`, `1h30m`, `7d`. In milliseconds; 0 where nothing is given."""
    if text is None:
        return 0
    if re.fullmatch(_SPAN, text):
        ago = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        return max(0, now_ms - round(ago))
    if told := re.fullmatch(_TIME, text):
        return max(0, _milliseconds(told))
    raise InvalidParams(
        "cannot tell since when: give a time as 2026-04-10T14:30:00Z, or how long ago as 24h, 30m or 7d",
        {"path": "since", "expected": "RFC 3339, or a duration"},
    )


def _milliseconds(told: re.Match[str]) -> int:
    # The 31st of a shorter month is the day after its last, and a leap second the second after: no reason to refuse.
    year, month, day, hour, minute, second = (int(told[group]) for group in range(1, 7))
    days = date(year, month, 1).toordinal() - _EPOCH + day - 1
    zone = told[8]
    offset = 0 if zone in "Zz" else int(zone[1:3]) * 60 + int(zone[4:6])
    minutes = days * 1440 + hour * 60 + minute - (-offset if zone[0] == "-" else offset)
    return minutes * 60_000 + second * 1000 + round(float(told[7] or 0) * 1000)


def _shown(call: Call, entry: Entry) -> Entry:
    if sees_content(call):
        return entry
    error = None if entry.error is None else msgspec.json.encode(_structure(entry.error)).decode()
    params = None if entry.params is None else hide(entry.params)
    return msgspec.structs.replace(entry, params=params, error=error)


def _structure(said: object) -> object:
    # Size, digest and type of it: all that a tool answers is content, whatever its shape.
    return hide({"content": said})["content"]


def _heads(given: list[str]) -> dict[str, list[Head]]:
    heads: dict[str, list[Head]] = {}
    for text in given:
        server, seq, hash_ = text.strip().rsplit(":", 2)
        heads.setdefault(server, []).append(Head(int(seq), hash_))
    return heads


def _report(report: Report) -> ChainReport:
    return ChainReport(
        server=report.server,
        steps=report.steps,
        contents=report.checked,
        purged=report.purged,
        head=ChainHead(server=report.server, seq=report.head.seq, hash=report.head.hash),
        problems=[f"step {fault.seq}: {fault.what}" for fault in report.faults],
        first=report.first,
        since=None if report.since is None else rfc3339(report.since),
    )


async def _closed(lines: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(lines):  # also when the caller goes away
        async for line in lines:
            yield line
