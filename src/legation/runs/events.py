"""Events of runs: reports of runners become sealed pages, and every server gives them back, recorded and live.

INV-E1  Pages, rows of metadata, the usage ledger and the runner's sequence are one transaction: a report is kept whole and once, or not
        at all. It is called by whoever counts the report, and only for one that is fresh.
INV-E2  A run's events are numbered from 1, over all its attempts, without a gap.
INV-E3  In plain there are numbers, types, sizes and times. A line above `PAGE_CAP` is a sealed blob, written before the
        transaction under a name that a repetition has again, and is given back whole.
INV-E4  However many runs a server watches, it asks for the heads of all of them in one query.
INV-E5  What an attempt changed, as its runner reported it, is a page of a stream of its own, in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from legation.errors import NotFound, StorageFailed
from legation.runs.packs import EventPacks, unreadable
from legation.runs.run import EVENTS, Run
from legation.runs.states import TERMINAL, RunState
from legation.store import codec
from legation.store.audit import names_of
from legation.store.blobs.base import Blobs, workspace_key
from legation.store.database.transaction import Database, Queries, Row, Rows, Transaction, rows
from legation.store.secrets.vault import MAX_PAGE, ContentStore
from legation.tasks import TaskSet
from legation.wire import jsontext
from legation.wire.acp.methods import Usage
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import Notice
from legation.wire.api.runs import Liveness
from legation.wire.callbacks import MOST_BYTES, ReportedChanges, RunnerReport
from legation.wire.event_types import (
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    UnaskedEffect,
    draft,
    update_draft,
)
from legation.wire.events import WHOLE, Event, Span, span_of, update_type

TOPIC: Final = "run-events"  # of notices: some run has more of them
PAGE_CAP: Final = MAX_PAGE // 2  # plain bytes of a line that goes into a page
LOOK_EVERY: Final = (
    1.0  # seconds between two looks, where nobody notifies: what a reader may be behind at most
)
LOOP_LENGTH: Final = 6  # the same call so often in a row is a loop
TAIL: Final = 60  # events that liveness is computed from
SILENT_MS: Final = 60_000  # without an event: it is the provider that is waited for
HUNG_MS: Final = 600_000  # without an event: it is not waited for any more
_ELSEWHERE: Final = b'""'  # in a page, of what is a blob

SQL: Final = Queries("run_events")

_usage = msgspec.json.Decoder(Usage)


class _CostAmount(msgspec.Struct):
    amount: float
    currency: str = "USD"


class _CostUpdate(msgspec.Struct):
    cost: _CostAmount | None = None


@dataclass(frozen=True, slots=True)
class ReportSource:
    """Run and attempt that a report is of, and the user to whom its usage is attributed."""

    workspace: str
    run: str
    attempt: int
    user: str | None


def blob_name(source: ReportSource, sequence: int, number: int) -> str:
    return workspace_key(source.workspace, "runs", source.run, f"{source.attempt}-{sequence}-{number}")


async def put_long_lines(
    content: ContentStore, blobs: Blobs, source: ReportSource, report: RunnerReport
) -> Mapping[int, str]:
    """Put what no page takes into sealed blobs, before the report is counted; their names, by the notification's place."""
    found = {}
    for number, line in enumerate(report.notifications):
        if len(line) > PAGE_CAP:
            name = found[number] = blob_name(source, report.sequence, number)
            sealed = await content.seal_apart(source.workspace, source.run, name, bytes(line))
            await blobs.put(name, sealed)
    return found


def keep_report(
    content: ContentStore, source: ReportSource, report: RunnerReport, long: Mapping[int, str], *, now_ms: int
) -> Transaction[None]:
    """Keep what a fresh report tells; a part of the transaction that counts it. To be followed by `notify(TOPIC)`."""
    if report.changes is not None and report.is_terminal:
        yield from _keep_changes(content, source, report.changes)
    drafts = [
        _line(jsontext.one_line(bytes(raw)), long.get(number))
        for number, raw in enumerate(report.notifications)
    ]
    if (decided := (yield from _decision(report))) is not None:
        drafts.append(decided)
    if report.is_terminal:
        asked = {"workspace": source.workspace, "runner": f"{source.run}-{source.attempt}"}
        (row,) = yield SQL.unheard(**asked, after=report.last_command or 0)
        if many := row["many"] + report.unheard:
            notice = update_draft(report.session_id or "", _unheard(many))
            drafts.append((notice.type, notice.raw, WHOLE, None, len(notice.raw)))
        end = draft(_end(report))
        drafts.append((end.type, end.raw, WHOLE, None, len(end.raw)))
    if not drafts:
        return
    head = yield from content.head(source.workspace, source.run, EVENTS)
    events = [
        Event(head + number, now_ms, kind, raw, span=span)
        for number, (kind, raw, span, _, _) in enumerate(drafts, 1)
    ]
    for part in codec.pages(events, PAGE_CAP):
        place = (source.workspace, source.run, EVENTS, part[0].seq, part[-1].seq)
        yield from content.append(*place, codec.encode(part))
    yield SQL.each(
        "add_event",
        [
            {
                "workspace": source.workspace,
                "run": source.run,
                "seq": event.seq,
                "attempt": source.attempt,
                "report": report.sequence,
                "type": event.type,
                "bytes": size,
                "at": event.at,
                "blob": blob,
            }
            for event, (_, _, _, blob, size) in zip(events, drafts, strict=True)
        ],
    )
    used = [*_costs(source, events), *_tokens(report, events[-1].seq)]
    for origin, kind, amount in used:
        yield SQL.add_usage(
            workspace=source.workspace,
            run=source.run,
            source=origin,
            kind=kind,
            user=source.user,
            amount=amount,
            now=now_ms,
        )


def _unheard(many: int) -> Notice:
    words = "a message was" if many == 1 else f"{many} messages were"
    return Notice(severity="warning", title=f"{words} not heard: the agent had ended before it came to that")


def _keep_changes(content: ContentStore, source: ReportSource, changes: ReportedChanges) -> Transaction[None]:
    """INV-E5."""
    plain = msgspec.json.encode(changes)
    if len(plain) > MAX_PAGE:  # most of it is escapes
        words = "; ".join(filter(None, (changes.incomplete, "the patch is too long to be kept")))
        plain = msgspec.json.encode(msgspec.structs.replace(changes, patch="", incomplete=words))
    yield from content.append(source.workspace, source.run, changes_stream(source.attempt), 1, 1, plain)


def changes_stream(attempt: int) -> str:
    return f"changes-{attempt}"


# What runners tell beside the agent's own words: an event each, as of sessions, and the member of the report that it is.
_TOLD: Final[Mapping[str, tuple[type[PermissionAsked | PermissionAnswered | UnaskedEffect], str]]] = {
    "permission_request": (PermissionAsked, "permission"),
    "permission_resolved": (PermissionAnswered, "permission"),
    "unasked_effect": (UnaskedEffect, "effect"),
}


def _decision(report: RunnerReport) -> Transaction[tuple[str, bytes, Span, str | None, int] | None]:
    """Make an event of what the agent asked, was answered, or did unasked; a person, or a supervisor, has their name in it."""
    if report.kind not in _TOLD:
        return None
    kind, member = _TOLD[report.kind]
    try:
        told = msgspec.json.decode(getattr(report, member) or b"", type=kind)
    except jsontext.READ_ERRORS:
        return None  # whoever takes permissions refuses it by name
    if isinstance(told, PermissionAnswered) and told.by_name is None:
        sort, _, who = told.by.partition(":")
        if sort in ("user", "token"):
            told = msgspec.structs.replace(told, by_name=(yield from names_of([who])).get(who))
    made = draft(told)
    return made.type, made.raw, WHOLE, None, len(made.raw)


def _line(raw: bytes, blob: str | None) -> tuple[str, bytes, Span, str | None, int]:
    kind, span = _read_update(raw)
    if blob is not None:
        return kind, _ELSEWHERE, WHOLE, blob, len(raw)
    return kind, raw, span, None, len(raw)


def _read_update(raw: bytes) -> tuple[str, Span]:
    try:
        update = jsontext.read_members(raw).get("update")
    except jsontext.READ_ERRORS:
        update = None
    if update is None:
        return update_type(raw), WHOLE
    return update_type(update), span_of(raw, update)


def _end(report: RunnerReport) -> PromptFinished:
    error = None
    if report.error is not None:
        error = RpcError(code=-32000, message=report.error.message, data=report.error.code)
    return PromptFinished(
        turn=report.prompt_id,
        stop_reason=report.stop_reason or "end_turn",
        error=error,
        usage=_usage_of(report),
    )


def _usage_of(report: RunnerReport) -> Usage | None:
    try:
        return _usage.decode(report.usage) if report.usage else None
    except jsontext.READ_ERRORS:
        return None


def _tokens(report: RunnerReport, seq: int) -> list[tuple[str, str, int]]:
    usage = _usage_of(report)
    if usage is None:
        return []
    amounts = {name: getattr(usage, name) for name in ("input_tokens", "output_tokens", "thought_tokens")}
    return [(f"event:{seq}", kind, amount) for kind, amount in amounts.items() if amount]


def _costs(source: ReportSource, events: Sequence[Event]) -> list[tuple[str, str, int]]:
    """The cost of an attempt so far: agents tell the sum, so the last one stands for it."""
    for event in reversed(events):
        if event.type == "usage-update":
            try:
                cost = msgspec.json.decode(event.payload, type=_CostUpdate).cost
            except jsontext.READ_ERRORS:
                continue
            if cost is not None and cost.currency.upper() == "USD" and 0 <= cost.amount < 10**9:
                return [(f"attempt:{source.attempt}", "cost_microusd", round(cost.amount * 1e6))]
    return []


class ReportKeeper:
    """Keeper of what runners of runs report, for whoever counts their reports."""

    def __init__(self, database: Database, content: ContentStore, blobs: Blobs) -> None:
        self._database = database
        self._content = content
        self._blobs = blobs

    async def prepare(
        self, workspace: str, runner_id: str, report: RunnerReport
    ) -> Callable[[int], Transaction[None]] | None:
        """Put aside what is long, and make what is written with the report; None for a heartbeat, and for a runner of no run."""
        if not report.notifications and not report.is_terminal and report.kind not in _TOLD:
            return None
        found = await self._database.read(rows, SQL.source(workspace=workspace, runner=runner_id))
        if not found:
            return None
        (row,) = found
        source = ReportSource(workspace, row["id"], row["attempt"], row["creator_user"])
        long = await put_long_lines(self._content, self._blobs, source, report)
        return lambda now_ms: keep_report(self._content, source, report, long, now_ms=now_ms)


# What was kept, read.


class RunEventStore:
    """Events of runs as they are in the database, with what is in blobs put back."""

    def __init__(self, database: Database, content: ContentStore, blobs: Blobs) -> None:
        self._database = database
        self._content = content
        self._blobs = blobs
        self._packs = EventPacks(database, content, blobs)

    async def read(
        self,
        workspace: str,
        run_id: str,
        after: int,
        up_to_bytes: int = MAX_PAGE,
        *,
        whole: bool = True,
        wanted: int | None = None,
    ) -> list[Event]:
        """The next events above that number, at least one if there is any, else as many as fit, with what is in blobs; none where there is
        nothing more, or where it is another's. Not `whole`: of a line that is a blob nothing but its type and its time. No further pack is
        opened where as many as `wanted` are there."""
        events = await self._stored(workspace, run_id, after, up_to_bytes, wanted)
        if whole and any(event.raw == _ELSEWHERE for event in events):
            bounds = {"first": events[0].seq, "last": events[-1].seq}
            found = await self._database.read(rows, SQL.blobs_of(workspace=workspace, run=run_id, **bounds))
            names = {row["seq"]: row["blob"] for row in found}
            found_whole, size = list[Event](), 0
            for event in events:
                if event.seq in names:
                    if found_whole and size > up_to_bytes:
                        break  # a page may name thousands of them
                    event = await self._whole(workspace, run_id, event, names[event.seq])
                found_whole.append(event)
                size += len(event.raw)
            return found_whole
        return events

    async def _stored(
        self, workspace: str, run_id: str, after: int, up_to_bytes: int, wanted: int | None
    ) -> list[Event]:
        """Read packs, then pages. What is packed between the two looks is in none of the pages, and found as a pack."""
        events = list[Event]()
        while True:
            pages = await self._content.read(workspace, run_id, EVENTS, after, up_to_bytes)
            if pages:
                for page in pages:
                    events += codec.decode(page.plain, after, _malformed)
                return events
            packed = await self._packs.read(workspace, run_id, after)
            if packed is None:
                return events
            events += codec.decode(packed, after, _malformed)
            after, up_to_bytes = events[-1].seq, up_to_bytes - len(packed)
            if up_to_bytes <= 0 or (wanted is not None and len(events) >= wanted):
                return events

    async def _whole(self, workspace: str, run_id: str, event: Event, name: str) -> Event:
        try:
            sealed = await self._blobs.read(name, 2 * MOST_BYTES)
        except NotFound:
            raise unreadable(run_id, name, "missing") from None
        raw = await self._content.open_apart(workspace, run_id, name, sealed)
        return msgspec.structs.replace(event, raw=raw, span=_read_update(raw)[1])

    async def changes(self, run: Run) -> ReportedChanges | None:
        """The changes that the newest attempt of a run reported; None where it has reported none."""
        pages = await self._content.read(run.workspace, run.id, changes_stream(run.attempt))
        return msgspec.json.decode(pages[0].plain, type=ReportedChanges) if pages else None

    async def metadata(self, workspace: str, run_id: str, after: int, limit: int) -> Rows:
        """The same, of which nothing is opened."""
        return await self._database.read(
            rows, SQL.events(workspace=workspace, run=run_id, after=after, limit=limit)
        )

    async def liveness(self, run: Run, now_ms: int) -> Liveness:
        events, last_at = list[Event](), None
        if run.state is RunState.RUNNING:
            place = {"workspace": run.workspace, "run": run.id}
            if last := await self._database.read(rows, SQL.last_events(**place, limit=TAIL)):
                first = min(row["seq"] for row in last)
                last_at = max(last[0]["changed_at"], *(row["at"] for row in last))
                events = await self.read(run.workspace, run.id, first - 1, whole=False)
        return liveness_of(run, events, now_ms=now_ms, last_at=last_at)


def _malformed(_line: bytes) -> None:
    raise StorageFailed(
        "cannot read events of a run: a page holds what is no event; restore it from a backup"
    )


class _CallUpdate(msgspec.Struct, rename="camel"):
    tool_call_id: str = ""
    title: str | None = None
    status: str | None = None
    raw_input: msgspec.Raw = msgspec.Raw(b"")


def liveness_of(run: Run, tail: Sequence[Event], *, now_ms: int, last_at: int | None = None) -> Liveness:
    """Tell by its progress how a run is. A process that lives is no sign of it. `last_at`: of the last event, which long ones may have left
    out of the tail, or of the run's last change."""
    if run.state is RunState.WAITING:
        return "waiting-on-you"
    if run.state is RunState.SUSPENDED:
        return "waiting-on-provider"
    if run.state in (RunState.PREPARING, RunState.STARTING, RunState.CANCELLING, RunState.CLEANING):
        return "working"
    if run.state is not RunState.RUNNING:
        return "idle"
    calls, at_work = _calls(
        [event for event in tail if event.at >= (run.started_at or 0)]
    )  # no earlier try's
    if len(calls) >= LOOP_LENGTH and len(set(calls[-LOOP_LENGTH:])) == 1:
        return "looping"
    last = last_at or (tail[-1].at if tail else run.started_at or run.created_at)
    if now_ms - last > HUNG_MS:
        return "hung"
    return "waiting-on-provider" if now_ms - last > SILENT_MS and not at_work else "working"


def _calls(tail: Sequence[Event]) -> tuple[list[tuple[str | None, bytes]], bool]:
    """Tool calls by what they do, and whether one has not ended yet."""
    calls, at_work = [], set[str]()
    for event in tail:
        if event.type not in ("tool-call", "tool-call-update"):
            continue
        try:
            call = msgspec.json.decode(event.brief, type=_CallUpdate)
        except jsontext.READ_ERRORS:
            continue
        if event.type == "tool-call":
            calls.append((call.title, bytes(call.raw_input)))
            at_work.add(call.tool_call_id)
        if call.status in ("completed", "failed"):
            at_work.discard(call.tool_call_id)
    return calls, bool(at_work)


# What is kept, followed.


class RunSource:
    """Events of one run, as a stream to read (`server.streaming.hub.StreamSource`). It ends with its run."""

    floor = 1
    deleted = False
    finished = False
    end_reason = "ended"

    def __init__(self, store: RunEventStore, workspace: str, run_id: str) -> None:
        self.key = key_of(workspace, run_id)
        self.name = run_id
        self.workspace = workspace
        self.head = 0
        self.ended = False
        self.news = asyncio.Event()
        self._store = store

    @property
    def visible(self) -> int:
        return self.head

    def since(self, seq: int) -> list[Event] | None:
        return [] if seq >= self.head else None

    async def read_older(self, after: int) -> list[Event]:
        return await self._store.read(self.workspace, self.name, after)

    def saw(self, head: int, *, ended: bool) -> None:
        if (head, ended) != (self.head, self.ended):
            self.head, self.ended = head, ended
            news, self.news = self.news, asyncio.Event()
            news.set()


def key_of(workspace: str, run_id: str) -> str:
    return f"run:{workspace}/{run_id}"


class RunFeed:
    """Watch over the runs that somebody reads at this server (INV-E4). `async with`."""

    def __init__(self, database: Database, store: RunEventStore) -> None:
        self._database = database
        self._store = store
        self._sources: WeakValueDictionary[str, RunSource] = WeakValueDictionary()
        self._tasks = TaskSet("legation-run-feed")
        self._watching = False

    async def __aenter__(self) -> RunFeed:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def find(self, name: str, workspace: str) -> RunSource | None:
        """Find the stream of a run; None where there is no such run of that workspace."""
        if not name.startswith("run_"):
            return None
        source = self._sources.get(key_of(workspace, name)) or RunSource(self._store, workspace, name)
        try:
            await self._look([source])
        except NotFound:
            return None
        self._sources[source.key] = source
        if not self._watching:
            self._watching = True
            self._tasks.start(self._watch())
        return source

    async def _watch(self) -> None:
        try:
            with self._database.listen(TOPIC) as heard:
                while self._sources:
                    heard.clear()
                    with suppress(StorageFailed, NotFound):  # a database that went away comes back
                        await self._look([*self._sources.values()])
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY):
                            await heard.wait()
        finally:
            self._watching = False

    async def _look(self, sources: Sequence[RunSource]) -> None:
        wanted = msgspec.json.encode([{"workspace": each.workspace, "id": each.name} for each in sources])
        heads = await self._database.read(rows, SQL.heads(runs=wanted.decode()))
        found = {key_of(row["workspace_id"], row["id"]): row for row in heads}
        for source in sources:
            row: Row | None = found.get(source.key)
            if row is not None:
                source.saw(row["head"] or 0, ended=row["state"] in TERMINAL)
            elif len(sources) == 1:
                raise NotFound("cannot find the run; check its id among yours")
