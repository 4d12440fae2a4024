"""The real OpenCode and what goes wrong: errors of the model, retries, answers without an end, an answer that is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.agents.opencode.real_opencode import UNFINISHED, RealOpencode, open_opencode

from legation.agents.opencode import turn
from legation.host.turn import PromptResult
from legation.testing.model import StreamError, Text
from legation.wire.acp.rpc import ErrorCode

pytestmark = [
    pytest.mark.network,
    pytest.mark.heavy,
    pytest.mark.timeout(600),  # the first one may install
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opencode_at_work(
    opencode: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealOpencode]:
    async with open_opencode(opencode, tmp_path_factory.mktemp("opencode")) as made:
        yield made


async def test_a_model_error_ends_the_turn_once_and_the_next_turn_is_untouched(
    opencode_at_work: RealOpencode,
) -> None:
    async with opencode_at_work.seat() as at:
        at.script.fail(400, "no such thing")
        at.script.say("Fine now.")
        first = await at.ask("First")
        second = await at.ask("Second")
        assert _kind(first) == ("invalid_request", 400)
        assert first.error is not None
        assert "no such thing" in first.error.message
        assert (second.stop_reason, second.error) == ("end_turn", None)
        assert await at.said() == "Fine now."


async def test_a_refused_key_says_how_to_sign_in(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.fail(401, "bad key")
        result = await at.ask("Go")
        assert result.error is not None
        assert result.error.code == ErrorCode.AUTH_REQUIRED
        assert "legation agents login opencode" in result.error.message


async def test_a_rate_limit_is_told_while_it_is_waited_out(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.fail(429, "slow down", retry_after=1)
        at.script.say("Through.")
        result = await at.ask("Go")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        (notice,) = await at.updates("notice")
        assert notice["severity"] == "warning"
        assert "slow down" in notice["description"]


async def test_a_rate_limit_that_would_take_too_long_ends_the_turn(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.fail(429, "come back tomorrow", retry_after=turn.RETRY_WAIT_LIMIT * 10)
        result = await at.ask("Go")
        assert _kind(result) == ("rate_limit", None)
        at.script.say("Here again.")
        assert (await at.ask("Go on")).error is None


async def test_retries_without_end_are_cut(
    opencode_at_work: RealOpencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "RETRY_LIMIT", 2)  # the third would come after six seconds
    async with opencode_at_work.seat() as at:
        at.script.fail(500, "broken inside", times=2)
        result = await at.ask("Go")
        assert _kind(result) == ("retries_exhausted", None)
        assert result.error is not None
        assert "broken inside" in result.error.message


async def test_a_cut_stream_is_tried_again(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.cut(Text("half of "))
        at.script.say("the whole answer")
        result = await at.ask("Go")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert (await at.said()).endswith("the whole answer")
        assert len(await at.updates("notice")) == 1


async def test_an_error_in_mid_stream_is_tried_again(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.reply(Text("half of "), StreamError(500, "failed halfway"))
        at.script.say("the whole answer")
        result = await at.ask("Go")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert "the whole answer" in await at.said()


async def test_answers_without_an_end_are_cut_before_they_cost_more(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        for _ in range(100):
            at.script.say("and so on")
        result = await at.ask(f"Go {UNFINISHED}")
        asked = len(at.requests())  # the limit, and as many as OpenCode asks before the abort reaches it
        at.script.clear()
        assert _kind(result) == ("unfinished_stream", None)
        assert turn.UNFINISHED_LIMIT <= asked < 100


async def test_a_model_that_reaches_its_limit_is_told_by_the_stop_reason(
    opencode_at_work: RealOpencode,
) -> None:
    async with opencode_at_work.seat() as at:
        at.script.reply(Text("a long"), stop="max-tokens")
        assert (await at.ask("Go")).stop_reason == "max_tokens"


def _kind(result: PromptResult) -> tuple[object, object]:
    assert result.error is not None
    data = result.error.data
    assert isinstance(data, dict)
    return data["errorKind"], data.get("status")
