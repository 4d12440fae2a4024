"""The driver with what the real Codex said, and without it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agents.codex.person import BLUE, Person
from tests.agents.codex.real_codex import RealCodex, payload, said, tool_calls
from tests.agents.codex.scenarios import RECORDINGS, SCENARIOS
from tests.host.rig import Hand, modes_told, of_type, rig, until

from legation.agents.codex.messages import CodexNotification
from legation.agents.codex.translate import CodexTranslator
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.testing.model import ScriptedModel
from legation.testing.replay import Replay


@asynccontextmanager
async def played(name: str, place: Path) -> AsyncIterator[tuple[RealCodex, Session]]:
    replay = Replay(RECORDINGS / f"{name}.jsonl", places={"/w": str(place / "work")})
    hand = Hand()
    async with rig(place, approver=hand, launcher=replay, questions=Person(BLUE)) as made:
        definition = AgentDefinition(
            id="codex", command="codex", args=("app-server",), cwd=made.work, driver="codex"
        )
        at = RealCodex(made, ScriptedModel(), definition, hand)
        session = await SCENARIOS[name].play(at)
        yield at, session
        assert await of_type(session, "unrecognized-update") == []
        assert made.reported == []
    replay.check()


async def test_a_turn_is_told_once_with_its_diffs(tmp_path: Path) -> None:
    async with played("turn", tmp_path) as (at, session):
        assert await said(session) == "First a file, in pieces.Done."
        assert await said(session, "agent-thought-chunk") == "Let me see."
        assert await tool_calls(session) == {
            "apply_patch": ["in_progress", "completed"] * 2,
            "exec_command": ["in_progress", "completed", "in_progress", "failed"],
        }
        added, moved, read, refused = at.hand.asked
        a, b = str(at.work / "a.txt"), str(at.work / "b.txt")
        assert [(each.path, each.old_text, each.new_text) for each in added.diffs] == [(a, None, "one\n")]
        assert [(each.path, each.old_text, each.new_text) for each in moved.diffs] == [(a, "one\n", "two\n")]
        assert (moved.action.kind, moved.action.paths) == ("move", (a, b))
        assert (read.action.command, read.action.paths) == ("cat b.txt", (b,))
        assert (refused.action.kind, refused.action.command) == ("execute", "rm b.txt")
        (finished,) = await of_type(session, "prompt-finished")
        assert payload(finished)["usage"]["outputTokens"] == 125
        natives = [event for event in await of_type(session, "tool-call") if event.native]
        assert json.loads(natives[0].native)["method"] == "item/started"


async def test_an_approved_plan_is_carried_out_in_the_same_turn(tmp_path: Path) -> None:
    async with played("plan", tmp_path) as (at, session):
        plan, change = at.hand.asked
        assert (plan.action.kind, plan.action.params) == ("switch_mode", {"plan": "1. Write planned.txt\n"})
        assert change.action.kind == "edit"
        assert len(await of_type(session, "prompt-finished")) == 1
        assert (await modes_told(session))[-2:] == ["plan", "default"]


async def test_questions_and_mcp_tools_are_asked_about_by_name(tmp_path: Path) -> None:
    async with played("asking", tmp_path) as (at, session):
        assert [each.action.tool for each in at.hand.asked] == ["echo.echo", "echo.look", "echo.ask"]
        questions = [payload(each) for each in await of_type(session, "question-asked")]
        assert [each["message"] for each in questions] == ["Which colour?", "Which colour?"]
        statuses = await tool_calls(session)
        assert statuses["mcp__echo__echo"][-1] == "failed"
        assert statuses["mcp__echo__look"][-1] == "completed"


async def test_a_sub_agent_is_told_of_in_its_parents_session(tmp_path: Path) -> None:
    async with played("sub_agent", tmp_path) as (at, session):
        (asked,) = at.hand.asked
        assert (asked.session_id, asked.action.command) == (session.id, "ls")
        report = await until(session, lambda event: b"has done it" in event.raw)
        calls = [payload(each) for each in await of_type(session, "tool-call")]
        assert payload(report)["toolCallId"] == calls[0]["toolCallId"]
        assert await said(session) == "Delegated."


async def test_failures_retries_and_a_cancelled_permission(tmp_path: Path) -> None:
    async with played("failing", tmp_path) as (at, session):
        failed, mended, cancelled = [payload(each) for each in await of_type(session, "prompt-finished")]
        assert "that is no request" in failed["error"]["message"]
        assert mended["stopReason"] == "end_turn"
        assert "error" not in mended
        assert cancelled["stopReason"] == "cancelled"
        assert len(await of_type(session, "notice")) == 1
        assert at.hand.withdrawn == [at.hand.asked[0].id]
        assert await tool_calls(session) == {"apply_patch": ["in_progress", "failed"]}


def _heard() -> list[dict[str, Any]]:
    lines = (RECORDINGS / "heard.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("message", _heard(), ids=lambda each: f"{each['method']}")
def test_every_kind_of_message_that_was_ever_recorded_is_understood(message: dict[str, Any]) -> None:
    """One of each that is no turn's, with every kind of item, cut from all recordings of the program."""
    params, line = json.dumps(message["params"]).encode(), json.dumps(message).encode()
    thread = message["params"].get("threadId", "t")
    assert (
        CodexTranslator(thread).updates(thread, CodexNotification(message["method"], params, line))
        is not None
    )
