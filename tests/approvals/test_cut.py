"""A trace that is made smaller: what was said is purged, first steps are cut off, and what is left verifies."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.approvals.installation import (
    MINUTE,
    NO,
    NOW,
    PERSON,
    SERVER,
    Installation,
    write_file,
)
from tests.approvals.test_trace import after, allowed

from legation.approvals.approval import Approval, ApprovalAnswer
from legation.approvals.trace import chain as chains_of_steps
from legation.approvals.trace import cut as cuts
from legation.approvals.trace.chain import Chain, Head, Ledger, chains, untraced, verify
from legation.approvals.trace.cut import DAY_MS, Slice, cut, finish_purges, old_days, old_steps, purge
from legation.approvals.trace.export import lines, verify_export
from legation.approvals.trace.step import ChainStep
from legation.approvals.transitions import Transitions
from legation.errors import Conflict
from legation.store.database.transaction import Queries, rows

LATER = NOW + 5 * DAY_MS


async def history(installation: Installation, calls: int = 4, now: int = NOW) -> list[Approval]:
    """Nine steps each, with three contents: six of a call that was asked about, three of one that was not."""
    asked = []
    for number in range(calls):
        at = now + number
        approval = await installation.ask(write_file(f"/p/{number}"), now=at, expires_at=at + 5 * MINUTE)
        await installation.answer(approval, now=at + 1)
        await installation.consume(approval, now=at + 2)
        await installation.ledger.append("local", [*after(approval), *allowed()], at + 3)
        asked.append(approval)
    return asked


async def went(slices: AsyncIterator[Slice]) -> tuple[int, list[Slice]]:
    done = [each async for each in slices]
    return sum(each.count for each in done), done


async def cut_all(installation: Installation, before: int = LATER) -> int:
    count, _ = await went(cut(installation.ledger, "local", before, PERSON, LATER))
    return count


async def count(installation: Installation, table: str) -> int:
    (row,) = await installation.sql(f"select count(*) as n from {table}")
    return int(row["n"])


async def is_good(installation: Installation) -> chains_of_steps.Report:
    """Report on a chain that verifies, with its approvals, in the database and in an export alike."""
    report = await installation.verify()
    assert report.faults == ()
    assert await untraced(installation.database, "local") == []
    exported = [line async for line in lines(installation.database, installation.sealer, "local", SERVER)]
    [of_export] = verify_export(exported, {SERVER: report.head})
    assert (of_export.ok, of_export.first, of_export.steps) == (True, report.first, report.steps)
    assert await count(installation, "trace_content") == await _contents_with_a_step(installation)
    return report


async def _contents_with_a_step(installation: Installation) -> int:
    (row,) = await installation.sql(
        "select count(*) as n from trace_content c join trace_step s on s.workspace_id = c.workspace_id "
        "and s.server = c.server and s.seq = c.seq join content_key k on k.workspace_id = c.workspace_id "
        "and k.owner = c.owner"
    )
    return int(row["n"])


async def test_what_is_left_verifies_from_the_checkpoint_on(installation: Installation) -> None:
    old = await history(installation)
    new = await history(installation, 1, LATER)
    before = (await installation.verify()).head
    assert await installation.database.read(old_steps, "local", SERVER, LATER) == 36
    assert await cut_all(installation) == 36
    report = await is_good(installation)
    # Nine steps of the last day, and the checkpoint.
    assert (report.first, report.steps, report.since) == (37, 10, LATER)
    (step,) = await installation.sql("select * from trace_step where step = 'checkpoint'")
    told = msgspec.json.decode(step["cut"])
    assert (told["first"], told["last"], told["since"], told["until"]) == (1, 36, NOW, NOW + 6)
    assert (step["actor_kind"], step["actor"], step["at"]) == ("user", "usr_1", LATER)
    # Approvals went with the steps that asked for them, and no other did.
    left = {row["id"] for row in await installation.sql("select id from approval")}
    assert left == {each.id for each in new}
    assert not left & {each.id for each in old}
    # An earlier head is still good, as far as it can be compared.
    assert (await verify(installation.database, installation.sealer, "local", SERVER, before)).ok
    # What comes goes on, and the next cut takes the checkpoint along, some day.
    await history(installation, 1, LATER + 20 * DAY_MS)
    assert await cut_all(installation, LATER + 20 * DAY_MS) == 10
    report = await is_good(installation)
    assert (report.first, await installation.database.read(chains, "local")) == (47, [SERVER])


async def test_all_of_a_chain_may_go_but_its_checkpoint(installation: Installation) -> None:
    await history(installation)
    assert await cut_all(installation) == 36
    report = await is_good(installation)
    assert (report.first, report.steps, report.head.seq) == (37, 1, 37)
    assert await cut_all(installation) == 0  # the checkpoint is of now
    await history(installation, 1, LATER)
    assert (await is_good(installation)).steps == 10


async def test_nothing_of_the_day_that_is_named_goes(installation: Installation) -> None:
    await history(installation)
    for before in (NOW, NOW // DAY_MS * DAY_MS):
        assert await cut_all(installation, before) == 0
        assert await installation.database.read(old_days, "local", before) == []
        assert await installation.database.read(old_steps, "local", SERVER, before) == 0
    assert (await is_good(installation)).first == 1


@pytest.mark.parametrize("how", ["pending", "approved"])
async def test_what_is_open_holds_what_comes_after_it(installation: Installation, how: str) -> None:
    await history(installation, 1)
    held = await installation.ask(now=NOW + 10, expires_at=LATER + MINUTE)
    if how == "approved":
        await installation.answer(held, now=NOW + 11)
    await history(installation, 1, NOW + 20)
    await history(installation, 1, NOW + 2 * DAY_MS)
    assert await cut_all(installation) == 9
    days = await installation.database.read(old_days, "local", LATER)
    assert days == ["day-2023-11-16"]  # that of the open one is kept whole
    assert (await installation.verify()).faults == ()
    if how == "pending":
        await installation.answer(held, NO, now=LATER)
    else:
        await installation.consume(held, now=LATER)
    assert await cut_all(installation) == (21 if how == "approved" else 20)
    await is_good(installation)


async def test_an_effect_under_way_holds_its_call(installation: Installation) -> None:
    (approval,) = await history(installation, 1)
    begin = Queries("door").begin_effect(
        workspace="local", trace_id=approval.trace_id, holder="w", agent="a", tool="t", approval_id=None,
        session_id=None, turn_id=None, tool_call_id=None, now=NOW,
    )  # fmt: skip
    await installation.database.transact(rows, begin)
    assert await cut_all(installation) == 0
    end = Queries("door").end_effect(workspace="local", trace_id=approval.trace_id)
    await installation.database.transact(rows, end)
    assert await cut_all(installation) == 9


async def test_another_chain_keeps_what_a_trace_of_ours_is_held_against(installation: Installation) -> None:
    """An answer stands in the chain of the server where it was given."""
    approval = await installation.ask()
    second = Ledger(installation.database, Chain("srv-2", installation.sealer))
    await second.append("local", allowed(), NOW)
    await second.transact(
        "local",
        Transitions(second.chain).resolve,
        PERSON,
        approval.id,
        ApprovalAnswer(approve=False),
        NOW + 1,
    )

    async def good() -> None:
        for server in await installation.database.read(chains, "local"):
            assert (await verify(installation.database, installation.sealer, "local", server)).faults == ()

    assert (await went(cut(second, "local", LATER, PERSON, LATER)))[0] == 3
    await good()
    assert await cut_all(installation) == 2
    await good()
    assert (await went(cut(second, "local", LATER, PERSON, LATER)))[0] == 1
    await good()


async def test_slices_are_small(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """By count: no transaction takes more rows than one slice has, of steps and of what they said."""
    monkeypatch.setattr(cuts, "SLICE_ROWS", 7)
    await history(installation, 6)
    await history(installation, 1, LATER)
    contents, done = await went(purge(installation.database, "local", LATER, LATER))
    assert contents == 18
    assert {each.count for each in done[:-1]} <= {7, 8}  # a step's contents go together
    steps, done = await went(cut(installation.ledger, "local", LATER, PERSON, LATER))
    assert (steps, {each.count for each in done[:-1]}) == (54, {7})
    report = await is_good(installation)
    assert (report.first, report.steps) == (55, 9 + len(done))


async def test_a_slice_is_bounded_in_bytes(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "SLICE_BYTES", 10)
    await history(installation, 2)
    _, done = await went(purge(installation.database, "local", LATER, LATER))
    assert len(done) >= 6  # a step each
    assert await count(installation, "content_key") == 0
    await history(installation, 2)
    _, done = await went(cut(installation.ledger, "local", LATER, PERSON, LATER))
    assert len(done) >= 6
    await is_good(installation)


@pytest.mark.parametrize("slices", range(5))
async def test_a_purge_that_is_cut_off_shows_nothing_and_is_brought_to_its_end(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    monkeypatch.setattr(cuts, "SLICE_ROWS", 3)
    await history(installation, 3)
    await history(installation, 1, LATER)
    [day] = await installation.database.read(old_days, "local", LATER)
    await installation.database.transact(cuts.begin_purge, "local", day, LATER)
    for _ in range(slices):
        await installation.database.transact(cuts.purge_slice, "local", day)
    report = await installation.verify()
    assert (report.faults, report.purged) == ((), 9)
    shown = await installation.entries()
    assert [each.params is None for each in shown].count(True) == 6
    await finish_purges(installation.database, LATER)
    assert await count(installation, "content_key") == 1
    assert await count(installation, "trace_content") == 3
    assert (await is_good(installation)).purged == 9


TAMPERING = {
    "a step after the cut": "delete from trace_step where seq = 37",
    "the checkpoint": "delete from trace_step where step = 'checkpoint'",
    "its words": "update trace_step set cut = replace(cut, '36', '37') where step = 'checkpoint'",
    "its hash": "update trace_step set cut = replace(cut, 'hash', 'hush') where step = 'checkpoint'",
    "an approval": "delete from approval",
    "the first step's place": "update trace_step set prev_hash = hash where seq = 37",
}


@pytest.mark.parametrize("what", TAMPERING)
async def test_tampering_across_a_cut_is_found(installation: Installation, what: str) -> None:
    await history(installation)
    await history(installation, 1, LATER)
    await cut_all(installation)
    await is_good(installation)
    await installation.sql(TAMPERING[what])
    assert (await installation.verify()).faults


async def test_steps_that_nobody_said_were_cut_are_missing(installation: Installation) -> None:
    await history(installation)
    await installation.sql("delete from trace_step where seq <= 10")
    report = await installation.verify()
    assert (report.faults[-1].seq, report.faults[-1].what) == (
        11,
        "the steps before it, from 1 on, are missing",
    )


@pytest.mark.parametrize("sealed", ["not", "as another", "under a purged key"])
async def test_who_has_no_key_cannot_say_that_a_beginning_was_cut(
    installation: Installation, sealed: str
) -> None:
    """With all that the database lets somebody write: a good chain from there on, its head, and the head that was kept."""
    await history(installation)
    await history(installation, 1, LATER)
    if sealed != "not":
        await cut_all(installation)
    kept = (await is_good(installation)).head
    rows_ = [dict(each) for each in await installation.sql("select * from trace_step order by seq")]
    last = rows_[8]  # the first call that is there, or the last day
    gap = chains_of_steps.TraceCut(rows_[0]["seq"], last["seq"], last["hash"], NOW, last["at"])
    for table in ("trace_content", "trace_step"):
        await installation.sql(f"delete from {table} where seq <= {last['seq']}")
    await installation.sql(f"delete from approval where trace_id = '{last['trace_id']}'")
    await installation.sql(f"delete from approval where id = '{rows_[0]['approval_id']}'")
    forged = msgspec.convert(
        {name: value for name, value in rows_[-1].items() if name != "hash" and value is not None}
        | {"seq": kept.seq + 1, "prev_hash": kept.hash, "step": "checkpoint"}
        | {"cut": msgspec.json.encode(gap).decode()},
        ChainStep,
    )
    if sealed == "not":
        forged = msgspec.structs.replace(forged, content_owner=None, digests=None)
    if sealed == "as another":  # the words of a checkpoint that is there
        await installation.sql(
            "insert into trace_content (workspace_id, server, seq, name, trace_id, owner, body) select workspace_id, server, "
            f"{forged.seq}, name, trace_id, owner, body from trace_content where name = 'cut'"
        )
    if sealed == "under a purged key":
        await installation.sql("delete from content_key where owner = 'cuts'")
    await installation.database.transact(
        rows, Queries("traces").append(**msgspec.structs.asdict(forged), hash=forged.hash)
    )
    await installation.sql(f"update trace_head set seq = {forged.seq}, hash = '{forged.hash}'")
    report = await verify(installation.database, installation.sealer, "local", SERVER, kept)
    assert (forged.seq, "it says that steps were cut off, and no server of ours sealed that") in [
        (fault.seq, fault.what) for fault in report.faults
    ]


async def test_a_head_that_was_kept_shows_what_the_chain_follows(installation: Installation) -> None:
    await history(installation)
    await cut_all(installation)
    known = [Head(36, "0" * 64), Head(3, "0" * 64)]  # the last of what was cut, and one before
    report = await verify(installation.database, installation.sealer, "local", SERVER, known)
    assert [fault.what for fault in report.faults] == ["it follows another step than was there before"]


async def test_a_chain_that_is_cut_while_it_is_verified_is_good(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is gone, and the checkpoint came behind the end that was seen."""
    monkeypatch.setattr(chains_of_steps, "VERIFY_BATCH", 4)
    monkeypatch.setattr(cuts, "SLICE_ROWS", 10)
    await history(installation)
    read, reads = installation.database.read, 0

    async def between(work: Callable[..., Any], *args: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads in (1, 3):
            for _ in range(2):
                await installation.ledger.transact(
                    "local", cuts.cut_slice, installation.ledger.chain, "local", LATER, PERSON, LATER
                )
        return await read(work, *args)

    monkeypatch.setattr(installation.database, "read", between)
    report = await installation.verify()
    assert (report.faults, report.first) == ((), 37)


async def test_an_export_of_a_chain_that_is_cut_meanwhile_says_so(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legation.approvals.trace.export.BATCH", 4)
    await history(installation)

    async def export() -> None:
        async for _ in lines(installation.database, installation.sealer, "local", SERVER):
            await cut_all(installation)

    with pytest.raises(Conflict, match="cut meanwhile"):
        await export()
