"""Turns of the real Codex."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agents.codex.real_codex import add_file, ask, payload, real_codex, run, said, tool_calls
from tests.host.rig import NO, YES, of_type

from legation.host.requests.handlers import ApproveAll
from legation.testing.model import Text, Thinking

# All that the model is offered. Of these only the first two act on the machine, and are asked about: whatever is new
# here must be looked at. What is typed into a running program has no effect: none has an open input.
TOOLS = {"exec_command", "apply_patch", "write_stdin", "request_user_input", "tool_search"}

pytestmark = [pytest.mark.heavy, pytest.mark.network]


async def test_a_turn_changes_a_file_and_is_told_in_order(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path, approver=ApproveAll()) as at:
        session = await at.open()
        at.model.reply(Thinking("Let me see."), Text("First the file."), add_file("hello.txt", "hello"))
        at.model.reply(run("cat hello.txt"))
        at.model.say("All done, with a text of some length.")
        result = await ask(session)
        assert result.stop_reason == "end_turn"
        assert result.usage is not None
        assert (result.usage.input_tokens, result.usage.output_tokens) == (300, 75)
        assert (at.work / "hello.txt").read_text() == "hello\n"
        assert await said(session) == "First the file.All done, with a text of some length."
        assert await said(session, "agent-thought-chunk") == "Let me see."
        assert await tool_calls(session) == {
            "apply_patch": ["in_progress", "completed"],
            "exec_command": ["in_progress", "completed"],
        }
        assert await of_type(session, "unrecognized-update") == []
        assert at.made.reported == []
        assert {*at.model.requests[0].tools} == TOOLS


async def test_every_step_is_asked_about_once_and_a_no_does_not_end_the_turn(
    codex: Path, tmp_path: Path
) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        at.model.reply(run("ls"))
        at.model.reply(add_file("sub/kept.txt", "kept"))
        at.model.reply(add_file("not.txt", "not"))
        at.model.say("done")
        turn = asyncio.create_task(ask(session))
        for count, answer in enumerate((NO, YES, NO), start=1):
            await at.hand.until_asked(count)
            at.hand.answer(at.hand.asked[-1].id, answer)
        assert (await turn).stop_reason == "end_turn"
        listing, kept, refused = at.hand.asked
        assert (listing.action.tool, listing.action.command) == ("exec_command", "ls")
        assert (kept.action.kind, kept.action.paths) == ("edit", (str(at.work / "sub" / "kept.txt"),))
        assert [(each.path, each.new_text) for each in refused.diffs] == [(str(at.work / "not.txt"), "not\n")]
        assert (at.work / "sub" / "kept.txt").exists()
        assert not (at.work / "not.txt").exists()
        assert [payload(each)["outcome"] for each in await of_type(session, "permission-answered")] != []
