"""What goes wrong between the real Claude Code and its model, as the prompt's answer tells it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.agents.claude.real_claude import real_claude
from tests.host.rig import of_type, until

from legation.testing.model import Cut, Stall, Text
from legation.wire.acp.rpc import ErrorCode

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install


async def test_errors_of_the_model_are_told_as_they_are_and_the_session_goes_on(
    claude: str, tmp_path: Path
) -> None:
    async with real_claude(claude, tmp_path) as at:
        at.model.fail_too_long(tokens=250_000, limit=200_000)
        result = await at.ask("Say hello")
        assert result.error is not None
        assert "too long" in result.error.message
        for status, code, kind in (
            (401, ErrorCode.AUTH_REQUIRED, "authentication_failed"),
            (429, ErrorCode.INTERNAL_ERROR, "rate_limit"),
            (500, ErrorCode.INTERNAL_ERROR, "server_error"),
        ):
            at.model.fail(status, "the scripted reason")
            result = await at.ask("Say hello")
            assert result.error is not None
            data = result.error.data
            assert isinstance(data, dict)
            assert (result.error.code, data["errorKind"], data["status"]) == (code, kind, status)
            assert "the scripted reason" in result.error.message
        assert await at.said() == ""  # what the program says of it is no word of the model
        at.model.say("Hello.")
        assert (await at.ask("Say hello")).error is None
        assert await at.said() == "Hello."


async def test_a_rate_limit_that_passes_is_announced(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path, env={"CLAUDE_CODE_MAX_RETRIES": "1"}) as at:
        at.model.fail(429, "slow down", retry_after=0.1)
        at.model.say("Hello after all.")
        result = await at.ask("Say hello")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Hello after all."
        [notice] = [json.loads(event.payload) for event in await of_type(at.session, "notice")]
        assert (notice["severity"], "rate_limit (429)" in notice["title"]) == ("warning", True)


async def test_a_cut_stream_is_not_the_end_of_the_turn(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        stall = Stall()  # so that the first half is on its way before the cut: else the agent may drop it
        at.model.reply(Text("Half an ans"), stall, Cut())
        at.model.say("wer, and the rest.")
        turn = asyncio.create_task(at.ask("Say hello"))
        await until(at.session, lambda event: event.type == "agent-message-chunk")
        stall.release()
        result = await turn
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Half an answer, and the rest."


async def test_a_refusal_is_a_stop_reason(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        at.model.reply(Text("No."), stop="refusal")
        at.model.reply(Text("No."), stop="refusal")
        result = await at.ask("Say something bad")
        assert (result.stop_reason, result.error) == ("refusal", None)
