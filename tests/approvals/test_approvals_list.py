"""Lists: every status, Go's globs, pages that miss nothing."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.approvals.installation import MINUTE, NO, NOW, Installation, write_file
from tests.store.database.databases import opened

from legation.approvals import listing
from legation.approvals.approval import ApprovalState, Glob
from legation.approvals.listing import ApprovalFilter
from legation.approvals.transitions import expire_due, supersede
from legation.errors import InvalidParams
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Queries
from legation.wire.api.approvals import go_duration, rfc3339

LISTS = {
    "pending_page",
    "status_page",
    "page",
    "due",
    "calls",
    "calls_of_agent",
    "calls_of_tool",
    "steps_between",
}

# Of Go's own table for path/filepath.Match on Unix, and the seed's.
MATCHES = [
    ("abc", "abc", True), ("*", "abc", True), ("*c", "abc", True), ("a*", "a", True), ("a*", "abc", True),
    ("a*", "ab/c", False), ("a*/b", "abc/b", True), ("a*/b", "a/c/b", False),
    ("a*b*c*d*e*/f", "axbxcxdxe/f", True), ("a*b*c*d*e*/f", "axbxcxdxexxx/f", True),
    ("a*b*c*d*e*/f", "axbxcxdxe/xxx/f", False), ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", False),
    ("a*b?c*x", "abxbbxdbxebxczzx", True), ("a*b?c*x", "abxbbxdbxebxczzy", False),
    ("ab[c]", "abc", True), ("ab[b-d]", "abc", True), ("ab[e-g]", "abc", False), ("ab[^c]", "abc", False),
    ("ab[^b-d]", "abc", False), ("ab[^e-g]", "abc", True), ("a\\*b", "a*b", True), ("a\\*b", "ab", False),
    ("a?b", "a☺b", True), ("a[^a]b", "a☺b", True), ("a???b", "a☺b", False), ("a[^a][^a][^a]b", "a☺b", False),
    ("[a-ζ]*", "\u03b1", True), ("*[a-ζ]", "A", False), ("a?b", "a/b", False), ("a*b", "a/b", False),
    ("[\\]a]", "]", True), ("[\\-]", "-", True), ("[x\\-]", "x", True), ("[x\\-]", "-", True),
    ("[x\\-]", "z", False), ("[\\-x]", "x", True), ("[\\-x]", "-", True), ("[\\-x]", "a", False),
    ("*x", "xxx", True), ("[z-a]", "m", False), ("[^x]", "/", True),
    ("filesystem.*", "filesystem.write_file", True), ("filesystem.*", "filesystem", False),
    ("gmail.*", "filesystem.read", False), ("*", "a/b", False), ("*", "", True), ("a", "", False),
]  # fmt: skip
MALFORMED = [
    "[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[", "[^", "[^bc", "a[", "a\\", "[\\", "[a-", "[]", "", "x" * 257,
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "name", "fits"), MATCHES)
def test_a_glob_matches_as_in_go(pattern: str, name: str, fits: bool) -> None:
    assert Glob(pattern).matches(name) is fits


@pytest.mark.parametrize("pattern", MALFORMED)
def test_a_malformed_glob_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParams):
        Glob(pattern)
    with pytest.raises(InvalidParams):
        ApprovalFilter(tool=pattern)


def test_a_glob_of_many_stars_takes_no_long_time() -> None:
    assert not Glob("*a" * 128).matches("a" * 250 + "b")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(270_000, "4m30s"), (1_800_000, "30m0s"), (45_999, "45s"), (0, "0s"), (-5, "0s"), (3_600_000, "1h0m0s"),
     (90_061_000, "25h1m1s")],
)  # fmt: skip
def test_durations_are_written_as_go_writes_them(ms: int, text: str) -> None:
    assert go_duration(ms) == text


def test_times_are_written_as_go_writes_them() -> None:
    assert [rfc3339(1_775_831_400_000 + ms) for ms in (0, 5, 120)] == [
        "2026-04-10T14:30:00Z", "2026-04-10T14:30:00.005Z", "2026-04-10T14:30:00.12Z"
    ]  # fmt: skip


async def test_d12_every_status_is_a_filter_and_no_other_word_is(installation: Installation) -> None:
    made = {
        status: await installation.ask(waiter=f"ins_{status}", expires_at=NOW + MINUTE)
        for status in ApprovalState
    }
    await installation.answer(made[ApprovalState.APPROVED])
    await installation.consume(made[ApprovalState.APPROVED])
    await installation.answer(made[ApprovalState.DENIED], NO)
    await supersede(installation.ledger, installation.approvals, ["ins_superseded"], NOW + 1)
    await installation.do(
        installation.approvals.cancel, "local", [made[ApprovalState.CANCELLED].id], "caller-gone", NOW + 1
    )
    await installation.sql(
        f"update approval set expires_at = {NOW} where id = '{made[ApprovalState.EXPIRED].id}'"
    )
    await expire_due(installation.ledger, installation.approvals, NOW + 1)
    for status, approval in made.items():
        assert await installation.listed(status=status.value) == [approval.id]
    assert await installation.listed() == [approval.id for approval in reversed(made.values())]
    for word in ("Pending", "open", "", "timeout", "pending "):
        with pytest.raises(InvalidParams):
            ApprovalFilter(status=word)


async def test_tools_are_chosen_by_glob_and_agents_by_name(installation: Installation) -> None:
    tools = ["filesystem.read", "filesystem.write", "gmail.send", "shell"]
    made = [
        await installation.ask(write_file(tool=tool, agent=agent)) for tool in tools for agent in ("a", "b")
    ]
    assert await installation.listed(status="pending", tool="filesystem.*") == [each.id for each in made[:4]]
    assert await installation.listed(status="pending", tool="gmail.send", agent="b") == [made[5].id]
    assert await installation.listed(tool="*.read") == [made[1].id, made[0].id]
    assert await installation.listed(tool="nothing*") == []
    assert await installation.listed(status="approved", tool="*") == []
    assert await installation.listed(status="pending", agent="a*") == []


@pytest.mark.parametrize("status", ["pending", None])
async def test_pages_miss_nothing_and_repeat_nothing(installation: Installation, status: str | None) -> None:
    made = [(await installation.ask()).id for _ in range(7)]
    seen: list[str] = []
    after = None
    while True:
        page = await installation.database.read(
            listing.page, "local", ApprovalFilter(status=status), NOW + 1, 3, after
        )
        seen += [approval.id for approval in page.items]
        after = page.next
        if after is None:
            break
    assert seen == (made if status else made[::-1])


async def test_arguments_that_were_purged_are_null_and_the_rest_is_there(installation: Installation) -> None:
    approval = await installation.ask(content_owner="run_1")
    await installation.sql("delete from content_key where owner = 'run_1'")
    (view,) = await listing.views(installation.database, installation.sealer, "local", [approval], NOW)
    assert (view.params, view.tool) == (None, "filesystem.write_file")


async def test_d28_no_list_or_change_reads_or_sorts_a_whole_table(tmp_path: Path) -> None:
    """By SQLite's plans: every one of them goes through an index, in its order."""
    async with opened(SqliteDatabase(tmp_path / "legation.db")):
        with closing(sqlite3.connect(tmp_path / "legation.db")) as connection:
            for query in (*Queries("approvals"), *Queries("traces"), *Queries("grants")):
                given = dict.fromkeys(query.parameters)
                plan = [row[3] for row in connection.execute(f"explain query plan {query.sqlite}", given)]
                scanned = [step for step in plan if re.match(r"SCAN (approval|trace_|c\b)", step)]
                assert [step for step in scanned if "INDEX" not in step] == [], query.name
                if query.name in ("pending_of_agent", "pending_in_session"):
                    assert "INDEX approval_pending_agent" in plan[0], query.name
                if query.name in LISTS:
                    assert not [step for step in plan if "TEMP B-TREE" in step], query.name
