"""Threads of the real Codex: forked, closed, deleted; and a folder that is trusted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agents.codex.real_codex import ask, real_codex, run, said
from tests.agents.hostile_repository import VARIABLE, hostile_repository
from tests.host.rig import of_type

from legation.agents.driver import OpenRequest
from legation.agents.rpc import AgentRefused
from legation.host.requests.handlers import ApproveAll
from legation.wire.acp.updates import Text as Prompt

pytestmark = [pytest.mark.heavy, pytest.mark.network]

LIMIT = 20.0  # seconds for an answer of the server


async def test_a_fork_knows_what_was_said_and_goes_its_own_way(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        at.model.say("Remembered.")
        await ask(session, "remember blue")
        driver, name = at.driver(session), session.meta.agent_session_id
        fork = await driver.fork_session(OpenRequest(str(at.work), session_id=name), LIMIT)
        assert fork.session_id != name
        at.model.say("Blue.")
        await driver.prompt(fork.session_id, (Prompt(text="which colour?"),))
        assert at.model.requests[-1].mentions("remember blue")
        at.model.say("Nothing new here.")
        await ask(session, "and here?")
        assert not at.model.requests[-1].mentions("which colour?")
        assert await said(session) == "Remembered.Nothing new here."


async def test_a_closed_session_can_be_resumed_and_a_deleted_one_cannot(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session, other = await at.open(), await at.open()
        at.model.say("Here.")
        await ask(session, "the one")
        driver, name = at.driver(session), session.meta.agent_session_id
        await at.made.host.close_session(session.id)
        listed = await driver.list_sessions(str(at.work), None, LIMIT)
        assert [each.session_id for each in listed.sessions] == [name]
        await driver.resume_session(OpenRequest(str(at.work), session_id=name), LIMIT)
        await driver.delete_session(name, LIMIT)
        await driver.delete_session(name, LIMIT)
        assert (await driver.list_sessions(None, None, LIMIT)).sessions == ()
        with pytest.raises(AgentRefused):
            await driver.resume_session(OpenRequest(str(at.work), session_id=name), LIMIT)
        at.model.say("Still here.")
        assert (await ask(other)).stop_reason == "end_turn"


async def test_in_a_folder_that_is_trusted_its_configuration_counts(codex: Path, tmp_path: Path) -> None:
    """So that the test with the hostile repository is known to be able to fail."""
    async with real_codex(codex, tmp_path, approver=ApproveAll(), trusts=lambda _: True) as at:
        repository = hostile_repository(at.work, tmp_path / "marks")
        session = await at.open()
        at.model.reply(run(f"echo [${VARIABLE}]"))
        at.model.say("done")
        await ask(session)
        assert "[codex]" in at.model.requests[-1].tool_results[0].text
        assert "codex-mcp" in repository.left()
        assert await of_type(session, "permission-asked") == []  # its rules allow it


async def test_two_prompts_one_after_the_other_in_two_sessions_of_one_agent(
    codex: Path, tmp_path: Path
) -> None:
    async with real_codex(codex, tmp_path) as at:
        one = await at.open()
        two = await at.made.open_another(one)
        at.model.when("first").say("One.")
        at.model.when("second").say("Two.")
        await asyncio.gather(ask(one, "first"), ask(two, "second"))
        assert (await said(one), await said(two)) == ("One.", "Two.")
