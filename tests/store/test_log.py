"""The conformance suite: every backend behaves the same. INV-1 and INV-2 are those of `store/log.py`."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.backends import ALL, DURABLE, make_backend

from legation.errors import Conflict, InvalidParams, SessionClosed, StorageFailed
from legation.store import codec
from legation.store import stream as stream_module
from legation.store.codec import Op
from legation.store.log import SHARE_LIMIT, EventLog
from legation.store.stream import Stream, Subscription
from legation.wire.events import WHOLE, Draft, Event, span_of

BOUND = 20.0  # seconds a test waits for an event before it fails

Open = Callable[[], EventLog]


def drafts(*texts: str) -> list[Draft]:
    return [Draft("agent-message-chunk", b'{"text":"%b"}' % text.encode()) for text in texts]


def numbered(count: int, start: int = 1) -> list[Draft]:
    return drafts(*[f"event {number}" for number in range(start, start + count)])


async def history(stream: Stream, after: int = 0) -> list[Event]:
    return [event async for event in stream.subscribe(after, follow=False)]


async def take(stream: Stream, count: int, after: int = 0) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(BOUND):
        async for event in stream.subscribe(after):
            events.append(event)
            if len(events) == count:
                break
    return events


@pytest.fixture(params=ALL)
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


@pytest.fixture(params=DURABLE)
def open_durable(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


async def test_numbers_are_dense_from_one(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        first, second = stream.append(numbered(3)), stream.append(numbered(2, 4))
        assert (first.first_seq, first.last_seq, second.first_seq, second.last_seq) == (1, 3, 4, 5)
        await second
        assert [event.seq for event in await history(stream)] == [1, 2, 3, 4, 5]


async def test_numbers_and_events_survive_a_restart(open_durable: Open) -> None:
    async with open_durable() as log:
        await (await log.stream("ses_a")).append(numbered(3))
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(2, 4))
        events = await history(stream)
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert events[3].raw == b'{"text":"event 4"}'


async def test_appended_events_are_saved_when_the_log_closes(open_durable: Open) -> None:
    async with open_durable() as log:
        (await log.stream("ses_a")).append(numbered(1000))  # not awaited
    async with open_durable() as log:
        assert len(await history(await log.stream("ses_a"))) == 1000


async def test_reading_after_any_number_gives_the_exact_suffix(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(50))
        for after in (0, 1, 25, 49, 50, 99):
            assert [event.seq for event in await history(stream, after)] == list(range(after + 1, 51))


async def test_old_events_are_read_from_the_store_and_not_kept_in_memory(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "TAIL_EVENTS", 64)
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        for start in range(1, 5001, 50):
            await stream.append(numbered(50, start))
        assert len(stream._tail) <= 128
        assert stream.since(0) is None
        assert [event.seq for event in await history(stream, 17)] == list(range(18, 5001))


async def test_nothing_is_seen_before_it_is_committed(open_durable: Open) -> None:
    """INV-1"""
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        backend = log._backend
        committed: list[int] = []
        commit = backend.commit

        def note(ops: object) -> None:
            commit(ops)  # type: ignore[arg-type]
            committed.append(backend.lookup("ses_a").head)  # type: ignore[union-attr]

        backend.commit = note  # type: ignore[method-assign]
        for start in range(1, 200, 3):
            stream.append(numbered(3, start))
        async with asyncio.timeout(BOUND):
            async for event in stream.subscribe():
                assert event.seq <= max(committed)
                if event.seq == 198:
                    break


class Held:
    """A store that commits when it is told to."""

    def __init__(self, log: EventLog) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.groups: list[Sequence[Op]] = []
        self._commit = log._backend.commit
        log._backend.commit = self.commit  # type: ignore[method-assign]

    def commit(self, ops: Sequence[Op]) -> None:
        self.began.set()
        assert self.go.wait(BOUND)
        self._commit(ops)
        self.groups.append(ops)


async def test_who_reads_ahead_is_told_before_the_disk_has_it_and_others_are_not(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(3))
        held = Held(log)
        ahead, behind = stream.subscribe(1, ahead=True), stream.subscribe(1)
        stream.append(numbered(2, 4))
        early: list[int] = []

        async def read(subscription: Subscription, found: list[int], last: int) -> None:
            async for batch in subscription.batches():
                found += [event.seq for event in batch]
                if batch[-1].seq == last:
                    return

        async with asyncio.timeout(BOUND):
            await read(ahead, early, 5)
            assert early == [2, 3, 4, 5]
            assert stream.visible == 3
            late: list[int] = []
            following = asyncio.create_task(read(behind, late, 7))
            more = asyncio.create_task(read(ahead, early, 7))
            await asyncio.sleep(0)
            stream.append(numbered(2, 6))
            await more
            assert (early, late) == ([2, 3, 4, 5, 6, 7], [2, 3])
            held.go.set()
            await following
        assert late == early
        assert await history(stream, 5) == stream.since_ahead(5)


async def test_what_is_made_of_events_that_are_read_ahead_is_in_one_commit_with_them(
    open_durable: Open,
) -> None:
    async with open_durable() as log:
        said, told = await log.stream("ses_a"), await log.stream("acp:1")
        await told.append(numbered(1))
        held = Held(log)
        first = said.append(numbered(1))
        assert await asyncio.to_thread(held.began.wait, BOUND)  # on its way: the next ones gather behind it
        said.append(numbered(5, 2))
        subscription = said.subscribe(1, ahead=True)
        async with asyncio.timeout(BOUND):
            batch = await anext(subscription.batches())
            receipt = told.append([Draft("message", event.raw) for event in batch])
            held.go.set()
            await receipt
            await first
        assert [event.seq for event in batch] == [2, 3, 4, 5, 6]
        assert [{op.stream for op in group} for group in held.groups] == [{said.key}, {said.key, told.key}]


async def test_a_disk_that_works_lets_less_wait_than_one_that_fails(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one commit shows must fit into the tail; what a failing disk owes must not stop an agent soon."""
    monkeypatch.setattr("legation.store.log.FLIGHT_LIMIT", 1000)
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        held = Held(log)
        stream.append([Draft("x", b'"%b"' % (b"y" * 2000))])
        waiting = asyncio.create_task(log.room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        commit, held._commit = held._commit, _fails
        held.go.set()
        async with asyncio.timeout(BOUND):
            await waiting
        assert not log.healthy
        held._commit = commit


async def test_only_who_wrote_much_waits_for_it_to_be_stored(open_durable: Open) -> None:
    """One line of nearly a mebibyte after the other, each while the last is on its way, is what neighbours waited for."""
    async with open_durable() as log:
        wordy, quiet = await log.stream("ses_a"), await log.stream("ses_b")
        held = Held(log)
        wordy.append([Draft("x", b'"%b"' % (b"y" * SHARE_LIMIT))])
        waiting = asyncio.create_task(log.room(wordy))
        async with asyncio.timeout(BOUND):
            await log.room(quiet)
            await log.room()
        waits = not waiting.done()
        held.go.set()
        async with asyncio.timeout(BOUND):
            await waiting
        assert waits
        assert wordy.pending_bytes == 0


def _fails(ops: object) -> None:
    raise StorageFailed("cannot write; free some space")


async def test_a_subscriber_goes_from_the_past_to_the_present(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(5))
        reading = asyncio.create_task(take(stream, 8, after=2))
        await asyncio.sleep(0)
        for number in range(6, 11):
            stream.append(numbered(1, number))
            await asyncio.sleep(0)
        assert [event.seq for event in await reading] == list(range(3, 11))


async def test_streams_are_numbered_apart(open_log: Open) -> None:
    async with open_log() as log:
        one, two = await log.stream("ses_a"), await log.stream("ses_b")
        one.append(numbered(3))
        await two.append(numbered(2))
        assert [event.seq for event in await take(one, 3)] == [1, 2, 3]
        assert [event.seq for event in await take(two, 2)] == [1, 2]


async def test_any_stream_name_is_safe(open_log: Open) -> None:
    name = "../é /%2e\n\"'"
    async with open_log() as log:
        await (await log.stream(name)).append(numbered(1))
        assert [info.name for info in await log.streams()] == [name]


async def test_a_closed_stream_takes_no_more_and_stays_readable(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        stream.append(numbered(2))
        await stream.close()
        with pytest.raises(SessionClosed):
            stream.append(numbered(1))
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert stream.info().state == "closed"
        assert len(await history(stream)) == 2
        with pytest.raises(SessionClosed):
            stream.append(numbered(1))


async def test_a_deleted_stream_is_gone_for_good(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        stream.append(numbered(2))
        await stream.delete()
        assert await history(stream) == []
        assert await log.streams() == []
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert stream.info().state == "deleted"
        assert stream.info().head == 2  # its numbers are never given again
        for refused in (stream.replace(numbered(1)),):
            with pytest.raises(SessionClosed):
                await refused


async def test_a_tombstone_has_a_name_and_no_word_of_what_was_there(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(2))
        await stream.set_meta(b'{"title":"quiet"}')
        assert await log.deleted() == []
        deleting = asyncio.create_task(stream.delete())
        await asyncio.sleep(0)
        late = stream.set_meta(b'{"title":"loud"}') if not stream.deleted else None
        await deleting
        if late is not None:  # given when it was on its way to the disk: behind it
            await late
        assert (stream.deleted, stream.info().meta, stream.info().head) == (True, b"{}", 2)
        with pytest.raises(SessionClosed, match="it is deleted"):
            await stream.set_meta(b'{"title":"later"}')
        assert await log.deleted() == ["ses_a"]


async def test_a_tombstone_is_known_after_a_restart_in_its_workspace(open_durable: Open) -> None:
    async with open_durable() as log:
        for name, workspace in (("ses_a", "local"), ("ses_b", "other"), ("ses_c", "local")):
            stream = await log.stream(name, workspace)
            await stream.set_meta(b'{"title":"quiet"}')
            if name != "ses_c":
                await stream.delete()
    async with open_durable() as log:
        assert (await log.deleted(), await log.deleted("other")) == (["ses_a"], ["ses_b"])
        assert [info.name for info in await log.streams()] == ["ses_c"]
        assert (await log.stream("ses_a")).info().meta == b"{}"


async def test_deleting_ends_its_subscribers(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(1))
        reading = asyncio.create_task(take(stream, 99))
        await asyncio.sleep(0)
        await stream.delete()
        assert [event.seq for event in await reading] == [1]


async def test_a_replaced_history_goes_on_counting_and_moves_the_floor(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(5))
        live = asyncio.create_task(take(stream, 8))
        await asyncio.sleep(0)
        await stream.close()
        receipt = await stream.replace(numbered(3, 6))
        await receipt
        info = stream.info()
        assert (info.state, info.first_seq, info.head) == ("open", 6, 8)
        assert [event.seq for event in await live] == list(range(1, 9))  # a live subscriber sees both
        assert [event.seq for event in await history(stream)] == [6, 7, 8]  # a new one only the new history
        await stream.append(numbered(1, 9))
        assert [event.seq for event in await history(stream, 7)] == [8, 9]


async def test_a_replaced_history_survives_a_restart(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(5))
        await stream.replace(numbered(2, 6))
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert (stream.info().first_seq, stream.info().head) == (6, 7)
        assert [event.raw for event in await history(stream)] == [
            b'{"text":"event 6"}',
            b'{"text":"event 7"}',
        ]


async def test_a_change_under_way_refuses_writes_and_other_changes(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        closing = asyncio.create_task(stream.close())
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            stream.append(numbered(1))
        with pytest.raises(Conflict):
            await stream.delete()
        await closing


async def test_meta_is_kept_apart_from_the_events(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(numbered(1))
        await stream.set_meta(b'{"cwd":"/repo"}')
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert stream.info().meta == b'{"cwd":"/repo"}'
        assert len(await history(stream)) == 1


async def test_events_are_taken_while_meta_is_being_written(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        writing = stream.set_meta(b"{}")
        await stream.append(numbered(1))
        await writing


async def test_meta_is_what_was_given_last_and_a_write_names_what_it_replaces(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.set_meta(b'{"a":1}')
        writing = stream.set_meta(b'{"a":2}', replaces=b'{"a":1}')
        # Whoever reads it now does not go on from the old one.
        assert stream.meta == stream.info().meta == b'{"a":2}'
        with pytest.raises(Conflict, match="changed meanwhile"):
            stream.set_meta(b'{"a":1,"b":1}', replaces=b'{"a":1}')
        await writing
        await stream.set_meta(b'{"a":2,"b":1}', replaces=b'{"a":2}')
        assert stream.meta == b'{"a":2,"b":1}'


async def test_each_workspace_has_streams_of_its_own(open_log: Open) -> None:
    async with open_log() as log:
        theirs, ours = await log.stream("ses_a", "acme"), await log.stream("ses_a", "local")
        await theirs.append(numbered(2))
        await ours.append(numbered(1))
        assert (theirs.name, ours.name) == ("ses_a", "ses_a")
        assert (theirs.head, ours.head) == (2, 1)
        for workspace, head in (("acme", 2), ("local", 1)):
            assert [(info.name, info.head) for info in await log.streams(workspace)] == [("ses_a", head)]
        assert await log.find("ses_a", "other") is None


async def test_each_workspace_finds_its_streams_again(open_durable: Open) -> None:
    async with open_durable() as log:
        for workspace, count in (("acme", 2), ("local", 1)):
            await (await log.stream("ses_a", workspace)).append(numbered(count))
    async with open_durable() as log:
        assert (await log.stream("ses_a", "acme")).head == 2
        assert (await log.stream("ses_a", "local")).head == 1


async def test_no_name_reaches_into_another_workspace(open_log: Open) -> None:
    async with open_log() as log:
        with pytest.raises(InvalidParams):
            await log.stream("acme\x1fses_a", "local")
        assert await log.find("acme\x1fses_a", "local") is None


HOSTILE = [
    b'{"lone":"\\ud83d"}',
    b'{"big":1208925819614629174706176}',
    b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"invalid":"\xff\xfe"}',
    b'{"tricky":",\\"raw\\":1}","raw":{"raw":2}}',
    b"{}",
    b'{"spaced" : [ 1.0e5 , -0 ]  }\t',
    b'{"nul":"\x00"}',
]


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: raw[:16].decode(errors="replace"))
async def test_raw_bytes_come_back_as_they_were(open_log: Open, raw: bytes) -> None:
    for native in (b"", b"native \xff line", 'native "text" é'.encode()):
        async with open_log() as log:
            stream = await log.stream("ses_a")
            await stream.append([Draft("unrecognized-update", raw, native)])
            event = (await history(stream))[-1]
            assert (event.raw, event.native) == (raw, native)
        async with open_log() as log:
            again = await history(await log.stream("ses_a"))
            assert all(event.raw == raw for event in again)
            if again:
                assert again[-1].native == native


@pytest.mark.parametrize(
    "params",
    [
        b'{"sessionId":"s","update":%b}',
        b'{ "_meta":{"update":[9,9]}, "update":%b,"sessionId":"s","x":"\xff"}',
    ],
)
async def test_params_come_back_with_their_update_in_its_place(open_log: Open, params: bytes) -> None:
    update = b'{"sessionUpdate":"plan","update":{"raw":"\\",\\"update\\":[1,1]"}}'
    raw = params % update
    draft = Draft("plan", raw, b"line", span_of(raw, update))
    async with open_log() as log:
        await (await log.stream("ses_a")).append([draft, Draft("plan", update)])
        found = await history(await log.stream("ses_a"))
        assert [(event.raw, event.payload) for event in found] == [(raw, update), (update, update)]
    async with open_log() as log:
        again = await history(await log.stream("ses_a"))
        assert [(event.raw, event.payload) for event in again] in (
            [(raw, update), (update, update)],
            [],  # the memory's
        )


def test_a_row_of_an_update_alone_is_read_for_ever() -> None:
    """As every Legation before version 4 of the contract wrote it; whatever an agent had put into it."""
    for raw in (
        b'{"sessionUpdate":"plan","entries":[]}',
        b'{"sessionUpdate":"plan","sessionId":"s","update":{"sessionUpdate":"notice"}}',
    ):
        event = codec.decode_line(b'{"seq":7,"at":1,"type":"plan","raw":%b}' % raw)
        assert (event.raw, event.payload, event.span) == (raw, raw, WHOLE)
        assert codec.encode([event]) == b'{"seq":7,"at":1,"type":"plan","raw":%b}\n' % raw


@pytest.mark.parametrize("span", [b"[0,1]", b"[1,0]", b"[-1,1]", b"[1,99]", b"[5,3]", b"[1]", b'"x"'])
def test_a_row_whose_update_is_not_in_it_is_malformed(span: bytes) -> None:
    with pytest.raises(ValueError):
        codec.decode_line(b'{"seq":7,"at":1,"type":"plan","update":%b,"raw":{"a":1}}' % span)


def references(stream: str, *numbers: int) -> list[Draft]:
    return [Draft(codec.REFERENCE, b"%b,%d]" % (codec.reference(stream), number)) for number in numbers]


async def test_references_come_back_one_by_one_from_any_number_on(open_durable: Open) -> None:
    drafted = [
        *references("ses_a", *range(5, 105)),
        *numbered(1),
        *references("ses_a", 105, 107, 108, 3),
        *references('ses "b"', 4, 5),
    ]
    async with open_durable() as log:
        await (await log.stream("acp:1")).append(drafted)
    async with open_durable() as log:
        stream = await log.stream("acp:1")
        for after in (0, 1, 57, 99, 100, 101, 104, 106):
            found = await history(stream, after)
            assert [event.seq for event in found] == list(range(after + 1, len(drafted) + 1))
            assert [(event.type, event.raw) for event in found] == [
                (draft.type, draft.raw) for draft in drafted[after:]
            ]


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["acp-ref", "plan"]), st.integers(0, 1), st.integers(0, 3), st.booleans()),
        max_size=30,
    ),
    after=st.integers(0, 32),
)
def test_a_page_of_references_says_what_its_rows_said(
    rows: list[tuple[str, int, int, bool]], after: int
) -> None:
    events, number = list[Event](), 0
    for seq, (type_, at, stream, follows) in enumerate(rows, 1):
        number = number + 1 if follows else 7
        events.append(Event(seq, at, type_, b'["ses_%d",%d]' % (stream, number)))
    malformed = list[bytes]()
    assert codec.decode(codec.encode_page(events), after, malformed.append) == events[after:]
    assert malformed == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":7,"at":1,"type":"acp-ref","run":2,"raw":["ses_a"]}',
        b'{"seq":7,"at":1,"type":"acp-ref","run":0,"raw":["ses_a",1]}',
        b'{"seq":7,"at":1,"type":"acp-ref","run":1000000000000,"raw":["ses_a",1]}',
        b'{"seq":7,"at":1,"type":"acp-ref","run":"2","raw":["ses_a",1]}',
    ],
)
def test_a_reference_that_is_none_is_reported_and_skipped(line: bytes) -> None:
    malformed = list[bytes]()
    assert codec.decode(line + b"\n", 0, malformed.append) == []
    assert malformed == [line]


@pytest.mark.parametrize("raw", [b"{}", b'["ses_a"]', b'["ses_a",01]', b'["ses_a", 1]', b"[1,2]"])
async def test_what_is_no_reference_is_refused_as_one(open_log: Open, raw: bytes) -> None:
    async with open_log() as log:
        with pytest.raises(InvalidParams, match="cannot store a reference"):
            (await log.stream("acp:1")).append([Draft(codec.REFERENCE, raw)])


@pytest.mark.parametrize("draft", [Draft("x", b""), Draft("x", b"1\n2"), Draft('x"', b"1"), Draft("", b"1")])
async def test_what_would_not_come_back_is_refused_and_takes_no_number(open_log: Open, draft: Draft) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        with pytest.raises(InvalidParams, match="cannot store"):
            stream.append([*numbered(1), draft])
        await stream.append(numbered(1))
        assert [event.seq for event in await history(stream)] == [1]


async def test_a_cancelled_subscriber_leaves_nothing_behind(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        reading = asyncio.create_task(take(stream, 1))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert not stream.news._waiters
        await stream.append(numbered(1))


async def test_closing_the_log_ends_subscribers_after_the_last_event(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        reading = asyncio.create_task(take(stream, 99))
        await asyncio.sleep(0)
        stream.append(numbered(3))
    assert [event.seq for event in await reading] == [1, 2, 3]


async def test_a_second_owner_is_refused_with_the_first_ones_pid(open_durable: Open) -> None:
    async with open_durable():
        with pytest.raises(Conflict, match=r"process \d+ owns it"):
            async with open_durable():
                pass


async def test_one_commit_serves_all_that_waits(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        commits = 0
        commit = log._backend.commit

        def count(ops: object) -> None:
            nonlocal commits
            commits += 1
            commit(ops)  # type: ignore[arg-type]

        log._backend.commit = count  # type: ignore[method-assign]
        receipts = [stream.append(numbered(1, number)) for number in range(1, 2001)]
        for receipt in receipts:
            await receipt
        assert commits < 200


async def test_five_hundred_waiters_are_acknowledged(open_durable: Open) -> None:
    async with open_durable() as log:
        streams = [await log.stream(f"ses_{number}") for number in range(20)]

        async def produce(stream: Stream) -> None:
            for _ in range(3):
                await stream.append(numbered(1))

        await asyncio.gather(*[produce(stream) for stream in streams for _ in range(25)])
        assert {stream.info().head for stream in streams} == {75}


async def test_a_reserved_place_keeps_its_number_and_what_is_behind_it_waits(open_log: Open) -> None:
    async with open_log() as log:
        stream, other = await log.stream("ses_a"), await log.stream("ses_b")
        stream.append(drafts("first"))
        place = stream.reserve(drafts("unknown")[0])
        behind = stream.append(drafts("third", "fourth"))
        assert (behind.first_seq, stream.head) == (3, 4)
        await other.append(drafts("apart"))  # nobody else waits
        await stream.durable(1)
        ahead = stream.subscribe(ahead=True)
        assert [event.seq async for event in first(ahead)] == [1]
        assert [event.seq for event in await history(stream)] == [1]
        place.fill(drafts("second")[0])
        place.fill(drafts("too late")[0])
        await behind
        assert [event.raw for event in await history(stream)] == [
            draft.raw for draft in drafts("first", "second", "third", "fourth")
        ]


async def first(subscription: Subscription) -> AsyncIterator[Event]:
    """What is there at once."""
    async for batch in subscription.batches():
        for event in batch:
            yield event
        return


async def test_places_are_filled_in_any_order_and_shown_in_theirs(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        one, two = stream.reserve(drafts("?")[0]), stream.reserve(drafts("?")[0])
        last = stream.append(drafts("3"))
        two.fill(drafts("2")[0])
        assert await history(stream) == []
        one.fill(drafts("1")[0])
        await last
        assert [(event.seq, event.raw) for event in await history(stream)] == [
            (number, draft.raw) for number, draft in enumerate(drafts("1", "2", "3"), 1)
        ]


async def test_what_is_done_to_a_stream_waits_behind_a_place_as_well(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        place = stream.reserve(drafts("?")[0])
        closing = asyncio.create_task(stream.close())
        noting = stream.set_meta(b'{"noted":true}')
        await asyncio.sleep(0)
        assert not closing.done()
        place.fill(drafts("1")[0])
        async with asyncio.timeout(BOUND):
            await closing
            await noting
        assert (len(await history(stream)), stream.closed) == (1, True)
        with pytest.raises(SessionClosed):
            stream.reserve(drafts("?")[0])


async def test_a_log_that_closes_takes_what_is_reserved_as_it_is(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        stream.reserve(drafts("1")[0])
        stream.append(drafts("2"))
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert [event.raw for event in await history(stream)] == [d.raw for d in drafts("1", "2")]
        assert stream.append(drafts("3")).first_seq == 3
