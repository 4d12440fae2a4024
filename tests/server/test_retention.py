"""What is old goes, and nothing else: by hand or by a setting, in small slices, beside a server at work."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.installation import open_installation
from tests.approvals.test_trace import allowed
from tests.server.rig import BOTH, bearer
from tests.server.sessions.session_client import SessionClient, open_session_client
from tests.server.test_access_table import an_approval
from tests.store.database.databases import make, opened

from legation.approvals.trace import cut
from legation.approvals.trace.cut import DAY_MS
from legation.approvals.trace.step import ContentName, StepDraft, StepKind, TracedCall
from legation.server import retention
from legation.store.database.sqlite import SqliteDatabase, connect
from legation.store.sizes import KINDS, MOST_SAMPLES, Sample, growth, history, keep
from legation.wire.api.server import PruneKind

pytestmark = pytest.mark.heavy

DAY = 86_400.0
MIB = 2**20


@pytest.fixture(params=BOTH)
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    """Five sessions of an earlier server, which nobody used for a hundred days."""
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            for name in ("a", "b", "c", "over", "waits"):
                await talk.created(name)
                await talk.played(name, f"say {name}", "write kept.txt x")
            assert (await talk.call("POST", "/v1/sessions/over/terminate")).status_code == 204
        dialect = request.param
        if dialect == "postgres":  # the sessions' log is the machine's, whatever the database
            async with open_session_client(tmp_path, request, dialect) as talk:
                talk.rig.clock.advance(100 * DAY)
                yield talk
            return
        async with open_session_client(tmp_path, request) as talk:
            talk.rig.clock.advance(100 * DAY)
            yield talk


async def prune(talk: SessionClient, *kinds: str, age: str = "90d", dry: bool = False) -> dict[str, Any]:
    """The last line of each kind."""
    body = {"olderThan": age, "kinds": list(kinds) or None, "dryRun": dry}
    answer = await talk.call("POST", "/v1/prune", body)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(each) for each in answer.text.splitlines()]
    assert [each["problem"] for each in lines if each["problem"]] == []
    return {each["kind"]: each for each in lines if each["done"]}


async def sessions(talk: SessionClient) -> set[str]:
    listed = (await talk.call("GET", "/v1/sessions")).json()["sessions"]
    return {each["sessionId"] for each in listed}


def folders(talk: SessionClient) -> set[str]:
    return {each.name for each in (talk.rig.services.settings.data_dir / "work/local").iterdir()}


async def chains(talk: SessionClient) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = (await talk.call("GET", "/v1/trace/verify")).json()
    assert [each["problems"] for each in reports if each["problems"]] == []
    return reports


async def test_sessions_that_nobody_used_go_and_those_at_work_stay(old: SessionClient) -> None:
    await old.played("b", "say still used")
    waiting = await an_approval(old.rig, session_id="waits")
    would = await prune(old, "sessions", dry=True)
    assert (would["sessions"]["count"], would["sessions"]["bytes"] > 0) == (3, True)
    assert len(await sessions(old)) == 5
    went = await prune(old, "sessions")
    assert (went["sessions"]["count"], went["sessions"]["of"]) == (3, 3)
    assert await sessions(old) == folders(old) == {"b", "waits"}
    gone = await old.call("GET", "/v1/sessions/a")
    assert (gone.status_code, gone.json()["detail"]) == (
        404,
        "cannot find session a: it was deleted; start another",
    )
    assert (await old.create("a")).status_code == 409  # its name is not used again
    [approval] = await old.rig.rows(f"select status from approval where id = '{waiting.id}'")
    assert approval["status"] == "pending"
    audited = await old.rig.rows("select action, target, details from audit")
    assert sorted(row["target"] for row in audited if row["action"] == "session.deleted") == [
        "a",
        "c",
        "over",
    ]
    [pruned] = [row for row in audited if row["action"] == "data.pruned"]
    assert (pruned["target"], json.loads(pruned["details"])["count"]) == ("sessions", 3)
    assert (await old.played("b", "say on"))["stopReason"] == "end_turn"
    assert await prune(old, "sessions") == await prune(old, "sessions", dry=True)  # there is nothing left


async def test_one_that_is_used_meanwhile_is_left(
    old: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was at rest when it was looked for."""
    service = old.rig.services.sessions
    real = service.at_rest

    async def used_next(workspace: str, before: int) -> Any:
        found = await real(workspace, before)
        monkeypatch.undo()
        await old.played("a", "say again")
        return found

    before = old.rig.clock.now_ms() - 90 * DAY_MS
    by = await old.rig.principal(old.rig.people["owner"])
    monkeypatch.setattr(service, "at_rest", used_next)
    assert {*await service.at_rest("local", before)} == {"a", "b", "c", "over", "waits"}
    assert not await service.delete_at_rest(by, "a", before)
    assert await service.delete_at_rest(by, "c", before)
    assert not await service.delete_at_rest(by, "c", before)  # another was before us
    assert await sessions(old) == {"a", "b", "over", "waits"}


async def test_work_folders_go_of_sessions_that_are_over_and_of_none(old: SessionClient) -> None:
    work = old.rig.services.settings.data_dir / "work/local"
    (work / "nobodys").mkdir()
    (work / "file").write_text("not ours")
    would = await prune(old, "work", dry=True)
    both = await prune(old, "work", "sessions", dry=True)
    assert (would["work"]["count"], both["work"]["count"]) == (
        1,
        0,
    )  # the others are of now, or go with the session
    went = await prune(old, "work")
    assert went["work"]["count"] == 1
    assert folders(old) == {"a", "b", "c", "waits", "nobodys", "file"}
    assert (await old.info("over"))["status"] == "closed"  # what happened in it can be read
    assert await old.heard("over") == "over"
    assert not [*(old.rig.services.settings.data_dir / "discarded").iterdir()]
    # One that was changed long ago and has no session: `now` of the rig is in the past of the disk.
    old.rig.clock.advance(20 * 365 * DAY)
    assert (await prune(old, "work"))["work"]["count"] == 1
    assert folders(old) == {"a", "b", "c", "waits", "file"}


async def test_a_folder_that_another_session_works_in_stays(old: SessionClient) -> None:
    stream, source = await old.rig.services.log.stream("f"), await old.rig.services.log.stream("over")
    await stream.set_meta(source.meta)
    assert (await prune(old, "work"))["work"]["count"] == 0
    assert "over" in folders(old)


async def test_a_folder_that_another_begins_to_work_in_meanwhile_stays(old: SessionClient) -> None:
    """Nobody did when it was looked for; it may take long until its turn comes."""
    services, before = old.rig.services, old.rig.clock.now_ms() - 90 * DAY_MS
    work = retention.WorkFolders(services.sessions, services.settings.data_dir)
    [folder] = await work.at_rest("local", before)
    assert folder.name == "over"
    stream, source = await old.rig.services.log.stream("f"), await old.rig.services.log.stream("over")
    await stream.set_meta(source.meta)
    assert not await work.remove("local", folder, before)
    assert "over" in folders(old)


async def history_of(talk: SessionClient, calls: int) -> None:
    """Calls of a hundred days ago: three steps each."""
    at = talk.rig.clock.now_ms() - 100 * DAY_MS
    for _ in range(0, calls, 100):
        drafts = [draft for _ in range(min(calls, 100)) for draft in allowed()]
        await talk.rig.services.ledger.append("local", drafts, at)


async def test_traces_are_cut_and_verify(old: SessionClient) -> None:
    former = await prune(old, "traces", dry=True)  # what the sessions' agents did
    contents, steps = (300 + former["content"]["count"], 900 + former["traces"]["count"])
    await history_of(old, 300)
    await old.rig.services.ledger.append("local", allowed(), old.rig.clock.now_ms())
    content = await prune(old, "content")
    assert content["content"]["count"] == contents
    [report] = await chains(old)
    assert (report["first"], report["purged"]) == (1, contents)
    would = await prune(old, "traces", dry=True)
    went = await prune(old, "traces")
    assert went["traces"]["count"] == would["traces"]["count"] == steps
    [report] = await chains(old)
    assert report["first"] == steps + 1
    assert report["since"].startswith("20")
    traces = (await old.call("GET", "/traces?limit=500")).json()
    assert len(traces) == 1
    assert await old.rig.rows("select * from content_key where purged_at is not null") == []


async def test_without_a_choice_steps_of_the_trace_stay(old: SessionClient) -> None:
    await history_of(old, 2)
    assert (await prune(old)).keys() == {"sessions", "work", "content"}
    [report] = await chains(old)
    assert report["first"] == 1


async def test_a_live_session_goes_on_between_slices(
    old: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices are small, by count, and others come in between: a whole turn, here."""
    monkeypatch.setattr(cut, "SLICE_ROWS", 30)
    await history_of(old, 40)
    would = await prune(old, "sessions", "work", "content", "traces", dry=True)
    by = await old.rig.principal(old.rig.people["owner"])
    kinds: list[PruneKind] = ["sessions", "work", "content", "traces"]
    before: dict[str, int] = {}
    slices = []
    async with aclosing(old.rig.services.retention.prune(by, kinds, 90 * DAY)) as told:
        async for each in told:
            if not before:
                await old.created("live")
            assert (await old.played("live", "say on"))["stopReason"] == "end_turn"
            slices.append((each.kind, each.count - before.get(each.kind, 0)))
            before[each.kind] = each.count
    assert before == {kind: each["count"] for kind, each in would.items()}
    assert (before["sessions"], before["traces"] >= 120) == (5, True)
    assert {size for kind, size in slices if kind == "sessions"} <= {0, 1}
    assert max(size for _, size in slices) == 30
    assert await sessions(old) == {"live"}
    await chains(old)


async def test_it_may_be_broken_off_between_two_slices_and_done_again(
    old: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "SLICE_ROWS", 30)
    await history_of(old, 40)
    by = await old.rig.principal(old.rig.people["owner"])
    kinds: list[PruneKind] = ["sessions", "content", "traces"]
    done = False
    while not done:
        told = old.rig.services.retention.prune(by, kinds, 90 * DAY)
        progress = [await anext(told, None) for _ in range(2)]
        await told.aclose()  # as where its caller goes away
        assert not old.rig.services.retention.pruning.locked()
        await chains(old)
        assert folders(old) == await sessions(old)
        done = all(each is None or each.done for each in progress)
    went = await prune(old, *kinds)
    assert (went["sessions"]["count"], await sessions(old)) == (0, set())
    [report] = await chains(old)
    assert report["first"] > 120


async def test_of_two_at_once_one_is_refused(old: SessionClient) -> None:
    async with old.rig.services.retention.pruning:
        refused = await old.call("POST", "/v1/prune", {"olderThan": "90d"})
    assert refused.status_code == 409
    assert "another prune is under way" in refused.json()["detail"]
    assert (await prune(old, "work", dry=True))["work"]["done"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"olderThan": "soon"}, "$.olderThan"),
        ({"olderThan": "-1d"}, "$.olderThan"),
        ({"olderThan": "90"}, "$.olderThan"),  # days, to whoever writes it
        ({"olderThan": "90d", "kinds": ["logs"]}, "$.kinds[0]"),
        ({}, "$.olderThan"),
    ],
)
async def test_a_mistake_is_told_and_nothing_goes(
    talk_of_now: SessionClient, body: dict[str, object], path: str
) -> None:
    refused = await talk_of_now.call("POST", "/v1/prune", body)
    assert (refused.status_code, refused.json()["data"]["path"]) == (400, path)


@pytest.fixture
async def talk_of_now(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
        yield talk


async def test_nothing_goes_by_itself_unless_it_is_set(old: SessionClient) -> None:
    await history_of(old, 2)
    await old.rig.services.retention.keep()
    assert len(await sessions(old)) == 5
    assert len(folders(old)) == 5
    assert (await old.rig.rows("select count(*) as n from trace_content"))[0]["n"] > 0


async def test_settings_keep_each_kind_as_long_as_they_say(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kept = {"keep_sessions": "90d", "keep_work": "30d", "keep_content": "10d", "keep_traces": "20d"}
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            for name in ("a", "over"):
                await talk.created(name)
                await talk.played(name, "say hello")
            await talk.call("POST", "/v1/sessions/over/terminate")
            await talk.rig.services.ledger.append("local", allowed(), talk.rig.clock.now_ms())
        async with open_session_client(tmp_path, request, **kept) as talk:
            clock, rows = talk.rig.clock, talk.rig.rows

            async def until_day(day: float) -> None:
                """The upkeep itself does it, when its time comes."""
                clock.advance(day * DAY)
                async with talk.rig.services.retention.pruning:  # nobody is at it
                    pass

            async def gone(table: str) -> None:
                while (await rows(f"select count(*) as n from {table}"))[0]["n"]:
                    clock.advance(retention.INTERVAL)
                    await asyncio.sleep(0)

            await until_day(11)
            await gone("trace_content")
            assert (await chains(talk))[0]["first"] == 1
            await until_day(10)
            await gone("trace_step where step <> 'checkpoint'")
            assert folders(talk) == {"a", "over"}
            await until_day(10)
            while folders(talk) != {"a"}:
                clock.advance(retention.INTERVAL)
                await asyncio.sleep(0)
            assert await sessions(talk) == {"a", "over"}
            await until_day(60)
            while await sessions(talk):
                clock.advance(retention.INTERVAL)
                await asyncio.sleep(0)
            await chains(talk)
            by = {row["actor"] for row in await rows("select actor from audit where action = 'data.pruned'")}
            assert by == {"retention"}


async def test_free_space_of_the_database_goes_back_in_few_transactions(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(110), opened(make("sqlite", tmp_path, request)) as database:
        installation = await open_installation(database)
        contents: dict[ContentName, object] = {"result": "x" * 100_000}
        call = TracedCall(trace_id="0" * 31 + "1", agent="a", tool="t")
        drafts = [StepDraft(step=StepKind.RETURNED, call=call, contents=contents)] * 50
        await installation.ledger.append("local", drafts, 1)
        async for _ in cut.purge(database, "local", DAY_MS, DAY_MS):
            pass
        free, transactions, real = await database.read(retention._free), 0, database.transact

        async def counting(*args: Any) -> Any:
            nonlocal transactions
            transactions += 1
            return await real(*args)

        monkeypatch.setattr(database, "transact", counting)
        await retention._give_back(database)
        assert free > 50 * 100_000
        assert await database.read(retention._free) == 0
        assert transactions <= free // (retention.GIVE_BACK * 4096) + 2


# Sizes.


async def sizes(talk: SessionClient) -> dict[str, Any]:
    """As `legation status` has them, with the token of the server itself."""
    answer = await talk.call("GET", "/v1/sizes", headers=bearer(talk.rig.services.own_token.reveal()))
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_sizes_are_of_all_workspaces_and_for_whoever_runs_them(old: SessionClient) -> None:
    """The owner of one of them sees what would go of it, and no total of others."""
    assert (await old.call("GET", "/v1/sizes")).status_code == 403
    assert (await prune(old, "sessions", age="1m", dry=True))["sessions"]["count"] == 5
    assert (await sizes(old))["kinds"]


async def test_sizes_are_told_by_kind_and_kept_for_a_week(old: SessionClient) -> None:
    told = await sizes(old)
    kinds = {each["kind"]: each["bytes"] for each in told["kinds"]}
    assert kinds.keys() == KINDS.keys()
    for kind in ("sessions", "traces", "content", "database", "work", "agents"):
        assert kinds[kind] > 0, kind
    assert (told["fullInDays"], told["growsPerDay"]) == (None, None)
    data_dir = old.rig.services.settings.data_dir
    assert len(history(data_dir)) == 1
    for _ in range(MOST_SAMPLES + 10):
        old.rig.clock.advance(3600.0)
        before = old.rig.clock.now_ms()
        sample = Sample(before, {"sessions": 1}, 1)
        keep(data_dir, sample)
    kept = history(data_dir)
    assert len(kept) <= MOST_SAMPLES
    assert kept[-1].at - kept[0].at <= 7 * DAY_MS


async def test_a_sample_gives_way_to_scrubbing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the log cannot be emptied, and whoever reads or writes waits for the sample meanwhile."""
    monkeypatch.setattr(retention, "_PROGRESS", 1)
    looks, goes_on = threading.Event(), threading.Event()
    meanwhile: list[int] = []

    class Stop(threading.Event):
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            if database.scrubbing.locked():
                meanwhile.append(self.asked)
            elif self.asked == 10:  # it is in the middle of its look
                looks.set()
                assert goes_on.wait(60)
            return False

    async with SqliteDatabase(tmp_path / "x.db") as database:
        await database.migrate()
        tables = asyncio.create_task(asyncio.to_thread(retention._tables_of, database, Stop()))
        assert await asyncio.to_thread(looks.wait, 60)
        with database.scrubbing:
            goes_on.set()
            with closing(connect(database.path)) as connection:
                connection.execute("pragma busy_timeout = 60000")
                assert connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0
            assert len(meanwhile) <= 2  # the look that waited, and whether there is to be another
            assert not tables.done()
        assert (await tables)["trace_step"] > 0


async def test_a_status_looks_at_no_table(old: SessionClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs the same however much there is: the last sample is told."""
    first = await sizes(old)

    async def looked(*_: object) -> Any:
        raise AssertionError("somebody who asks waits for it")

    monkeypatch.setattr(retention, "_take", looked)
    assert await sizes(old) == first


def test_how_fast_it_goes_is_that_of_the_last_week() -> None:
    def sample(day: float, own: int, free: int) -> Sample:
        return Sample(round(day * DAY_MS), {"sessions": own * MIB}, free * MIB)

    assert growth([]) is None
    assert growth([sample(0, 1, 100), sample(0.4, 9, 90)]) is None
    found = growth([sample(0, 0, 9000), sample(10, 100, 1000), sample(16, 220, 700)])
    assert found is not None
    assert (found.own, found.disk, found.full_in_days) == (20 * MIB, 50 * MIB, 14)
    still = growth([sample(0, 5, 100), sample(1, 3, 120)])
    assert still is not None
    assert (still.own, still.full_in_days) == (-2 * MIB, None)
