"""The chain finds whatever was changed, removed, put in or put elsewhere, and outlives the purge of content."""

import asyncio
import hashlib
from typing import TypeVar, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.approvals.installation import (
    AGENT,
    HOLDER,
    MINUTE,
    NOW,
    PERSON,
    SERVER,
    SUPERVISOR,
    Installation,
    add_asker,
    write_file,
)
from tests.approvals.test_trace import after, allowed
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_key, new_sealer

from legation.approvals.approval import ApprovalAnswer, ApprovalChange
from legation.approvals.trace.chain import Chain, Head, Ledger, chains, untraced, verify
from legation.approvals.trace.cut import DAY_MS, old_days, purge
from legation.approvals.trace.entries import read_step, steps_of
from legation.approvals.trace.export import lines, verify_lines
from legation.approvals.trace.step import (
    ContentName,
    StepDraft,
    StepKind,
    TracedCall,
    new_trace_id,
)
from legation.approvals.transitions import Transitions
from legation.clock import SystemClock
from legation.errors import ConfigInvalid, Conflict, InvalidParams, NotFound, TooLarge
from legation.store.database.transaction import Transaction
from legation.store.secrets.sealer import KeyRing, Sealer
from legation.store.secrets.vault import ContentStore, Rewrapper
from legation.wire.action import RuleAction
from legation.wire.principal import Principal

T = TypeVar("T")

COLUMNS = [
    "at", "step", "trace_id", "agent", "tool", "approval_id", "session_id", "turn_id", "tool_call_id", "kind",
    "action_digest", "policy", "policy_rule", "policy_version", "status", "reason", "actor_kind", "actor",
    "actor_user", "actor_level", "confidence", "status_code", "latency_ms", "replaces", "content_owner", "digests",
    "prev_hash", "cut", "hash",
]  # fmt: skip
NUMBERS = {"at", "actor_level", "confidence", "status_code", "latency_ms"}


async def some_history(installation: Installation) -> None:
    """Ten steps."""
    approval = await installation.ask(session_id="ses_1")
    await installation.do(installation.approvals.claim, SUPERVISOR, approval.id, 5000, NOW + 1)
    await installation.answer(
        approval, ApprovalAnswer(approve=True, reasoning="fine", confidence=0.9), SUPERVISOR
    )
    await installation.consume(approval)
    await installation.ledger.append("local", after(approval), NOW + 5)
    await installation.ledger.append("local", allowed(), NOW + 6)


async def faults(installation: Installation) -> list[tuple[int, str]]:
    return [(fault.seq, fault.what) for fault in (await installation.verify()).faults]


async def test_what_was_written_verifies(installation: Installation) -> None:
    await some_history(installation)
    report = await installation.verify()
    assert (report.faults, report.steps, report.purged) == ((), 10, 0)
    assert report.head.seq == 10
    assert await installation.database.read(chains, "local") == [SERVER]
    empty = await verify(installation.database, installation.sealer, "other", SERVER)
    assert (empty.ok, empty.steps) == (True, 0)


async def test_every_changed_column_is_found(installation: Installation) -> None:
    await some_history(installation)
    for column in COLUMNS:
        (row,) = await installation.sql(f"select {column} as was from trace_step where seq = 5")
        other = 7 if column in NUMBERS else f"'{'[]' if column == 'content_owner' else '{}'}'"
        await installation.sql(f"update trace_step set {column} = {other} where seq = 5")
        found = await faults(installation)
        assert found, column
        assert {seq for seq, _what in found} <= {5, 6}, column
        was = row["was"]
        back = "null" if was is None else str(was) if column in NUMBERS else f"'{was}'"
        await installation.sql(f"update trace_step set {column} = {back} where seq = 5")
        assert await faults(installation) == []


@pytest.mark.parametrize("seq", [5, 10])
async def test_a_changed_step_with_a_hash_that_fits_it_is_found_by_what_follows_it(
    installation: Installation, seq: int
) -> None:
    await some_history(installation)
    (row,) = await installation.sql(f"select * from trace_step where seq = {seq}")
    forged = msgspec.structs.replace(read_step(row), tool="harmless")
    await installation.sql(
        f"update trace_step set tool = 'harmless', hash = '{forged.hash}' where seq = {seq}"
    )
    expected = {5: (6, "it does not follow the step before it")}
    assert await faults(installation) == [
        expected.get(seq, (10, "the chain should end with step 10, as its head says"))
    ]


async def test_digests_that_are_no_json_are_a_fault_like_any_other(installation: Installation) -> None:
    await some_history(installation)
    await installation.sql("update trace_step set digests = 'x' where seq = 1")
    assert (1, "it was changed") in await faults(installation)


async def test_a_removed_step_is_found(installation: Installation) -> None:
    await some_history(installation)
    await installation.sql("delete from trace_step where seq = 4")
    assert (5, "the steps before it, from 4 on, are missing") in await faults(installation)


@pytest.mark.parametrize("seq", [1, 10])
async def test_a_removed_first_or_last_step_is_found(installation: Installation, seq: int) -> None:
    await some_history(installation)
    await installation.sql(f"delete from trace_step where seq = {seq}")
    assert await faults(installation)


async def test_reordered_steps_are_found(installation: Installation) -> None:
    await some_history(installation)
    for former, to in ((4, 99), (5, 4), (99, 5)):
        await installation.sql(f"update trace_step set seq = {to} where seq = {former}")
    assert {seq for seq, _what in await faults(installation)} >= {4, 5}


async def test_an_inserted_step_is_found_at_the_end_and_in_the_middle(installation: Installation) -> None:
    await some_history(installation)
    columns = "workspace_id, server, {}, at, step, trace_id, agent, tool, {}"
    await installation.sql(
        f"insert into trace_step ({columns.format('seq', 'prev_hash, hash')}) "
        f"select {columns.format('11', 'hash, hash')} from trace_step where seq = 10"
    )
    assert {seq for seq, _what in await faults(installation)} == {11}
    await installation.sql("delete from trace_step where seq = 11")
    for seq in range(10, 4, -1):
        await installation.sql(f"update trace_step set seq = {seq + 1} where seq = {seq}")
    await installation.sql(
        f"insert into trace_step ({columns.format('seq', 'prev_hash, hash')}) "
        f"select {columns.format('5', 'hash, hash')} from trace_step where seq = 4"
    )
    assert 5 in {seq for seq, _what in await faults(installation)}


async def test_a_cut_end_is_found_by_the_head_and_a_cut_head_by_who_kept_it(
    installation: Installation,
) -> None:
    await some_history(installation)
    kept = (await installation.verify()).head
    (row,) = await installation.sql("select hash from trace_step where seq = 8")
    await installation.sql("delete from trace_step where seq > 8")
    await installation.sql("delete from trace_content where seq > 8")
    assert await faults(installation) == [(8, "the chain should end with step 10, as its head says")]
    await installation.sql(f"update trace_head set seq = 8, hash = '{row['hash']}'")
    assert await faults(installation) == []  # what a chain alone cannot show
    report = await verify(installation.database, installation.sealer, "local", SERVER, kept)
    assert [fault.seq for fault in report.faults] == [10]
    other = await verify(installation.database, installation.sealer, "local", SERVER, Head(5, "0" * 64))
    assert [fault.seq for fault in other.faults] == [5]


async def test_a_removed_head_or_a_removed_chain_is_found(installation: Installation) -> None:
    await some_history(installation)
    await installation.sql("delete from trace_head")
    assert await faults(installation)
    assert await installation.database.read(chains, "local") == [SERVER]
    await installation.sql("delete from trace_step")
    report = await verify(installation.database, installation.sealer, "local", SERVER, Head(10, "0" * 64))
    assert not report.ok


@pytest.mark.parametrize(
    "tampering",
    [
        "delete from trace_content where name = 'params' and seq = 1",
        "update trace_content set name = 'result' where name = 'params' and seq = 1",
        "update trace_content set seq = 2 where name = 'params' and seq = 1",
        "update trace_content set body = (select body from trace_content where seq = 4) where seq = 1",
        "update trace_content set seq = 77 where name = 'params' and seq = 1",
    ],
)
async def test_changed_removed_or_moved_content_is_found(installation: Installation, tampering: str) -> None:
    await some_history(installation)
    await installation.sql(tampering)
    assert {seq for seq, _what in await faults(installation)} & {1, 2}


async def purged(installation: Installation, before: int) -> list[str]:
    """The owners of what was said on the days before, which is purged."""
    owners = await installation.database.read(old_days, "local", before)
    async for _ in purge(installation.database, "local", before, before):
        pass
    return owners


async def test_the_chain_verifies_after_its_content_was_purged(installation: Installation) -> None:
    await some_history(installation)
    day = "2023-11-14"
    assert await purged(installation, NOW) == []
    assert await purged(installation, NOW + DAY_MS) == [f"day-{day}"]
    report = await installation.verify()
    assert (report.faults, report.steps, report.purged) == ((), 10, 4)
    entries = await installation.entries()
    assert [entry.params for entry in entries] == [None, None]
    assert entries[1].approved_by == "agent:supervisor"
    # The same day goes on, under another key.
    await installation.ledger.append("local", allowed(), NOW + 7)
    report = await installation.verify()
    assert (report.faults, report.purged) == ((), 4)


async def test_content_of_a_run_goes_with_the_run(installation: Installation) -> None:
    await installation.ask(content_owner="run_1")
    await installation.ask()
    content = ContentStore(installation.database, installation.sealer, SystemClock())
    assert await installation.database.transact(content.delete, "local", "run_1")
    assert (await installation.verify()).purged == 1
    assert [entry.params is None for entry in await installation.entries()].count(True) == 1


async def test_rotation_leaves_content_readable(database: Either) -> None:
    former, current = new_key(), new_key()
    await add_workspaces(database)
    await add_asker(database, AGENT.id)
    before = Installation(database, Sealer(KeyRing(former)))
    await before.sign(HOLDER)
    await some_history(before)
    await Rewrapper(database, Sealer(KeyRing(current, (former,)))).run(lambda _done: None)
    report = await verify(database, Sealer(KeyRing(current)), "local", SERVER)
    assert (report.ok, report.purged) == (True, 0)


async def test_an_export_verifies_without_the_database_and_finds_every_change(
    installation: Installation,
) -> None:
    await some_history(installation)
    exported = [line async for line in lines(installation.database, installation.sealer, "local", SERVER)]
    head = (await installation.verify()).head
    report = verify_lines(exported, head)
    assert (report.ok, report.steps, report.head) == (True, 10, head)
    for number, line in enumerate(exported):
        changed = [*exported]
        changed[number] = line.replace(b'"tool":"filesystem', b'"tool":"gmail')
        assert not verify_lines(changed, head).ok
        assert not verify_lines([*exported[:number], *exported[number + 1 :]], head).ok
    argument = [line.replace(b"package main", b"package evil") for line in exported]
    assert {fault.seq for fault in verify_lines(argument).faults} == {1, 8}
    with pytest.raises(InvalidParams):
        verify_lines([exported[0][:-20]])
    for forged in (
        exported[0].replace(b'"seq":1,', b'"seq":1,"approved_by":"user:boss",'),  # what no hash covers
        exported[0].replace(
            b'"step":{', b'"step":{"agent":"another",'
        ),  # there twice: some take the first one
        exported[0][:-2] + b',"approved_by":"user:boss"}\n',
    ):
        with pytest.raises(InvalidParams, match="damaged"):
            verify_lines([forged, *exported[1:]], head)


async def test_a_state_change_and_its_step_are_one(installation: Installation) -> None:
    """Never the one without the other: an error after the change takes both back."""
    approval = await installation.ask()

    def change_and_fail() -> Transaction[None]:
        yield from installation.approvals.resolve(PERSON, approval.id, ApprovalAnswer(approve=True), NOW + 1)
        raise Conflict("cannot go on")

    with pytest.raises(Conflict):
        await installation.do(change_and_fail)
    assert await installation.get(approval) == approval
    assert (await installation.verify()).steps == 2


async def test_every_state_change_has_its_step(installation: Installation) -> None:
    await some_history(installation)
    rows = await installation.sql("select step from trace_step order by seq")
    assert [row["step"] for row in rows] == [
        "proposed", "decided", "claimed", "resolved", "consumed", "executed", "returned",
        "proposed", "decided", "returned",
    ]  # fmt: skip


async def test_each_server_has_a_chain_of_its_own(installation: Installation) -> None:
    await some_history(installation)
    second = Chain("srv-2", installation.sealer)
    approval = await installation.ask()
    await Ledger(installation.database, second).transact(
        "local", Transitions(second).resolve, PERSON, approval.id, ApprovalAnswer(approve=True), NOW + 1
    )
    assert await installation.database.read(chains, "local") == [SERVER, "srv-2"]
    for server, steps in ((SERVER, 12), ("srv-2", 1)):
        report = await verify(installation.database, installation.sealer, "local", server)
        assert (report.ok, report.steps) == (True, steps)
    newest = {entry.approval_id: entry for entry in await installation.entries()}[approval.id]
    assert (newest.approval_status, newest.approved_by) == ("approved", "user:usr_1")


async def test_many_at_once_make_one_chain(installation: Installation) -> None:
    asks = [installation.ask() for _ in range(30)]
    calls = [installation.ledger.append("local", allowed(), NOW) for _ in range(60)]
    async with asyncio.timeout(60):
        await asyncio.gather(*asks, *calls)
    report = await installation.verify()
    assert (report.faults, report.steps) == ((), 30 * 2 + 60 * 3)


async def test_sqlite_refuses_to_move_the_head_without_its_steps(
    installation: Installation,
) -> None:
    if installation.database.dialect == "postgres":
        return
    chain = Chain("srv-2", installation.sealer, at_once=True)  # as on Postgres, which it is not
    with pytest.raises(Conflict, match="another server"):
        await installation.database.transact(chain.append, "local", allowed(), NOW)
    assert await installation.database.read(chains, "local") == []


@pytest.mark.parametrize("at_once", [False, True])
async def test_steps_are_the_same_however_they_are_written(installation: Installation, at_once: bool) -> None:
    if at_once and installation.database.dialect == "sqlite":
        return  # it writes them one by one
    chain = Chain("srv-2", installation.sealer, at_once=at_once)
    who = Principal(kind="user", id="usr_1", workspace="local", scopes=frozenset(), level=2, user="usr_1")
    call = TracedCall(trace_id=new_trace_id(), agent="é\"'", tool="t", session_id="ses_1")
    contents: dict[ContentName, object] = {"result": [1, "☺"], "error": "e" * 1000}
    drafts = [
        *allowed(),
        StepDraft(
            step=StepKind.RESOLVED, call=call, by=who, confidence=1 / 3, owner="run_1", contents=contents
        ),
        StepDraft(step=StepKind.RETURNED, call=call, status_code=200, latency_ms=2**40, confidence=1.0),
    ]
    written = await installation.database.transact(chain.append, "local", drafts, NOW)
    read = await installation.database.read(steps_of, "local", call.trace_id)
    assert read == written[-2:]
    report = await verify(installation.database, installation.sealer, "local", "srv-2")
    assert (report.faults, report.steps, report.purged) == ((), 5, 0)
    exported = [line async for line in lines(installation.database, installation.sealer, "local", "srv-2")]
    assert verify_lines(exported, report.head).ok


async def test_one_that_cannot_be_written_spoils_nothing_for_the_others(installation: Installation) -> None:
    call = TracedCall(trace_id=new_trace_id(), agent="claude", tool="t")
    huge = [StepDraft(step=StepKind.RETURNED, call=call, contents={"result": "x" * (9 * 1024 * 1024)})]
    batches = [allowed(), huge, allowed(), allowed()]
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *[installation.ledger.append("local", drafts, NOW) for drafts in batches], return_exceptions=True
        )
    assert [isinstance(result, TooLarge) for result in results] == [False, True, False, False]
    assert (await installation.verify()).steps == 9


async def test_one_that_goes_away_while_it_waits_spoils_nothing_for_the_others(
    installation: Installation,
) -> None:
    tasks = [asyncio.create_task(installation.ledger.append("local", allowed(), NOW)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(len(result) == 3 for result in results[1::2])  # type: ignore[arg-type]
    report = await installation.verify()
    assert report.ok
    assert report.steps >= 9


async def test_a_workspace_that_is_not_there_has_no_chain(installation: Installation) -> None:
    with pytest.raises(NotFound):
        await installation.ledger.append("nowhere", allowed(), NOW)


async def test_with_other_keys_nothing_opens(installation: Installation) -> None:
    await some_history(installation)
    with pytest.raises(ConfigInvalid):
        await verify(installation.database, new_sealer(), "local", SERVER)


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(n) for n in (*range(32), 127)]),
    min_size=1,
    max_size=60,
)
NUMBERS_KEPT = st.integers(-(2**63), 2**63 - 1)
CONFIDENCES = st.one_of(st.sampled_from([0, 1, 0.0, 1.0, -0.0, 5e-324, 0.1]), st.floats(0, 1))


@st.composite
def drafts(draw: st.DrawFn) -> StepDraft:
    """A step with any value of every type that a column takes."""

    def some(values: st.SearchStrategy[T]) -> T | None:
        return draw(st.none() | values)

    call = TracedCall(
        trace_id=new_trace_id(),
        agent=draw(NAMES),
        tool=draw(NAMES),
        approval_id=some(NAMES),
        session_id=some(NAMES),
        turn_id=some(NAMES),
        tool_call_id=some(NAMES),
    )
    by = Principal(
        kind="token", id=draw(NAMES), workspace="local", scopes=frozenset(), level=1, user=some(NAMES)
    )
    return StepDraft(
        step=draw(st.sampled_from([kind for kind in StepKind if kind is not StepKind.DECIDED])),
        call=call,
        contents={"result": draw(CONTENTS)},
        kind=some(NAMES),
        action_digest=some(NAMES),
        policy=some(st.sampled_from(get_args(RuleAction))),
        policy_rule=some(NAMES),
        policy_version=some(NAMES | st.just("")),
        status=some(NAMES),
        reason=some(NAMES),
        by=some(st.just(by)),
        confidence=some(CONFIDENCES),
        status_code=some(NUMBERS_KEPT),
        latency_ms=some(NUMBERS_KEPT),
        replaces=some(NAMES),
    )


CONTENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.heavy
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(some=st.lists(drafts(), min_size=1, max_size=4))
async def test_what_is_hashed_does_not_depend_on_the_database(
    installation: Installation, some: list[StepDraft]
) -> None:
    steps = await installation.ledger.append("local", some, NOW)
    first = steps[0]
    rows = await installation.sql(f"select * from trace_step where seq >= {first.seq} order by seq")
    assert (
        [read_step(row).hash for row in rows]
        == [step.hash for step in steps]
        == [row["hash"] for row in rows]
    )
    assert await faults(installation) == []
    exported = [line async for line in lines(installation.database, installation.sealer, "local", SERVER)]
    assert verify_lines(exported).ok


@pytest.mark.parametrize("confidence", [0, 1, 0.0, 1.0, -0.0, 0.5])
async def test_an_answer_of_any_confidence_verifies(installation: Installation, confidence: float) -> None:
    approval = await installation.ask()
    answered = await installation.answer(
        approval, ApprovalAnswer(approve=True, confidence=confidence), SUPERVISOR
    )
    assert await faults(installation) == []
    assert (type(answered.confidence), answered.confidence) == (float, confidence)
    exported = [line async for line in lines(installation.database, installation.sealer, "local", SERVER)]
    assert verify_lines(exported).ok


@pytest.mark.parametrize(("confidence", "spelt"), [(1.0, "1"), (0.0, "0"), (0.0, "-0.0")])
async def test_a_whole_confidence_of_release_0_1_is_no_fault(
    installation: Installation, confidence: float, spelt: str
) -> None:
    approval = await installation.ask()
    await installation.answer(approval, ApprovalAnswer(approve=True, confidence=confidence), SUPERVISOR)
    (row,) = await installation.sql("select * from trace_step where seq = 3")
    text = msgspec.json.encode(read_step(row), order="sorted").decode()
    hashed = text.replace(f'"confidence":{confidence}', f'"confidence":{spelt}')
    assert hashed != text
    hash_ = hashlib.sha256(hashed.encode()).hexdigest()
    for table in ("trace_step", "trace_head"):
        await installation.sql(f"update {table} set hash = '{hash_}' where seq = 3")
    assert await faults(installation) == []
    await installation.sql("update approval set confidence = 0.25")
    await installation.sql("update trace_step set confidence = 0.25 where seq = 3")
    assert await faults(installation) == [(3, "it was changed")]


CHANGED = {
    "status = 'denied'": "another outcome",
    "status = 'pending'": "another outcome",
    "resolver = 'usr_other'": "another answer",
    "resolver_kind = 'grant'": "another answer",
    "resolver_user = 'usr_other'": "another answer",
    "resolver_level = 1": "another answer",
    "resolved_at = 5": "another answer",
    "confidence = 0.75": "another answer",
    "consumed_at = null": "another use",
    "consumed_at = 7": "another use",
    "action_digest = 'other'": "another action",
    "policy_version = 'v0'": "another action",
    "policy_rule = 'other'": "another action",
    "verdict = 'human_approval'": "another action",
    "tool = 'harmless'": "another action",
    "agent = 'other'": "another action",
    "session_id = null": "another action",
}


async def test_an_approval_that_was_changed_behind_the_trace_is_found(installation: Installation) -> None:
    """By somebody who can write the database, and leaves the chain alone."""
    approval = await installation.ask(session_id="ses_1")
    await installation.answer(approval, ApprovalAnswer(approve=True, confidence=1))
    await installation.consume(approval)
    assert await faults(installation) == []
    (row,) = await installation.sql("select * from approval")
    for change, what in CHANGED.items():
        column = change.partition(" ")[0]
        await installation.sql(f"update approval set {change}")
        assert await faults(installation) == [
            (2, f"its approval {approval.id} has {what} than the trace tells")
        ], change
        was = row[column]
        back = "null" if was is None else f"'{was}'" if isinstance(was, str) else str(was)
        await installation.sql(f"update approval set {column} = {back}")
        assert await faults(installation) == []


async def test_an_approval_that_was_removed_or_put_in_is_found(installation: Installation) -> None:
    kept, removed = await installation.ask(), await installation.ask(write_file("/p/other"))
    await installation.sql(f"delete from approval where id = '{removed.id}'")
    assert await faults(installation) == [(4, f"its approval {removed.id} was removed")]
    assert await untraced(installation.database, "local") == []
    await installation.sql(f"update approval set id = 'apr_forged' where id = '{kept.id}'")
    assert (2, f"its approval {kept.id} was removed") in await faults(installation)
    assert await untraced(installation.database, "local") == ["apr_forged"]
    assert await untraced(installation.database, "other") == []


async def test_an_approval_that_was_bound_to_another_policy_is_held_against_that(
    installation: Installation,
) -> None:
    approval = await installation.ask()
    again = write_file()
    await installation.do(
        installation.approvals.rebind,
        approval,
        again,
        "human_approval",
        "claude:rule-9",
        "v2",
        (),
        "",
        NOW + 1,
    )
    await installation.answer(approval)
    assert await faults(installation) == []
    await installation.sql(f"update approval set action_digest = '{approval.action_digest}'")
    expected = (2, f"its approval {approval.id} has another action than the trace tells")
    assert await faults(installation) == [expected]


@pytest.mark.parametrize("change", [ApprovalChange.EXPIRE, ApprovalChange.SUPERSEDE, ApprovalChange.CANCEL])
@pytest.mark.parametrize("answered", [False, True])
async def test_every_end_of_an_approval_is_as_the_trace_tells(
    installation: Installation, change: ApprovalChange, answered: bool
) -> None:
    approval = await installation.ask()
    if answered:
        await installation.answer(approval)
    await installation.do(
        installation.approvals.end_all, "local", [approval.id], change, approval.expires_at + MINUTE
    )
    assert await faults(installation) == []
    await installation.sql("update approval set status = 'approved'")
    assert await faults(installation) == [
        (2, f"its approval {approval.id} has another outcome than the trace tells")
    ]


async def test_an_answer_of_another_server_is_held_against_the_approval_too(
    installation: Installation,
) -> None:
    approval = await installation.ask()
    second = Transitions(Chain("srv-2", installation.sealer))
    await installation.database.transact(
        second.resolve, PERSON, approval.id, ApprovalAnswer(approve=True), NOW + 1
    )
    assert await faults(installation) == []
    await installation.sql("update approval set status = 'denied'")
    assert await faults(installation) == [
        (2, f"its approval {approval.id} has another outcome than the trace tells")
    ]
