"""The callback contract of seed 000: signed, in order, in batches, until it is accepted."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from tests.runner.caller_server import Caller, Fault, Request
from tests.runner.rig import DONE, QUICK, chunk, reporting, texts
from tests.wire.naive_snapshot import assert_same, naive_of

from legation.errors import StorageFailed, TimedOut, Unauthenticated
from legation.runner.callback import CallbackRefused
from legation.runner.reporter import ReportTimes
from legation.store.log import EventLog
from legation.testing.clock import FakeClock
from legation.wire.event_types import PromptStarted, draft
from legation.wire.events import Draft, params_draft

NEVER = ReportTimes(window=3600, heartbeat=3600, answer=60, retry_first=0.01, retry_most=0.02)


def words(count: int) -> list[str]:
    return [f"word {number} " for number in range(count)]


async def test_what_is_said_arrives_in_batches_and_then_the_end(tmp_path: Path) -> None:
    async with Caller() as caller, reporting(tmp_path, caller) as rig:
        await rig.begin()
        rig.say(*words(120))
        await rig.finish()
        assert texts(caller.notifications) == words(120)
        assert [each["sequence"] for each in caller.taken] == [*range(1, len(caller.taken) + 1)]
        assert [len(each["notifications"]) for each in caller.taken[:2]] == [50, 50]
        last = caller.taken[-1]
        assert (last["kind"], last["stopReason"], last["notifications"]) == (
            "prompt_complete",
            "end_turn",
            [],
        )
        assert {each["kind"] for each in caller.taken[:-1]} == {"session_update"}
        for report in caller.taken:
            assert (report["runId"], report["taskId"]) == ("run_1", "task_1")
            assert (report["sandboxId"], report["promptId"]) == ("box_1", "prompt_1")
            assert report["sessionId"] == "agents-own"


async def test_a_snapshot_is_of_the_end_of_its_batch(tmp_path: Path) -> None:
    async with Caller() as caller, reporting(tmp_path, caller) as rig:
        rig.stream.append([chunk("of before")])
        await rig.begin()
        rig.stream.append([draft(PromptStarted(turn="t", prompt=()))])
        rig.say(*words(120))
        await rig.finish()
        events = [each async for each in rig.stream.subscribe(follow=False)][2:]
        seen = 0
        for report in caller.taken:
            seen += len(report["notifications"])
            assert_same(json.dumps(report["snapshot"]).encode(), naive_of(events[:seen]))


async def test_a_window_is_counted_from_the_first_notification(tmp_path: Path) -> None:
    clock = FakeClock()
    times = ReportTimes(heartbeat=3600)
    async with Caller() as caller, reporting(tmp_path, caller, clock=clock, times=times) as rig:
        await rig.begin()
        await caller.until(lambda each: len(each.beats) == 1)
        rig.say("one")
        await clock.until_sleeping(2)  # the heartbeat's and the window's
        clock.advance(0.7)
        rig.say("two")
        await rig.stream.durable(rig.stream.head)
        await asyncio.sleep(0)
        assert caller.taken == []
        clock.advance(0.051)
        await caller.until(lambda each: len(each.taken) == 1)
        assert texts(caller.notifications) == ["one", "two"]


async def test_fifty_are_sent_at_once_and_a_megabyte_too(tmp_path: Path) -> None:
    async with Caller() as caller, reporting(tmp_path, caller, times=NEVER) as rig:
        await rig.begin()
        rig.say(*words(50))
        await caller.until(lambda each: len(each.taken) == 1)
        assert len(caller.notifications) == 50
        rig.say(*["x" * 300_000] * 4)  # the fourth would make it more than a megabyte
        await caller.until(lambda each: len(each.taken) == 2)
        assert len(caller.taken[1]["notifications"]) == 3
        rig.say("y" * 1_500_000)  # goes alone, and what waits goes before it
        await caller.until(lambda each: len(each.taken) == 4)
        assert [len(each["notifications"]) for each in caller.taken[2:]] == [1, 1]
        assert len(caller.notifications[-1]["update"]["content"]["text"]) == 1_500_000


async def test_destroy_sends_what_waits(tmp_path: Path) -> None:
    async with Caller() as caller, reporting(tmp_path, caller, times=NEVER) as rig:
        await rig.begin()
        rig.say("one")
        await rig.reporter.destroy(rig.stream.head, 60)
        assert texts(caller.notifications) == ["one"]
        assert [each["kind"] for each in caller.taken] == ["session_update"]


def first_times(count: int, *faults: Fault) -> object:
    """Faults of the first so many attempts at each report."""
    seen: dict[int, int] = {}

    def fault(request: Request) -> Fault | None:
        sequence = request.report["sequence"]
        if not sequence:
            return None
        seen[sequence] = seen.get(sequence, 0) + 1
        return faults[seen[sequence] % len(faults)] if seen[sequence] <= count else None

    return fault


@pytest.mark.parametrize(
    "fault", [500, 503, 408, 429, "reset", "lost", pytest.param("hang", marks=pytest.mark.heavy)]
)
async def test_what_may_pass_is_tried_again_in_order(tmp_path: Path, fault: Fault) -> None:
    answer = 1.0 if fault == "hang" else 60.0
    times = ReportTimes(window=0.02, heartbeat=60, answer=answer, retry_first=0.01, retry_most=0.05)
    async with Caller(fault=first_times(2, fault)) as caller:  # type: ignore[arg-type]
        async with reporting(tmp_path, caller, times=times) as rig:
            await rig.begin()
            rig.say(*words(120))
            await rig.finish()
        assert texts(caller.notifications) == words(120)
        assert caller.taken[-1]["kind"] == "prompt_complete"
        attempts = [each for each in caller.requests if each.report["sequence"] == 1]
        assert len(attempts) == 3 or (fault == "hang" and len(attempts) > 3)
        assert len({each.body for each in attempts}) == 1
        assert len({each.headers["x-supervisor-nonce"] for each in attempts}) == len(attempts)
        if fault != "hang":
            assert caller.repeated == (2 * len(caller.taken) if fault == "lost" else 0)


async def test_401_ends_it(tmp_path: Path) -> None:
    async with Caller(fault=lambda each: 401 if each.report["sequence"] else None) as caller:
        async with reporting(tmp_path, caller) as rig:
            await rig.begin()
            rig.say("one")
            with pytest.raises(Unauthenticated, match="401"):
                await rig.finish()
            assert isinstance(await rig.reporter.broken, Unauthenticated)
        assert len([each for each in caller.requests if each.report["sequence"]]) == 1


async def test_401_of_a_heartbeat_ends_it_too(tmp_path: Path) -> None:
    async with Caller(fault=lambda _: 401) as caller, reporting(tmp_path, caller) as rig:
        async with asyncio.timeout(60):
            assert isinstance(await rig.reporter.broken, Unauthenticated)


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 302, 307])
async def test_other_refusals_fail_clearly(tmp_path: Path, status: int) -> None:
    async with Caller(fault=lambda each: status if each.report["sequence"] else None) as caller:
        async with reporting(tmp_path, caller) as rig:
            await rig.begin()
            rig.say("one")
            with pytest.raises(CallbackRefused, match=f"answered {status}"):
                await rig.finish()
        assert len([each for each in caller.requests if each.report["sequence"]]) == 1


async def test_heartbeats_begin_at_once_and_wait_for_nobody(tmp_path: Path) -> None:
    clock = FakeClock()
    times = ReportTimes(answer=60)

    def hangs(each: Request) -> Fault | None:
        return "hang" if each.report["sequence"] else None

    async with Caller(fault=hangs) as caller, reporting(tmp_path, caller, clock=clock, times=times) as rig:
        await caller.until(lambda each: len(each.beats) == 1)
        assert caller.beats[0]["sessionId"] is None
        await rig.begin()
        rig.say(*words(50))
        await caller.until(lambda each: len(each.requests) == 2)  # a report that hangs
        for count in (2, 3, 4):
            await clock.until_sleeping(1)
            clock.advance(10.0)
            await caller.until(lambda each, count=count: len(each.beats) == count)  # type: ignore[misc]
        assert [each["sequence"] for each in caller.beats] == [0, 0, 0, 0]
        assert caller.beats[-1]["sessionId"] == "agents-own"


async def test_what_was_not_accepted_is_sent_by_the_next_life_with_the_same_bodies(tmp_path: Path) -> None:
    lost: list[Request] = []

    def fault(request: Request) -> Fault | None:
        if request.report["sequence"] >= 2 and len(lost) < 3:
            lost.append(request)
            return "reset"
        return None

    never = ReportTimes(window=0.02, retry_first=3600, retry_most=3600, answer=60)
    async with Caller(fault=fault) as caller:
        async with reporting(tmp_path, caller, times=never) as rig:
            await rig.begin()
            rig.say(*words(120))
            await caller.until(lambda _: len(lost) == 1)
            rig.say("said and never reported")
            await rig.stream.durable(rig.stream.head)
        async with reporting(tmp_path, caller) as rig:
            await rig.reporter.follow_rest()
            end = DONE
            await rig.reporter.finish("prompt_failed", end, 0, 60)
        assert texts(caller.notifications) == [*words(120), "said and never reported"]
        assert [each["kind"] for each in caller.taken][-1] == "prompt_failed"
        assert [each["sequence"] for each in caller.taken] == [*range(1, len(caller.taken) + 1)]
        again = [each.body for each in caller.requests if each.report["sequence"] == 2]
        assert len(again) >= 2
        assert len(set(again)) == 1


@pytest.mark.heavy
async def test_a_terminal_report_that_nobody_takes_is_kept(tmp_path: Path) -> None:
    async with Caller(fault=lambda each: 503 if each.report["sequence"] else None) as caller:
        async with reporting(tmp_path, caller) as rig:
            await rig.begin()
            rig.say("one")
            with pytest.raises(TimedOut, match="did not accept report 1 of 2"):
                await rig.finish(limit=2)
        caller.fault = lambda _: None
        async with reporting(tmp_path, caller) as rig:
            assert rig.reporter.ended == DONE
            await rig.reporter.destroy(0, 60)
        assert [each["kind"] for each in caller.taken] == ["session_update", "prompt_complete"]


async def test_a_caller_that_takes_one_after_the_other_is_not_given_up_however_long_all_of_it_takes(
    tmp_path: Path,
) -> None:
    clock = FakeClock()

    def slow(request: Request) -> Fault | None:
        if request.report["sequence"]:
            clock.advance(40)
        return None

    times = ReportTimes(heartbeat=3600)
    async with Caller(fault=slow) as caller, reporting(tmp_path, caller, clock=clock, times=times) as rig:
        await rig.begin()
        rig.say(*words(300))
        await rig.finish(limit=100)
        assert len(caller.taken) == 7
        assert clock.monotonic() >= 280


async def test_it_ends_without_a_session(tmp_path: Path) -> None:
    async with Caller() as caller, reporting(tmp_path, caller) as rig:
        await rig.reporter.finish("prompt_failed", DONE, 0, 60)
        [report] = caller.taken
        assert (report["sessionId"], report["sequence"]) == (None, 1)
        assert report["snapshot"] == {"messages": [], "toolCalls": []}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "seed", [20, 21, *(pytest.param(each, marks=pytest.mark.slow) for each in range(22, 42))]
)
async def test_nothing_is_lost_or_doubled_whatever_the_caller_and_the_network_do(
    tmp_path: Path, seed: int
) -> None:
    """Refused, cut, not answered, answered and not heard, sent twice, overtaken by others, and silence in the middle."""
    chaos = random.Random(seed)
    faults: list[Fault | None] = [
        *(None, None, None, 500, 502, 408, 429, "reset", "lost", "hang", "twice", "late"),
    ]
    times = ReportTimes(window=0.01, heartbeat=0.05, answer=1.5, retry_first=0.005, retry_most=0.02)
    silent = False

    def fault(_: Request) -> Fault | None:
        return "hang" if silent else chaos.choice(faults)

    async with Caller(fault=fault) as caller:
        async with reporting(tmp_path, caller, times=times) as rig:
            await rig.begin()
            said = words(1500)
            for at in range(0, len(said), 30):
                rig.say(*said[at : at + 30])
                await asyncio.sleep(0)
                if at == 750:  # all attempts of two limits: a minute, where a limit is 30 seconds
                    before, silent = len([each for each in caller.requests if each.report["sequence"]]), True
                    await caller.until(
                        lambda each, before=before: (  # type: ignore[misc]
                            len([one for one in each.requests if one.report["sequence"]]) >= before + 3
                        )
                    )
                    silent = False
            await rig.finish()
        assert texts(caller.notifications) == said
        assert min(caller.repeated, caller.copies, caller.overtaken) > 0
        assert caller.taken[-1]["kind"] == "prompt_complete"


async def test_what_waits_is_read_from_the_disk_page_by_page_and_arrives_as_it_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the log is made small: most of it has to come from the file, while others are on their way."""
    monkeypatch.setattr("legation.store.stream.TAIL_EVENTS", 100)
    whole = EventLog.read
    monkeypatch.setattr(EventLog, "read", lambda log, stream, after: whole(log, stream, after, 20_000))
    chaos, back = random.Random(21), asyncio.Event()

    def fault(each: Request) -> Fault | None:
        if not back.is_set():
            return 503 if each.report["sequence"] else None
        return chaos.choice([None, None, None, 500, "lost"])

    async with Caller(fault=fault) as caller, reporting(tmp_path, caller) as rig:
        await rig.begin()
        said = words(3000)
        for at in range(0, len(said), 30):
            rig.say(*said[at : at + 30])
            await rig.stream.durable(rig.stream.head)
        assert rig.stream.is_behind_tail(1)
        back.set()
        await rig.finish()
        assert texts(caller.notifications) == said
        assert caller.repeated > 0
        events = [each async for each in rig.stream.subscribe(follow=False)]
        assert_same(json.dumps(caller.taken[-1]["snapshot"]).encode(), naive_of(events))


async def test_bytes_arrive_as_they_were_sent(tmp_path: Path) -> None:
    raw = b'{ "update":{"sessionUpdate":"of_tomorrow","x":[1,2.50,"\\u00e9 \\ud83d"]} ,"_meta":{"a":null}, "sessionId":"s"}'
    async with Caller() as caller, reporting(tmp_path, caller) as rig:
        await rig.begin()
        rig.stream.append([Draft("unrecognized-update", raw), params_draft("s", b'{"sessionUpdate":"plan"}')])
        await rig.finish()
        body = next(each.body for each in caller.requests if each.report["sequence"] == 1)
        assert b'"notifications":[%b,{"sessionId"' % raw in body


async def test_a_full_spool_leaves_no_room_until_the_caller_is_back(tmp_path: Path) -> None:
    back = asyncio.Event()
    down = lambda each: 503 if each.report["sequence"] and not back.is_set() else None  # noqa: E731
    async with Caller(fault=down) as caller, reporting(tmp_path, caller, limit=20_000) as rig:
        await rig.begin()
        rig.say(*["x" * 1000] * 30)
        async with asyncio.timeout(60):
            await rig.spool.is_full.wait()
            waits = asyncio.ensure_future(rig.log.room(rig.stream))
            await asyncio.sleep(0)
            assert not waits.done()
            back.set()
            await waits
        await rig.finish()
        assert len(caller.notifications) == 30
        assert rig.spool.waits == 0


async def test_what_is_not_on_the_disk_is_not_sent_until_the_disk_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-O1: a crash would leave a report that nobody could send again as it was. Then what is in memory is all there is."""
    times = ReportTimes(window=0.02, heartbeat=0.1, answer=60, retry_first=0.01)
    failing = asyncio.Event()
    told = lambda _: failing.set()  # noqa: E731
    async with Caller() as caller, reporting(tmp_path, caller, times=times, report=told) as rig:
        await rig.begin()
        rig.say("one")
        await caller.until(lambda each: len(each.taken) == 1)

        def full(*_: object) -> None:
            raise StorageFailed("cannot write: no space left; free some")

        monkeypatch.setattr("legation.store.jsonl.JsonlBackend.commit", full)
        rig.say("two")
        async with asyncio.timeout(60):
            await failing.wait()
        beats = len(caller.beats)
        await caller.until(lambda each: len(each.beats) > beats + 5)
        assert texts(caller.notifications) == ["one"]
        rig.reporter.give_up_on_disk()
        await rig.reporter.finish("prompt_failed", DONE, rig.stream.head, 60)
        assert texts(caller.notifications) == ["one", "two"]
        monkeypatch.undo()


def test_quick_times_are_those_of_tests() -> None:
    assert QUICK.window < ReportTimes().window == 0.75
    assert ReportTimes().heartbeat == 10.0
