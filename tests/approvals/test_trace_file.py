"""A chain in a file: INV-F3 and INV-F4 of `trace_file`."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.installation import AGENT, HOLDER, NOW, PERSON, proposal, write_file
from tests.store.installation import new_sealer

from legation.approvals.approval import ApprovalAnswer
from legation.approvals.trace.chain import Chain
from legation.approvals.trace.export import FiledLedger, TraceFile, verify_lines, whole_lines
from legation.approvals.trace.step import StepDraft, StepKind, TracedCall, new_trace_id
from legation.approvals.transitions import Transitions
from legation.clock import new_id
from legation.errors import InvalidParams, StorageFailed
from legation.store.database.sqlite import MemoryDatabase
from legation.store.database.transaction import Queries, rows
from legation.store.identity.workspaces import bootstrap

CALLS = 20


@asynccontextmanager
async def filed(path: Path) -> AsyncIterator[tuple[FiledLedger, Transitions]]:
    async with MemoryDatabase() as database:
        await database.transact(bootstrap, new_id("usr"), now_ms=NOW)
        chain = Chain("exec", new_sealer())
        await database.transact(rows, Queries("door").sign(id=HOLDER, server="exec", grace=1))
        with TraceFile(path) as file:
            yield FiledLedger(database, chain, "local", file), Transitions(chain)


def steps(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["step"] for line in whole_lines(path)]


def executed() -> StepDraft:
    call = TracedCall(trace_id=new_trace_id(), agent="claude", tool="edit")
    return StepDraft(step=StepKind.EXECUTED, call=call, contents={"result": {"said": "hello"}})


async def test_every_step_is_in_the_file_when_its_transaction_returns(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, life):
        approval = await ledger.transact("local", life.propose, proposal(write_file()), NOW)
        assert [step["step"] for step in steps(path)] == ["proposed", "decided"]
        await ledger.transact("local", life.resolve, PERSON, approval.id, ApprovalAnswer(approve=True), NOW)
        assert [step["step"] for step in steps(path)] == ["proposed", "decided", "resolved"]
    report = verify_lines(whole_lines(path))
    assert (report.ok, report.steps, report.checked) == (True, 3, 1)
    assert "package main" in path.read_text()  # the arguments, as in every export


async def test_the_file_is_made_with_the_first_step_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "session" / "trace.jsonl"
    async with filed(path) as (ledger, _):
        assert not path.exists()
        await ledger.append("local", [executed()], NOW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_many_at_once_are_in_the_order_of_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, life):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLS):
                tasks.create_task(ledger.transact("local", life.propose, proposal(), NOW))
                tasks.create_task(ledger.append("local", [executed()], NOW))
        assert [step["seq"] for step in steps(path)] == list(range(1, 3 * CALLS + 1))
    assert verify_lines(whole_lines(path)).ok


async def test_a_caller_that_gives_up_leaves_no_line_twice_or_torn(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, life):
        for turns in range(CALLS):
            task = asyncio.create_task(ledger.transact("local", life.propose, proposal(), NOW))
            for _ in range(turns):
                await asyncio.sleep(0)  # further each time, into the write itself
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await ledger.append("local", [executed()], NOW)
        assert [step["seq"] for step in steps(path)] == list(range(1, len(steps(path)) + 1))
    report = verify_lines(whole_lines(path))
    assert report.ok
    assert report.steps > CALLS


async def test_what_cannot_be_written_fails_and_is_written_once_it_can(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.mkdir()
    async with filed(path) as (ledger, _):
        with pytest.raises(StorageFailed, match="cannot write the trace"):
            await ledger.append("local", [executed()], NOW)
        path.rmdir()
        await ledger.append("local", [executed()], NOW)
    assert [step["seq"] for step in steps(path)] == [1, 2]
    assert verify_lines(whole_lines(path)).ok


async def test_the_chain_of_another_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, _):
        await ledger.append("local", [executed()], NOW)
    before = path.read_bytes()
    async with filed(path) as (ledger, _):
        with pytest.raises(StorageFailed):
            await ledger.append("local", [executed()], NOW)
    assert path.read_bytes() == before


async def test_a_last_line_without_its_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, _):
        for _ in range(3):
            await ledger.append("local", [executed()], NOW)
    os.truncate(path, path.stat().st_size - 5)
    with path.open("rb") as torn, pytest.raises(InvalidParams):
        verify_lines(torn)
    report = verify_lines(whole_lines(path))
    assert (report.ok, report.steps) == (True, 2)


async def test_a_change_is_found(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with filed(path) as (ledger, life):
        approval = await ledger.transact("local", life.propose, proposal(requester=AGENT.id), NOW)
        await ledger.transact("local", life.resolve, PERSON, approval.id, ApprovalAnswer(approve=False), NOW)
    path.write_text(path.read_text().replace('"denied"', '"approved"'))
    assert not verify_lines(whole_lines(path)).ok
